"""tamis merge: one segment of all."""

from __future__ import annotations

import sys
from pathlib import Path

from tamis.cli.arguments import ArgumentParser, folder_of_index, json_argument
from tamis.cli.console import counted, doing, print_json, size, size_on_disk
from tamis.cli.tokens import keep_tokens
from tamis.index.embedded import EmbeddedIndex


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("index", metavar="IDX", type=folder_of_index, help="an index, made by `tamis index`")
    json_argument(parser)


def main(index: Path, json: bool) -> None:
    """Merge an index into one segment.

    This is the fastest and smallest form; deleted documents are removed from it.
    """
    opened = EmbeddedIndex.open(index)
    segments, before = len(opened.segments), size_on_disk(index)
    with doing("Merging"):
        opened.merge()
    after = size_on_disk(index)
    if json:
        print_json(
            {
                "index": str(index),
                "segments_before": segments,
                "segments": len(opened.segments),
                "bytes": after,
            }
        )
    else:
        sys.stdout.write(
            f"{index}: {counted(segments, 'segment')} merged, {size(before)} before, {size(after)} now\n"
        )
    if (index / "tokens").exists():
        keep_tokens(index, None)
