"""TREC files made to take time: what is opened and never closed, over and over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SIZE = 2_000_000  # bytes; the patterns that were replaced took an hour for as many
LIMIT = 60  # seconds, of which a second or two are needed

BEGIN, END = "<DOC><DOCNO>1</DOCNO>", "</DOC>\n"
REPEATED = {
    "script": (BEGIN, "<SCRIPT>", END),
    "script in text": (f"{BEGIN}<TEXT>", "<SCRIPT>", f"</TEXT>{END}"),
    "text": (BEGIN, "<TEXT>", END),
    "texts of two names": (BEGIN, "<TEXT><LP></TEXT>", END),
    "title": (BEGIN, "<TITLE>", END),
    "comment": (BEGIN, "<!--", END),
    "docno": ("<DOC>", "<DOCNO>", END),
    "closing tags": (BEGIN, "</TEXT ", END),
    "spaces in a tag": (f"{BEGIN}<TEXT", " ", END),
    "brackets": (BEGIN, "<", END),
    "letters in brackets": (BEGIN, "<a", END),
    "references": (BEGIN, "&#", END),
    "digits": (f"{BEGIN}&#", "9", END),
    "documents on one line": ("", f"{BEGIN}</DOC>", "\n"),
    "open documents on one line": ("", "<DOC>", "\n"),
    "open documents, spaces": ("", "<DOC   >  ", "\n"),
}
TOPICS = {
    "tops": ("", "<top>", ""),
    "fields": ("<top><num>1", "<title>", ""),
    "letters in brackets": ("<top><num>1<title>", "<a", ""),
    "digits": ("<top><num>1<title>&#", "9", ""),
}
READ = """
import sys
from tamis.formats import SkipReport, read_corpus, read_queries
if sys.argv[2] == "topics":
    print(len(read_queries(sys.argv[1], skipped=SkipReport())))
else:
    print(sum(1 for _ in read_corpus(sys.argv[1], skipped=SkipReport())))
"""


def read(path: Path, kind: str, parts: tuple[str, str, str]) -> int:
    begin, repeated, end = parts
    path.write_text(begin + repeated * (SIZE // len(repeated)) + end)
    command = [sys.executable, "-c", READ, str(path), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert not done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("name", REPEATED)
def test_documents_take_time_in_proportion_to_their_size(name: str, tmp_path: Path) -> None:
    read(tmp_path / "corpus.trec", "corpus", REPEATED[name])


@pytest.mark.parametrize("name", TOPICS)
def test_topics_take_time_in_proportion_to_their_size(name: str, tmp_path: Path) -> None:
    read(tmp_path / "topics.trec", "topics", TOPICS[name])
