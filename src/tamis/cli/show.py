"""tamis show: one document."""

from __future__ import annotations

import json as json_lines

from tamis.cli.arguments import ArgumentParser, index_argument, json_argument
from tamis.cli.console import print_json, printable, stdout
from tamis.index.index import Index
from tamis.index.place import Place


def add_arguments(parser: ArgumentParser) -> None:
    index_argument(parser)
    parser.add_argument("identity", metavar="ID", help="the document's id")
    json_argument(parser)


def main(index: Place, identity: str, json: bool) -> None:
    """Print a document of an index."""
    document = Index.open(index).document(identity)
    if json:
        print_json(
            {
                "id": document.id,
                "title": document.title,
                "text": document.text,
                "metadata": dict(document.metadata),
            }
        )
        return
    console = stdout()
    console.print(printable(document.id), style="green", soft_wrap=True)
    if document.title:
        console.print(printable(document.title), style="bold")
    for paragraph in document.text.splitlines():
        console.print(printable(paragraph))
    if document.metadata:
        metadata = json_lines.dumps(dict(document.metadata), ensure_ascii=False)
        console.print(printable(metadata), style="dim", soft_wrap=True)
