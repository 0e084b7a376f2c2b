"""The window of a long text that is read: by hand over tokens, and what mono and duo then read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Duo, Index, Mono
from tamis.base.errors import ExpressionError, InputError
from tamis.core.registry import build
from tamis.infer.tokens import build_tokens
from tamis.models.templates import Special, Tokenised, duo, duo_room, mono, mono_room
from tamis.rank.best_window import best_window, window_scores, window_starts

STOP = np.array([9])


# -- windows over tokens


def test_scores_by_hand() -> None:
    # windows [1 7 7], [7 7 2], [7 2 8], [2 8 1]; 7 is in three of the four, 8 in two
    scores = window_scores(np.array([8, 7]), np.array([1, 7, 7, 2, 8, 1]), np.arange(4), 3)
    seven, eight = np.log(1 + 1.5 / 3.5), np.log(1 + 2.5 / 2.5)
    twice = seven * 2 * 1.9 / 2.9
    assert scores.tolist() == pytest.approx([twice, twice, seven + eight, eight])


def test_a_token_of_every_window_counts_less_than_a_rare_one() -> None:
    text = np.array([5, 5, 5, 9, 5, 5, 5, 9, 5, 7, 1, 9, 5, 1, 1, 1])
    assert best_window(np.array([5, 7]), text, 4, STOP).tolist() == [5, 7, 1, 9]


def test_the_first_of_equals_is_read() -> None:
    text = np.array([1, 2, 3, 9, 1, 7, 3, 9, 1, 7, 3, 9, 1, 2])
    assert best_window(np.array([7]), text, 4, STOP).tolist() == [1, 7, 3, 9]
    assert best_window(np.array([6]), text, 4, STOP).tolist() == [1, 2, 3, 9]
    assert best_window(np.zeros(0, np.int32), text, 4, STOP).tolist() == [1, 2, 3, 9]


def test_windows_reach_the_end_and_lie_in_long_sentences() -> None:
    assert window_starts(np.arange(5), 5, STOP).tolist() == [0]
    assert window_starts(np.arange(3), 5, STOP).tolist() == [0]
    assert window_starts(np.zeros(7, int), 2, STOP).tolist() == [0, 1, 2, 3, 4, 5]
    text = np.array([0, 0, 9, *[0] * 9, 9, 0, 0])
    starts = window_starts(text, 4, STOP)
    assert starts.tolist() == [0, 3, 5, 7, 9, 11]
    assert best_window(np.array([9]), np.array([*[0] * 12, 8]), 4, STOP).tolist() == [0, 0, 0, 0]
    assert best_window(np.array([8]), np.array([*[0] * 12, 8]), 4, STOP).tolist() == [0, 0, 0, 8]


def test_every_token_is_in_some_window() -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        text, size = generator.integers(0, 12, generator.integers(1, 60)), int(generator.integers(1, 20))
        starts = window_starts(text, size, STOP)
        inside = np.zeros(len(text), bool)
        for start in starts.tolist():
            inside[start : start + size] = True
        assert inside.all()
        assert (starts + size <= max(len(text), size)).all()


@pytest.mark.parametrize("tokens", [0, 5, 64, 100])
def test_the_room_is_what_the_templates_read(tokens: int) -> None:
    special = Special(cls=1, sep=2, query_marker=(3, 4), document_marker=(5,))
    long = Tokenised.of([[7] * 600])
    for form in ("default", "swapped", "markers"):
        _, cut = mono([6] * tokens, long, special, form=form, total_limit=200)  # type: ignore[arg-type]
        room = mono_room(tokens, special, form=form, total_limit=200)  # type: ignore[arg-type]
        assert room == 600 - cut.text_tokens_lost
    for limits in ({}, {"query_limit": 9, "total_limit": 100}):
        _, cut = duo([6] * tokens, long, np.zeros((1, 2), int), special, **limits)  # type: ignore[arg-type]
        assert duo_room(special, **limits) == 600 - cut.text_tokens_lost  # type: ignore[arg-type]


# -- stages


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_checkpoint(folder / "mono")
    tiny_checkpoint(folder / "duo", segments=3, seed=3)
    return folder


def letters(text: str) -> str:
    """Letters are a token each, whatever the vocabulary."""
    return " ".join(text)


def test_mono_reads_the_best_window_and_says_what_is_lost(models: Path) -> None:
    text = letters("abcdefgh.abczzzgh.abcdefgh.abcdefgh.")
    model = str(models / "mono")
    best, start = Mono(model, limit=16, cut="best"), Mono(model, limit=16)  # [CLS] z [SEP] 12 of them [SEP]
    whole = Mono(model)
    (found,) = best.rank("z", [text])
    assert found.score == whole.rank("z", [letters("abczzzgh.abc")])[0].score
    assert start.rank("z", [text])[0].score == whole.rank("z", [letters("abcdefgh.abc")])[0].score
    assert best.tally.truncation == start.tally.truncation
    assert (best.tally.truncation.texts_cut, best.tally.truncation.text_tokens_lost) == (1, 36 - 12)
    short = letters("abczzz")
    assert best.rank("z", [short]) == start.rank("z", [short])


def test_a_title_stays_before_the_window(models: Path) -> None:
    model = str(models / "mono")
    document = Document("d", letters("abcdefgh.abczzzgh.abcdefgh."), title=letters("xy"))
    best = Mono(model, limit=16, cut="best").rank("z", [document])[0].score
    assert best == Mono(model).rank("z", [Document("d", letters("abczzzgh.a"), title=letters("xy"))])[0].score
    # of a long title there is half the room, and more where the text leaves some
    long = Document("d", letters("abcdefgh.abczzzgh."), title=letters("xyxyxyxyxyxyxyxy"))
    best = Mono(model, limit=16, cut="best").rank("z", [long])[0].score
    assert best == Mono(model).rank("z", [Document("d", letters("abczzz"), title=letters("xyxyxy"))])[0].score
    long = Document("d", "z", title=letters("xyxyxyxyxyxyxyxy"))
    best = Mono(model, limit=16, cut="best").rank("z", [long])[0].score
    assert best == Mono(model).rank("z", [Document("d", "z", title=letters("xyxyxyxyxyx"))])[0].score


def test_duo_reads_the_best_windows(models: Path) -> None:
    model = str(models / "duo")
    # [CLS] z [SEP] text [SEP] text [SEP]: 23 without those, 3 for the query, 10 of each text
    cut = Duo(model, query_limit=3, limit=27, cut="best")
    texts = [letters("abcdefgh.zbzdefg.abcdefgh."), letters("klm"), letters("klmnop.klmnop.klzzop.klmnop.")]
    windows = [letters("zbzdefg.ab"), letters("klm"), letters("klzzop.klm")]
    assert [each.score for each in cut.rank("z", texts)] == [
        each.score for each in Duo(model).rank("z", windows)
    ]
    assert (cut.tally.truncation.texts, cut.tally.truncation.texts_cut) == (3, 2)


def test_what_is_read_does_not_depend_on_other_candidates_or_on_kept_tokens(
    models: Path, tmp_path: Path
) -> None:
    generator = np.random.default_rng(2)
    texts = [" ".join(generator.choice(list("abcdz."), 700)) for _ in range(6)]
    index = Index.build([Document(f"d{n}", f"q {text}") for n, text in enumerate(texts)], tmp_path / "idx")
    stage = Mono(str(models / "mono"), limit=40, cut="best")
    found = index.bm25()("q z")
    together = dict(zip(*(lambda r: (r.ids, r.scores.tolist()))(stage(found)), strict=True))
    for n in range(6):
        (alone,) = stage.rank("q z", [f"q {texts[n]}"])
        assert alone.score == together[f"d{n}"]
    build_tokens(index, stage.scorer.tokenizer)  # the first 512 of each, which are not all
    opened = Index.open(tmp_path / "idx")
    assert stage(opened.bm25()("q z")) == stage(found)


def test_odd_texts(models: Path) -> None:
    stage = Mono(str(models / "mono"), limit=24, cut="best")
    odd = ["", "." * 500, "a" * 3000, "\ud800 half " * 60, "né \u200f עברית " * 60, "castle " * 100_000]
    for query in ("castle", "", ".", "castle " * 100):
        assert len(stage.rank(query, odd)) == 6


def test_expressions_fingerprints_and_errors_know_the_cut(models: Path) -> None:
    for name in ("mono", "duo"):
        plain, best = (f'{name}(model="{models}/{name}"{more})' for more in ("", ", limit=128, cut=best"))
        assert repr(build(best)) == best
        assert build(best).fingerprint != build(best.replace(", cut=best", "")).fingerprint
        assert repr(build(f"{plain[:-1]}, cut=start)")) == plain
        with pytest.raises(ExpressionError, match=f"cut of {name} cannot be 'end': give start or best"):
            build(f"{name}(cut=end)")
    for stage in (Mono, Duo):
        with pytest.raises(InputError, match="no cut 'end': use start or best"):
            stage(cut="end")  # type: ignore[arg-type]
