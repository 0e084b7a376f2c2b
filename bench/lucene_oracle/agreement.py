"""How many documents have exactly the terms that Anserini gave them, by set. Needs no Java.

    python bench/lucene_oracle/agreement.py --data DIR --tokens TOKENS

DIR/SET/corpus.jsonl holds the documents, TOKENS/SET.jsonl Anserini's terms (from make_tokens.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tamis.base.documents import Document
from tamis.text.analyze import get_analyzer


def differences(corpus: Path, tokens: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Id, our terms and Anserini's, of each document; they are equal where they agree."""
    analyzer = get_analyzer("english")
    with corpus.open(encoding="utf-8") as documents, tokens.open(encoding="utf-8") as expected:
        for document_line, tokens_line in zip(documents, expected, strict=True):
            record, theirs = json.loads(document_line), json.loads(tokens_line)
            if record["_id"] != theirs["id"]:
                raise SystemExit(f"{corpus} and {tokens} are not of the same documents, at {record['_id']}")
            document = Document(record["_id"], record["text"], title=record.get("title", ""))
            yield document.id, analyzer.tokens(document.contents), theirs["tokens"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder of the collections")
    parser.add_argument("--tokens", type=Path, required=True, help="the folder that make_tokens.py made")
    arguments = parser.parse_args()
    worst, sets = 1.0, sorted(arguments.tokens.glob("*.jsonl"))
    if not sets:
        raise SystemExit(f"error: {arguments.tokens} has no terms: make them with make_tokens.py")
    for tokens in sets:
        documents = equal = terms = 0
        for identity, ours, theirs in differences(arguments.data / tokens.stem / "corpus.jsonl", tokens):
            documents += 1
            terms += len(theirs)
            equal += ours == theirs
            if ours != theirs:
                sys.stderr.write(f"{tokens.stem} {identity}: {sorted(set(ours) ^ set(theirs))}\n")
        worst = min(worst, equal / documents)
        share = f"{equal}/{documents} documents equal ({equal / documents:.4%})"
        sys.stdout.write(f"{tokens.stem:20s} {share}, {terms} terms\n")
    if worst < 0.999:
        raise SystemExit("less than 99.9 % of a set agrees")


if __name__ == "__main__":
    main()
