"""Write Anserini's terms of every document of some collections: DIR/SET/corpus.jsonl -> TOKENS/SET.jsonl.

ANSERINI_JAR=anserini.jar python bench/lucene_oracle/make_tokens.py --data DIR --tokens TOKENS SET...
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from oracle import Lucene


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder of the collections")
    parser.add_argument("--tokens", type=Path, required=True, help="a folder for what is written")
    parser.add_argument("sets", nargs="+", help="names of collections")
    arguments = parser.parse_args()
    lucene = Lucene()
    arguments.tokens.mkdir(parents=True, exist_ok=True)
    for name in arguments.sets:
        with (
            (arguments.data / name / "corpus.jsonl").open(encoding="utf-8") as corpus,
            (arguments.tokens / f"{name}.jsonl").open("w", encoding="utf-8") as out,
        ):
            for line in corpus:
                document = json.loads(line)
                title, text = document.get("title", ""), document["text"]
                tokens = lucene.english(f"{title}\n{text}" if title else text)
                out.write(json.dumps({"id": document["_id"], "tokens": tokens}) + "\n")


if __name__ == "__main__":
    main()
