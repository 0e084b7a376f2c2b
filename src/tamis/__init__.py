"""tamis: multi-stage text ranking with transformers.

>>> import tamis, tempfile
>>> documents = [tamis.Document("d1", "A tamis is a sieve."), tamis.Document("d2", "Soup of the day")]
>>> index = tamis.Index.build(documents, tempfile.mkdtemp() + "/idx")
>>> (index.bm25() % 10)("what is a sieve").ids
('d1',)
"""

from tamis.documents import Document, Query
from tamis.errors import TamisError
from tamis.ranking import Hit, Ranking, Run, ScoreKind, Span
from tamis.retrieve.feedback import RM3
from tamis.retrieve.index import Index
from tamis.retrieve.retriever import Retriever
from tamis.retrieve.score import BM25, QueryLikelihood, TfIdf
from tamis.stage import Pipeline, Stage

__version__ = "0.1.0"

__all__ = [
    "BM25",
    "RM3",
    "Document",
    "Hit",
    "Index",
    "Pipeline",
    "Query",
    "QueryLikelihood",
    "Ranking",
    "Retriever",
    "Run",
    "ScoreKind",
    "Span",
    "Stage",
    "TamisError",
    "TfIdf",
    "__version__",
]
