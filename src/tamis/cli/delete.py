"""tamis delete: documents out of an index."""

from __future__ import annotations

import sys
from pathlib import Path

from tamis.cli.arguments import ArgumentParser, folder_of_index, json_argument
from tamis.cli.console import counted, print_json
from tamis.index.embedded import EmbeddedIndex


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("index", metavar="IDX", type=folder_of_index, help="an index, made by `tamis index`")
    parser.add_argument("identities", metavar="ID", nargs="+", help="the documents' ids")
    json_argument(parser)


def main(index: Path, identities: list[str], json: bool) -> None:
    """Delete documents from an index.

    Deletes all of them, or none if an id is not in the index.
    """
    opened = EmbeddedIndex.open(index)
    wanted = list(dict.fromkeys(identities))
    opened.delete(wanted)
    if json:
        print_json({"index": str(index), "deleted": len(wanted), "documents": len(opened)})
    else:
        sys.stdout.write(f"{index}: {counted(len(wanted), 'document')} deleted, {len(opened):,} left\n")
