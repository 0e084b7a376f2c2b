"""What is shown of a text does not depend on the order in which Python goes through a set."""

from __future__ import annotations

import itertools

from tamis.cli.snippet import snippet
from tamis.text.analyze import get_analyzer

FILLER = " zzz" * 30


def test_of_equal_stretches_the_first_is_shown() -> None:
    analyzer = get_analyzer("plain")
    weights = (0.1, 0.2, 0.3)  # .1 + .2 + .3 is more than .3 + .2 + .1
    words = [first + second for first, second in itertools.product("abcdefgh", "klmnopqr")]
    for i in range(0, len(words) - len(weights), len(weights)):
        names = words[i : i + len(weights)]
        terms = dict(zip(names, weights, strict=True))
        for others in itertools.permutations(names):
            text = f"first {' '.join(names)}{FILLER} second {' '.join(others)}{FILLER}"
            shown = "".join(piece.text for piece in snippet(text, analyzer, terms, 60))
            assert "second" not in shown, (names, others)
