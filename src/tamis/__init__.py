"""tamis: multi-stage text ranking with transformers.

>>> import tamis, tempfile
>>> documents = [tamis.Document("d1", "A tamis is a sieve."), tamis.Document("d2", "Soup of the day")]
>>> index = tamis.Index.build(documents, tempfile.mkdtemp() + "/idx")
>>> (index.bm25() % 10)("what is a sieve").ids
('d1',)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tamis.base.version import __version__

if TYPE_CHECKING:
    from tamis.base.documents import Document, Query
    from tamis.base.errors import TamisError
    from tamis.base.where import where
    from tamis.core.query_syntax import simple_query
    from tamis.core.ranking import Hit, Ranking, Run, ScoreKind, Span
    from tamis.core.stage import Pipeline, Role, Stage, stage
    from tamis.index.dependence import SDM, Dependence
    from tamis.index.feedback import RM3
    from tamis.index.index import Index
    from tamis.index.retriever import Retriever
    from tamis.index.score import BM25, QueryLikelihood, TfIdf
    from tamis.infer.ray_runtime import RayRuntime
    from tamis.rank.birch import Birch
    from tamis.rank.cascade import Cascade
    from tamis.rank.combine import Fuse, Interpolate, Normalise
    from tamis.rank.duo import Duo
    from tamis.rank.early_exit import IfUnsure
    from tamis.rank.evidence import whole_sentences
    from tamis.rank.groupwise import Groupwise
    from tamis.rank.listwise import Listwise
    from tamis.rank.ltr import LTR
    from tamis.rank.mono import Mono
    from tamis.rank.passage import AvgP, FirstP, KMaxP, MaxP, SumP
    from tamis.rank.scored import Cedr, Parade

__all__ = [
    "BM25",
    "LTR",
    "RM3",
    "SDM",
    "AvgP",
    "Birch",
    "Cascade",
    "Cedr",
    "Dependence",
    "Document",
    "Duo",
    "FirstP",
    "Fuse",
    "Groupwise",
    "Hit",
    "IfUnsure",
    "Index",
    "Interpolate",
    "KMaxP",
    "Listwise",
    "MaxP",
    "Mono",
    "Normalise",
    "Parade",
    "Pipeline",
    "Query",
    "QueryLikelihood",
    "Ranking",
    "RayRuntime",
    "Retriever",
    "Role",
    "Run",
    "ScoreKind",
    "Span",
    "Stage",
    "SumP",
    "TamisError",
    "TfIdf",
    "__version__",
    "simple_query",
    "stage",
    "where",
    "whole_sentences",
]

_HOME = {
    "tamis.base.documents": ("Document", "Query"),
    "tamis.base.errors": ("TamisError",),
    "tamis.base.where": ("where",),
    "tamis.rank.birch": ("Birch",),
    "tamis.rank.cascade": ("Cascade",),
    "tamis.rank.combine": ("Fuse", "Interpolate", "Normalise"),
    "tamis.rank.duo": ("Duo",),
    "tamis.rank.early_exit": ("IfUnsure",),
    "tamis.rank.evidence": ("whole_sentences",),
    "tamis.rank.groupwise": ("Groupwise",),
    "tamis.rank.listwise": ("Listwise",),
    "tamis.rank.scored": ("Cedr", "Parade"),
    "tamis.rank.ltr": ("LTR",),
    "tamis.rank.mono": ("Mono",),
    "tamis.rank.passage": ("AvgP", "FirstP", "KMaxP", "MaxP", "SumP"),
    "tamis.core.query_syntax": ("simple_query",),
    "tamis.core.ranking": ("Hit", "Ranking", "Run", "ScoreKind", "Span"),
    "tamis.index.dependence": ("SDM", "Dependence"),
    "tamis.index.feedback": ("RM3",),
    "tamis.index.index": ("Index",),
    "tamis.index.retriever": ("Retriever",),
    "tamis.index.score": ("BM25", "QueryLikelihood", "TfIdf"),
    "tamis.infer.ray_runtime": ("RayRuntime",),
    "tamis.core.stage": ("Pipeline", "Role", "Stage", "stage"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that the command line starts before numpy does."""
    if name not in _MODULE:
        raise AttributeError(f"module 'tamis' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
