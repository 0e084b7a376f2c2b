"""Random texts of every kind of character, long words among them: do we split each as Lucene does?

ANSERINI_JAR=anserini.jar python bench/lucene_oracle/conformance.py [--texts 100000] [--seed 1]
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator

from oracle import Lucene

from tamis.text.wordbreak import split
from tamis.text.wordbreak_data import RANGES

SINGLE = "'\"#*\u200d\u20e3\ufe0e\ufe0f\U000e007f -"


def texts(count: int, generator: random.Random) -> Iterator[str]:
    kinds = [[span.partition("-") for span in ranges.split()] for ranges in RANGES.values()]

    def character() -> str:
        kind = generator.choice(some)
        if isinstance(kind, str):
            return generator.choice(kind)
        first, _, last = generator.choice(kind)
        return chr(generator.randint(int(first, 16), int(last or first, 16)))

    for _ in range(count):
        some = generator.sample([*kinds, *SINGLE], generator.randint(1, 8))
        length = generator.choice((4, 8, 16, 16, 16, 300))
        if generator.random() < 0.1:
            unit = "".join(character() for _ in range(generator.randint(1, 3)))
            yield unit * length
        else:
            yield "".join(character() for _ in range(length))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=100_000, help="how many (100000)")
    parser.add_argument("--seed", type=int, default=1, help="of the texts (1)")
    arguments = parser.parse_args()
    lucene, different = Lucene(), 0
    for text in texts(arguments.texts, random.Random(arguments.seed)):
        if split(text) != lucene.standard(text):
            different += 1
            sys.stderr.write(f"{text!a}\n  ours   {split(text)!a}\n  Lucene {lucene.standard(text)!a}\n")
    sys.stdout.write(f"{arguments.texts - different} of {arguments.texts} texts split alike\n")
    if different:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
