"""What `tamis index` counts and says of a corpus, wherever the index is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tamis.base.documents import Document
from tamis.base.errors import InputError
from tamis.cli.console import counted, doing, warn
from tamis.cli.left_out import warn_of_files
from tamis.formats import CorpusFormat, LeftOut
from tamis.formats.corpora import places_of
from tamis.formats.json_lines import is_blank
from tamis.formats.kinds import RECORDS
from tamis.index.place import Place
from tamis.index.writer import Skipped
from tamis.storage.document_store import DuplicateIdError


@dataclass(slots=True)
class Tally:
    """What came of a corpus so far."""

    read: int = 0
    empty: int = 0  # documents that no search can find
    first_empty: str = ""  # the id of one

    def add(self, document: Document) -> None:
        self.read += 1
        if is_blank(document.text) and is_blank(document.title):
            self.first_empty = self.first_empty or document.id
            self.empty += 1


def warn_of_another_corpus(output: Place, before: int, there: Skipped) -> None:
    """--resume cannot know whether the corpus is the same one; ids and texts give hints."""
    if before and not there.count:
        others = counted(before, "document")
        rule = "--resume continues an interrupted corpus; check that it is this one"
        warn(f"none of these documents is among the {others} that {output} had: {rule}")
    if there.changed:
        have = counted(there.changed, "document has", "documents have")
        rule = "the old text is kept; for the new one use --add --on-duplicate replace instead of --resume"
        warn(f"{have} another text in {output}, such as {there.first_changed}: {rule}")


def warn_of_losses(
    corpus: list[str], format: CorpusFormat | None, output: Place, left_out: LeftOut, tally: Tally
) -> None:
    """Say what a search will not find."""
    warn_of_files(left_out, corpus, format, output)
    if tally.empty:
        have = "has" if tally.empty == 1 else "have"
        such = f"such as {tally.first_empty}"
        warn(f"{counted(tally.empty, 'document')} {have} neither title nor text, {such}")


@contextmanager
def places_named(corpus: list[str], format: CorpusFormat | None, tally: Tally) -> Iterator[None]:
    """Let the error of an id that occurs twice say where: the index does not know files and lines."""
    try:
        yield
    except DuplicateIdError as error:
        with doing(f"Looking for {error.doc_id!r}"):
            # the refused document was not counted
            places = places_of(error.doc_id, *corpus, format=format, first=tally.read + 1)
        if not places:
            raise
        remedy = error.remedy
        if len({place.path for place in places if place.format not in (*RECORDS, "irds")}) == 2:
            remedy = f"index the folder that holds both, where their paths are their ids; or {remedy}"
        raise InputError(f"{error.problem} ({' and '.join(map(str, places))})", remedy=remedy) from None
