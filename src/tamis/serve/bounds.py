"""What a client's pipeline and query may ask of the index: refused before the work begins, by `limits`."""

from __future__ import annotations

from tamis.base.errors import ExpressionError, InputError
from tamis.core.plan import walk
from tamis.core.stage import Stage
from tamis.index.dependence import SDM
from tamis.index.feedback import RM3
from tamis.index.index import Index
from tamis.index.retriever import Retriever
from tamis.rank.groupwise import Groupwise
from tamis.rank.ltr import LTR
from tamis.serve.limits import QUERY_TERMS, RM3_DOCS, RM3_TERMS, ROUNDS, SDM_TERMS, SEARCHES

_AT_MOST = "this server takes {:,} at most"


def check_stages(stage: Stage) -> None:
    """Raise if a pipeline searches too often, or an option makes a search too large.

    >>> from tamis.core.registry import build
    >>> check_stages(build("rm3(docs=1000)"))
    Traceback (most recent call last):
    tamis.base.errors.ExpressionError: rm3(docs=1000) has docs=1000: this server takes 100 at most
    """
    searches = 0
    for part in walk(stage):
        # ltr and groupwise may look up the query's terms, which takes as long as a search
        searches += isinstance(part, Retriever | SDM | RM3 | LTR | Groupwise)
        if isinstance(part, RM3):
            _check_option(part, "terms", part.terms, RM3_TERMS)
            _check_option(part, "docs", part.docs, RM3_DOCS)
        elif isinstance(part, Groupwise):
            _check_option(part, "rounds", part.rounds, ROUNDS)
    if searches > SEARCHES:
        raise ExpressionError(
            f"the pipeline has {searches} stages that search", remedy=_AT_MOST.format(SEARCHES)
        )


def _check_option(stage: Stage, name: str, value: int, most: int) -> None:
    if value > most:
        raise ExpressionError(f"{stage} has {name}={value}", remedy=_AT_MOST.format(most))


def check_query(stage: Stage, index: Index, query: str) -> None:
    """Raise if a query has more terms than the stages may search for."""
    most = SDM_TERMS if any(isinstance(part, SDM) for part in walk(stage)) else QUERY_TERMS
    if len(query) <= most:  # a term has one character at least
        return
    if (terms := len(index.analyzer.tokens(query))) > most:
        by = "sdm" if most == SDM_TERMS else "this server"
        raise InputError(
            f"the query has {terms:,} terms", remedy=f"shorten it: {by} takes {most:,} at most here"
        )
