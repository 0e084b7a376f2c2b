"""tamis backup: a copy of an index that is in use."""

from __future__ import annotations

import sys
from pathlib import Path

from tamis.cli.arguments import ArgumentParser, folder_of_index, json_argument
from tamis.cli.console import counted, doing, print_json, size, warn
from tamis.cli.outputs import check_output
from tamis.index.embedded import EmbeddedIndex


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("index", metavar="IDX", type=folder_of_index, help="an index, made by `tamis index`")
    parser.add_argument("destination", metavar="DEST", type=Path, help="a folder that is new or empty")
    parser.add_argument(
        "--copy",
        action="store_true",
        help="copy all files instead of hard-linking them: a link shares its bytes on disk with the index, "
        "so damage to one is damage to both",
    )
    json_argument(parser)


def main(index: Path, destination: Path, copy: bool, json: bool) -> None:
    """Copy an index, with its tokens, as of its last commit, while it is read and written.

    Every checksum is verified in the copy.
    """
    from tamis.index.backup import backup

    check_output(destination, str(index), within=False)
    with doing("Copying"):
        made = backup(index, destination, links=not copy)
    documents = len(EmbeddedIndex.open(destination))
    if json:
        print_json(
            {
                "index": str(index),
                "backup": str(destination),
                "commit": made.commit,
                "documents": documents,
                "files": made.files,
                "linked": made.linked,
                "bytes": made.size,
                "without_tokens": list(made.without_tokens),
            }
        )
    else:
        files = f"{counted(made.files, 'file')} ({made.linked:,} as hard links), {size(made.size)}"
        sys.stdout.write(f"{destination}: {counted(documents, 'document')}, {files}, all checksums valid\n")
    for folder in made.without_tokens:
        warn(f"the tokens in {folder} are damaged or were just replaced: `tamis tokens` makes them again")
