"""tamis tokens: an index's documents, tokenised once."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tamis.base.errors import TamisError
from tamis.cli.arguments import ArgumentParser, folder_of_index, json_argument
from tamis.cli.clusters import cluster_of, on_argument
from tamis.cli.console import counted, duration, note, print_json, progress, size, size_on_disk, warn
from tamis.index.embedded import EmbeddedIndex

#: Documents that are tokenised unasked: seconds, where a million take minutes.
AT_ONCE = 100_000


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("index", metavar="IDX", type=folder_of_index, help="an index, made by `tamis index`")
    parser.add_argument(
        "--model", metavar="M", default="mono", help="a model: bundled, a folder, or a name on the hub (mono)"
    )
    parser.add_argument("--revision", metavar="R", help="revision of a model on the hub")
    on_argument(parser, "tokenise")
    json_argument(parser)


def main(index: Path, model: str, revision: str | None, on: str | None, json: bool) -> None:
    """Tokenise an index's documents for a model and keep the tokens beside them.

    Reranking then does not tokenise them query by query. Models with the same tokenizer share the tokens.
    """
    from tamis.infer.tokens import build_tokens
    from tamis.models.bundled import open_model
    from tamis.models.tokenizer import open_tokenizer

    cluster = cluster_of(on)
    opened = EmbeddedIndex.open(index)
    tokenizer = open_tokenizer(open_model(model, revision))
    started = time.perf_counter()
    stored = sum(map(len, opened.segments))  # deleted ones too
    with progress("Tokenising", "documents", stored) as advance:
        store = build_tokens(opened, tokenizer, progress=advance, on=cluster)
    seconds = time.perf_counter() - started
    folder = index / "tokens" / tokenizer.fingerprint
    if json:
        print_json(
            {
                "index": str(index),
                "model": model,
                "tokens": str(folder),
                "documents": store.documents,
                "bytes": size_on_disk(folder),
                "seconds": round(seconds, 3),
            }
        )
    else:
        documents, on_disk = counted(store.documents, "document"), size(size_on_disk(folder))
        sys.stdout.write(f"{folder}: tokens of {documents}, {duration(seconds)}, {on_disk}\n")


def tokens_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--tokens",
        action=argparse.BooleanOptionalAction,
        help="keep the tokens of the bundled models beside the index, so that searches need not make "
        f"them (if at most {AT_ONCE:,} documents lack them)",
    )


def keep_tokens(index: Path, wanted: bool | None) -> None:
    """Make the missing tokens of an index for the bundled models; by default only if that takes seconds. The
    index is complete without them: a failure is an error only if the tokens were requested."""
    if wanted is False:
        return
    # imported late: indexing without tokens need not wait for it
    from tamis.infer.tokens import build_tokens, untokenised
    from tamis.models.bundled import bundled_tokenizer

    try:
        opened, tokenizer = EmbeddedIndex.open(index), bundled_tokenizer()
        missing = untokenised(opened, tokenizer)
        if wanted is None and missing > AT_ONCE:
            makes = f"`tamis serve` makes them in the background, `tamis tokens {index}` now"
            note(f"the models' tokens of {counted(missing, 'document')} are not made yet: {makes}")
            return
        with progress("Tokenising", "documents", sum(map(len, opened.segments))) as advance:
            build_tokens(opened, tokenizer, progress=advance)
    except TamisError as error:
        if wanted:
            raise
        warn(f"no tokens are kept beside {index} ({error.problem}): `tamis tokens {index}` makes them")
