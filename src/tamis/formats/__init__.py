"""Reading and writing corpora, queries, relevance judgments and runs.

All readers read plain, `.gz` and `.zst` files and the standard input (`-`), and report an error in a file in
one line with the line number. All writers write a file completely or not at all. `irds:NAME` instead of a
corpus, queries or judgments is a dataset of ir_datasets (`pip install ir-datasets`).
"""

from tamis.formats.candidates import Candidates, read_candidates
from tamis.formats.corpora import read_corpus
from tamis.formats.folders import LeftOut
from tamis.formats.kinds import CorpusFormat
from tamis.formats.lines import SkipReport
from tamis.formats.qrels import Qrels, QrelsFormat, read_qrels, write_qrels
from tamis.formats.runs import RunLine, RunRow, read_run, read_run_lines, write_run
from tamis.formats.ties import strictly_decreasing
from tamis.formats.topics import QueryFormat, read_queries
from tamis.text.topics import TopicField

__all__ = [
    "Candidates",
    "CorpusFormat",
    "LeftOut",
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
