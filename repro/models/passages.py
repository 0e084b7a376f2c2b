"""Passages to learn from: documents whole, in runs of whole sentences, and within pages, because what is
ranked later is sometimes a paragraph and sometimes a page."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tamis import Document

_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]?\s+(?=[\"'(\[]?[A-Z0-9-])")
_WHOLE = 150  # words of a whole text that are kept
_READ = 700  # words of a document that are cut into runs
_RUNS = 6  # of a document
_PAGES = 0.12  # of the documents also come within a page
_PAGE = 350  # words of a page: about as many as an encoder of 512 places reads


Kind = Literal["whole", "page", "run"]


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a document, or all of it."""

    document: int  # its number
    title: str  # "" where the passage stands without it
    text: str
    kind: Kind


def passages(documents: Sequence[Document], rng: random.Random) -> Iterator[Passage]:
    """Each document whole, some also within a page and, if it has more than 80 words, in runs of 40 to 80
    words. Half of them have the title before them: a model should need none."""
    for number, document in enumerate(documents):
        split = sentences(document.text)
        parts: list[tuple[Kind, list[str]]] = [("whole", _words(split)[:_WHOLE])]
        if rng.random() < _PAGES:
            parts.append(("page", _page(number, documents, rng)))
        parts += [("run", run) for run in _runs(split, rng)]
        for kind, words in parts:
            title = document.title if rng.random() < 0.5 else ""
            yield Passage(number, title or "", " ".join(words), kind)


def _page(number: int, documents: Sequence[Document], rng: random.Random) -> list[str]:
    """A document after up to two of those before it and followed by the next: those of one article or one
    question lie side by side in the collections. Most of it is read, whatever comes before."""
    before: list[str] = []
    for other in range(number - rng.randrange(3), number):
        before += documents[max(other, 0)].text.split()
    words = before[: rng.randrange(200)] + documents[number].text.split()
    wanted, after = rng.randint(200, _PAGE), number + 1
    while len(words) < wanted and after < len(documents):
        words += documents[after].text.split()
        after += 1
    return words[:wanted]


def sentences(text: str) -> list[list[str]]:
    """The words of each, of the first part of a text."""
    kept = " ".join(text.split()[:_READ])
    return [sentence.split() for sentence in _SENTENCE_END.split(kept) if sentence]


def _words(split: Sequence[Sequence[str]]) -> list[str]:
    return [word for sentence in split for word in sentence]


def _runs(split: Sequence[Sequence[str]], rng: random.Random) -> list[list[str]]:
    if sum(map(len, split)) <= 80:
        return []
    runs: list[list[str]] = []
    at = 0
    while at < len(split) and len(runs) < _RUNS:
        wanted, run = rng.randint(40, 65), list(split[at])
        at += 1
        while at < len(split) and len(run) < wanted and len(run) + len(split[at]) <= 80:
            run += split[at]
            at += 1
        if len(run) >= 25:
            runs.append(run)
    return runs
