"""The field's files: corpora, queries, relevance judgments and runs, read and written.

Everything here reads plain, `.gz` and `.zst` files and the standard input (`-`), says what is wrong with a
file in one line that names the line, and writes all or nothing. `irds:NAME` in place of a corpus, queries or
judgments is a dataset of ir_datasets (`pip install 'tamis[irds]'`).
"""

from tamis.formats.candidates import Candidates, read_candidates
from tamis.formats.corpora import CorpusFormat, read_corpus
from tamis.formats.lines import SkipReport
from tamis.formats.qrels import Qrels, QrelsFormat, read_qrels, write_qrels
from tamis.formats.runs import RunLine, RunRow, read_run, read_run_lines, write_run
from tamis.formats.ties import strictly_decreasing
from tamis.formats.topics import QueryFormat, read_queries
from tamis.text.topics import TopicField

__all__ = [
    "Candidates",
    "CorpusFormat",
    "Qrels",
    "QrelsFormat",
    "QueryFormat",
    "RunLine",
    "RunRow",
    "SkipReport",
    "TopicField",
    "read_candidates",
    "read_corpus",
    "read_qrels",
    "read_queries",
    "read_run",
    "read_run_lines",
    "strictly_decreasing",
    "write_qrels",
    "write_run",
]
