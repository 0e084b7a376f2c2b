"""tamis tokens: an index's documents, tokenised once."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tamis.cli.arguments import ArgumentParser, json_argument
from tamis.cli.console import counted, duration, print_json, progress, size, size_on_disk
from tamis.infer.cross_encoder import CrossEncoder
from tamis.infer.tokens import build_tokens
from tamis.retrieve.index import Index


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("index", metavar="IDX", type=Path, help="an index, made by `tamis index`")
    parser.add_argument(
        "--model", metavar="M", default="mono", help="a model: bundled, a folder, or a name on the hub (mono)"
    )
    parser.add_argument("--revision", metavar="R", help="of a model on the hub")
    json_argument(parser)


def main(index: Path, model: str, revision: str | None, json: bool) -> None:
    """Tokenise an index's documents for a model and keep the tokens beside them.

    Reranking then does not tokenise them query by query. Models with the same tokenizer share the tokens.
    """
    opened = Index.open(index)
    tokenizer = CrossEncoder(model, revision=revision).tokenizer
    started = time.perf_counter()
    stored = sum(map(len, opened.segments))  # deleted ones too
    with progress("Tokenising", "documents", stored) as advance:
        store = build_tokens(opened, tokenizer, progress=advance)
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
