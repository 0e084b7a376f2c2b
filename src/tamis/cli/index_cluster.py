"""tamis index -o opensearch://HOST:9200/NAME: documents into an index in a cluster."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain

from tamis.base.errors import InputError, TamisError
from tamis.cli.arguments import ArgumentParser, at_least_one
from tamis.cli.console import LOG_EVERY, counted, doing, duration, note, print_json, progress, size, warn
from tamis.cli.corpus import Tally, places_named, warn_of_another_corpus, warn_of_losses
from tamis.cli.left_out import left_out_records
from tamis.formats import CorpusFormat, LeftOut, SkipReport, read_corpus
from tamis.index.opensearch.cluster import Cluster
from tamis.index.opensearch.connection import Connection
from tamis.index.opensearch.errors import ClusterError
from tamis.index.opensearch.mapping import Meta
from tamis.index.opensearch.writer import ClusterWriter, How, Wanted, data_nodes, writer
from tamis.index.writer import OnDuplicate, Skipped


def cluster_arguments(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("an index of OpenSearch")
    group.add_argument("--shards", type=at_least_one, metavar="N", help="parts that it is divided into (1)")
    group.add_argument(
        "--replicas",
        type=_not_negative,
        metavar="N",
        help="copies of each part, made when all documents are there (1 if there is more than one node)",
    )
    group.add_argument(
        "--similarity",
        action="append",
        default=[],
        metavar="S",
        help="a model that it can rank by, such as 'bm25(k1=1.2, b=0.75)' or 'ql(mu=500)'; may be repeated "
        "(bm25(k1=0.9, b=0.4) and ql(mu=1000))",
    )


def _not_negative(text: str) -> int:
    """
    >>> _not_negative("0")
    0
    """
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def refuse_options(options: Mapping[str, object], place: str, remedy: str) -> None:
    """Refuse what has been set and does not apply.

    >>> refuse_options({"--shards": 3}, "an index on disk", "leave it out")
    Traceback (most recent call last):
    tamis.base.errors.InputError: --shards does not apply to an index on disk: leave it out
    """
    for option, is_set in options.items():
        if is_set:
            raise InputError(f"{option} does not apply to {place}", remedy=remedy)


def index_into_cluster(
    corpus: list[str],
    address: str,
    *,
    how: How,
    wanted: Wanted,
    format: CorpusFormat | None,
    on_duplicate: OnDuplicate,
    skip_bad: bool,
    workers: int,
    merge: bool,
    as_json: bool,
) -> None:
    started = time.perf_counter()
    skipped = SkipReport() if skip_bad else None
    left_out = LeftOut(bad=skipped or SkipReport())
    documents = iter(read_corpus(*corpus, format=format, skipped=skipped, left_out=left_out))
    first = next(documents, None)  # what is wrong with the corpus is found out before an index is made
    if first is None:
        raise InputError(f"no document in {' '.join(corpus)}", remedy="check the path and the format")
    tally = Tally()
    instead = f" instead of --{how}" if how in ("add", "overwrite") else ""
    kept = f"{address} keeps what has arrived: the same command with --resume{instead} continues from there"
    with places_named(corpus, format, tally), _continues(kept) as begun, ExitStack() as until_sent:
        advance = until_sent.enter_context(progress("Indexing", "documents"))
        with writer(
            address,
            how=how,
            wanted=wanted,
            on_duplicate=on_duplicate,
            workers=workers,
            skip_refused=skip_bad,
            done=advance,
            on_retry=_retry_warning(),
        ) as target:
            begun()
            for document in chain([first], documents):
                target.add(document)
                tally.add(document)
            target.send()
            until_sent.close()  # the bar
            with doing("Putting the index into service"):
                made = target.finish(merge=merge)
    outcome = target.outcome
    there = Skipped()
    if target.before:  # a new index skips only what its corpus has twice
        there = outcome.skipped
        there.count += outcome.there
    seconds = time.perf_counter() - started
    total = made.documents or 0
    stored = _size(target.connection)
    if as_json:
        print_json(
            {
                "index": address,
                "documents": total,
                "read": tally.read,
                "empty": tally.empty,
                "there_already": there.count,
                "there_already_changed": there.changed,
                "bad_lines": left_out.bad.lines,
                "bad_files": left_out.bad.files,
                "left_out": left_out_records(left_out, address),
                "refused": outcome.refused.count,
                "refused_documents": [
                    {"id": doc_id, "reason": reason} for doc_id, reason in outcome.refused.first
                ],
                "seconds": round(seconds, 3),
                "bytes": stored,
                "shards": made.shards,
                "replicas": made.replicas,
                "analyzer": made.analyzer,
                "similarities": made.expressions,
                "positions": False,
            }
        )
    else:
        skipped_too = f", {there.count:,} there already" if there.count else ""
        read_too = f" ({tally.read:,} read{skipped_too})" if there.count or tally.read != total else ""
        parts = f"{counted(made.shards, 'shard')}, {counted(made.replicas, 'replica')}"
        documents_now = f"{counted(total, 'document')}{read_too}"
        sys.stdout.write(f"{address}: {documents_now}, {duration(seconds)}, {size(stored)} in {parts}\n")
    if how == "resume":
        warn_of_another_corpus(address, target.before, there)
    others = total - made.before - outcome.created - outcome.confirmed - outcome.there - outcome.replaced
    if others > 0:
        have = counted(others, "document that is", "documents that are")
        warn(f"{address} holds {have} not of this corpus: --overwrite makes an index of this corpus alone")
    warn_of_losses(corpus, format, address, left_out, tally)
    _warn_of_cluster(target, made)


@contextmanager
def _continues(kept: str) -> Iterator[Callable[[], None]]:
    """Say how to continue, where the index has been begun and something comes in between."""
    began = False

    def begun() -> None:
        nonlocal began
        began = True

    try:
        yield begun
    except KeyboardInterrupt:
        if began:
            note(kept)
        raise
    except TamisError as error:
        if began and "--resume" not in error.remedy:
            note(kept)
        raise


def _retry_warning() -> Callable[[TamisError], None]:
    """Warns of retries, at intervals."""
    last = -LOG_EVERY

    def tell(error: TamisError) -> None:
        nonlocal last
        if time.monotonic() - last >= LOG_EVERY:
            last = time.monotonic()
            warn(f"{error.problem}; trying again")

    return tell


def _size(connection: Connection) -> int:
    """Bytes of the index on the cluster's disks, without the copies; 0 where the cluster does not say. They
    are added up from the segments, because the figure for the whole index lags behind. Segments that were
    merged into others are listed for a moment longer, but are no longer committed."""
    index = connection.address.index
    try:
        (answer,) = connection.request("GET", f"/{index}/_segments")["indices"].values()
    except (ClusterError, KeyError, ValueError):
        return 0
    shards = [
        shard for copies in answer["shards"].values() for shard in copies if shard["routing"]["primary"]
    ]
    segments = [each for shard in shards for each in shard["segments"].values()]
    return sum(int(each["size_in_bytes"]) for each in segments if each["committed"])


def _warn_of_cluster(target: ClusterWriter, made: Meta) -> None:
    if refused := target.outcome.refused:
        documents = counted(refused.count, "document")
        warn(f"the cluster refused {documents} ({refused.names}): {refused.first[0][1]}")
    if not made.replicas:
        return
    if (nodes := data_nodes(target.connection)) <= made.replicas:
        have = f"{counted(made.replicas, 'replica')} on {counted(nodes, 'node')}"
        warn(f"{have}: the index has a copy less for each node that is missing")
    elif Cluster(target.connection).health() != "green":
        warn("the cluster has not made all copies: `GET _cluster/allocation/explain` says why")
