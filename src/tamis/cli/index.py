"""tamis index: documents into an index."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from tamis.base.documents import Document
from tamis.base.errors import InputError
from tamis.base.processes import available_cores
from tamis.cli.arguments import ArgumentParser, at_least_one, json_argument, place_of_index
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
)
from tamis.cli.corpus import Tally, places_named, warn_of_another_corpus, warn_of_losses
from tamis.cli.index_cluster import cluster_arguments, index_into_cluster, refuse_options
from tamis.cli.left_out import left_out_records
from tamis.cli.outputs import check_output
from tamis.cli.tokens import keep_tokens, tokens_argument
from tamis.formats import CorpusFormat, LeftOut, SkipReport, read_corpus
from tamis.index.embedded import EmbeddedIndex
from tamis.index.opensearch.mapping import similarity as similarity_of
from tamis.index.opensearch.writer import REQUESTS, Wanted
from tamis.index.place import Place, is_address
from tamis.index.writer import IndexWriter, OnDuplicate, Skipped, create

MOST_WORKERS = 8  # default limit: one process reads the corpus, and cannot feed many


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
        "-o",
        "--output",
        metavar="IDX",
        type=place_of_index,
        required=True,
        help="the index: a folder, or opensearch://HOST:9200/NAME",
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
        help=f"processes that build a large index (the cores, {MOST_WORKERS} at most); of a cluster: "
        f"requests at a time ({REQUESTS})",
    )
    parser.add_argument(
        "--no-merge", dest="merge", action="store_false", help="do not merge all segments at the end"
    )
    tokens_argument(parser)
    cluster_arguments(parser)
    json_argument(parser)


def main(
    corpus: list[str],
    output: Place,
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
    shards: int | None,
    replicas: int | None,
    similarity: list[str],
    json: bool,
) -> None:
    """Index documents: into a new folder or an index of OpenSearch, or with --add into an existing index."""
    of_folder = {"--positions": positions, "--commit-every": commit_every}
    of_folder |= {"--tokens" if tokens else "--no-tokens": tokens is not None}
    of_cluster = {"--shards": shards, "--replicas": replicas is not None, "--similarity": similarity}
    if is_address(output):
        refuse_options(of_folder, "an index in a cluster", f"leave it out for {output}")
        index_into_cluster(
            corpus,
            str(output),
            how="resume" if resume else "add" if add else "overwrite" if overwrite else "new",
            wanted=Wanted(analyzer, [*map(similarity_of, similarity)], shards, replicas),
            format=format,
            on_duplicate=on_duplicate,
            skip_bad=skip_bad,
            workers=workers or REQUESTS,
            merge=merge,
            as_json=json,
        )
        return
    output = Path(output)
    refuse_options(of_cluster, "an index on disk", "leave it out, or give opensearch://HOST:9200/NAME")
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
    tally = Tally()
    with places_named(corpus, format, tally), target as writer:
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
        warn_of_another_corpus(output, before, there)
    warn_of_losses(corpus, format, output, left_out, tally)
    keep_tokens(output, tokens)


def _add(
    documents: Iterable[Document], writer: IndexWriter, commit_every: int | None, kept: str, tally: Tally
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
