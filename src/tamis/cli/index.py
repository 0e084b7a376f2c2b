"""tamis index: documents into an index."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from tamis.base.documents import Document
from tamis.base.errors import InputError
from tamis.base.processes import available_cores
from tamis.cli.arguments import ArgumentParser, at_least_one, json_argument
from tamis.cli.console import (
    counted,
    doing,
    duration,
    note,
    prepare_kernel,
    print_json,
    progress,
    size,
    size_on_disk,
    warn,
)
from tamis.cli.left_out import left_out_records, warn_of_files
from tamis.cli.outputs import check_output
from tamis.cli.tokens import keep_tokens, tokens_argument
from tamis.formats import CorpusFormat, LeftOut, SkipReport, read_corpus
from tamis.formats.corpora import places_of
from tamis.formats.json_lines import is_blank
from tamis.formats.kinds import RECORDS
from tamis.index.embedded import EmbeddedIndex
from tamis.index.writer import IndexWriter, OnDuplicate, Skipped, create
from tamis.storage.document_store import DuplicateIdError

MOST_WORKERS = 8  # default limit: one process reads the corpus, and cannot feed many


@dataclass(slots=True)
class _Tally:
    """What came of a corpus so far."""

    read: int = 0
    empty: int = 0  # documents that no search can find
    first_empty: str = ""  # the id of one

    def add(self, document: Document) -> None:
        self.read += 1
        if is_blank(document.text) and is_blank(document.title):
            self.first_empty = self.first_empty or document.id
            self.empty += 1


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "corpus",
        metavar="CORPUS",
        nargs="+",
        help="files or folders: JSONL (BEIR), CSV, TSV, TREC, Parquet, Arrow; or text, Markdown, HTML, "
        "manual pages, PDF, office files; .gz, .zst too; - is the standard input; irds:NAME a collection of "
        "ir_datasets",
    )
    parser.add_argument(
        "-o", "--output", metavar="IDX", type=Path, required=True, help="the index (a folder)"
    )
    parser.add_argument(
        "--analyzer",
        metavar="NAME",
        help="how text becomes terms: english (the default), plain, whitespace, french, german, ...",
    )
    parser.add_argument("--positions", action="store_true", help="keep positions, which sdm needs")
    parser.add_argument(
        "--format",
        choices=get_args(CorpusFormat),
        help="format of the corpus, if its suffix does not say; files: all kinds that are one document each",
    )
    there = parser.add_mutually_exclusive_group()
    there.add_argument("--overwrite", action="store_true", help="replace an existing index")
    there.add_argument("--add", action="store_true", help="add to an existing index")
    there.add_argument(
        "--resume",
        action="store_true",
        help="resume after an interruption: documents already committed are skipped",
    )
    parser.add_argument(
        "--on-duplicate",
        choices=get_args(OnDuplicate),
        default="error",
        help="what to do with a document whose id has occurred already (error)",
    )
    parser.add_argument("--skip-bad", action="store_true", help="skip and count lines that cannot be read")
    parser.add_argument(
        "--commit-every",
        type=at_least_one,
        metavar="N",
        help="commit every N documents, so that --resume can continue from there",
    )
    parser.add_argument(
        "--workers",
        type=at_least_one,
        metavar="N",
        help=f"processes that build a large index (the cores, {MOST_WORKERS} at most)",
    )
    parser.add_argument(
        "--no-merge", dest="merge", action="store_false", help="do not merge all segments at the end"
    )
    tokens_argument(parser)
    json_argument(parser)


def main(
    corpus: list[str],
    output: Path,
    analyzer: str | None,
    positions: bool,
    format: CorpusFormat | None,
    overwrite: bool,
    add: bool,
    resume: bool,
    on_duplicate: OnDuplicate,
    skip_bad: bool,
    commit_every: int | None,
    workers: int | None,
    merge: bool,
    tokens: bool | None,
    json: bool,
) -> None:
    """Index documents: into a new folder, or with --add into an existing index."""
    started = time.perf_counter()
    check_output(output, *corpus, within=False)
    skipped = SkipReport() if skip_bad else None
    left_out = LeftOut(bad=skipped or SkipReport())
    # checks the paths, before anything is written
    documents = read_corpus(*corpus, format=format, skipped=skipped, left_out=left_out)
    rule: OnDuplicate = "skip" if resume else on_duplicate
    processes = workers or min(available_cores(), MOST_WORKERS)
    before = 0
    if add or (resume and (output / "manifest.json").exists()):
        index = _existing(output, analyzer, positions)
        before, target = len(index), index.writer(on_duplicate=rule, workers=processes)
    else:
        target = create(
            output,
            analyzer=analyzer or "english",
            positions=positions,
            overwrite=overwrite,
            on_duplicate=rule,
            workers=processes,
        )
    tally = _Tally()
    with _places_named(corpus, format, tally), target as writer:
        instead = " instead of --add" if add else " instead of --overwrite" if overwrite else ""
        kept = (
            f"{output} keeps what is committed: the same command with --resume{instead} continues from there"
        )
        _add(documents, writer, commit_every, kept, tally)
        if not tally.read:
            raise InputError(f"no document in {' '.join(corpus)}", remedy="check the path and the format")
        with doing("Writing the index"):
            if merge:
                writer.merge()
            else:
                writer.commit()
    made = EmbeddedIndex.open(output)
    there = writer.skipped if before else Skipped()  # a new index skips only what its corpus has twice
    seconds = time.perf_counter() - started
    prepare_kernel()
    if json:
        print_json(
            {
                "index": str(output),
                "documents": len(made),
                "read": tally.read,
                "empty": tally.empty,
                "there_already": there.count,
                "there_already_changed": there.changed,
                "bad_lines": left_out.bad.lines,
                "bad_files": left_out.bad.files,
                "left_out": left_out_records(left_out, output),
                "seconds": round(seconds, 3),
                "bytes": size_on_disk(output),
                "segments": len(made.segments),
                "analyzer": made.manifest.analyzer,
                "positions": made.manifest.positions,
            }
        )
    else:
        skipped_too = f", {there.count:,} there already" if there.count else ""
        read_too = f" ({tally.read:,} read{skipped_too})" if there.count or tally.read != len(made) else ""
        on_disk = size(size_on_disk(output))
        documents_now = counted(len(made), "document")
        sys.stdout.write(f"{output}: {documents_now}{read_too}, {duration(seconds)}, {on_disk} on disk\n")
    if resume:
        _warn_of_another_corpus(output, before, there)
    _warn_of_losses(corpus, format, output, left_out, tally)
    keep_tokens(output, tokens)


def _warn_of_another_corpus(output: Path, before: int, there: Skipped) -> None:
    """--resume cannot know whether the corpus is the same one; ids and texts give hints."""
    if before and not there.count:
        others = counted(before, "document")
        rule = "--resume continues an interrupted corpus; check that it is this one"
        warn(f"none of these documents is among the {others} that {output} had: {rule}")
    if there.changed:
        have = counted(there.changed, "document has", "documents have")
        rule = "the old text is kept; for the new one use --add --on-duplicate replace instead of --resume"
        warn(f"{have} another text in {output}, such as {there.first_changed}: {rule}")


def _warn_of_losses(
    corpus: list[str], format: CorpusFormat | None, output: Path, left_out: LeftOut, tally: _Tally
) -> None:
    """Say what a search will not find."""
    warn_of_files(left_out, corpus, format, output)
    if tally.empty:
        have = "has" if tally.empty == 1 else "have"
        such = f"such as {tally.first_empty}"
        warn(f"{counted(tally.empty, 'document')} {have} neither title nor text, {such}")


@contextmanager
def _places_named(corpus: list[str], format: CorpusFormat | None, tally: _Tally) -> Iterator[None]:
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


def _add(
    documents: Iterable[Document], writer: IndexWriter, commit_every: int | None, kept: str, tally: _Tally
) -> None:
    """Add and count documents; `kept` is what to say at an interrupt if some are committed."""
    committed = False
    try:
        with progress("Indexing", "documents") as advance:
            for document in documents:
                writer.add(document)
                tally.add(document)
                advance(1)
                if commit_every and writer.pending >= commit_every:
                    writer.commit()
                    committed = True
    except KeyboardInterrupt:
        if committed:
            note(kept)
        raise


def _existing(path: Path, analyzer: str | None, positions: bool) -> EmbeddedIndex:
    """An index that is there, if it was made with the same settings."""
    index = EmbeddedIndex.open(path)
    manifest = index.manifest
    if positions and not manifest.positions:
        raise InputError(
            f"{path} was made without --positions", remedy="leave it out, or --overwrite the index"
        )
    if analyzer not in (None, manifest.analyzer):
        have = f"--analyzer {manifest.analyzer}{' --positions' if manifest.positions else ''}"
        raise InputError(f"{path} was made with {have}", remedy="use the same, or --overwrite it")
    return index
