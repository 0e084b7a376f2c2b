"""Limits on the pipeline and query of a client, checked before the work begins; see `limits`."""

from __future__ import annotations

from tamis.base.conditions import Contains, leaves
from tamis.base.documents import Query
from tamis.base.errors import ExpressionError, InputError
from tamis.base.where import where
from tamis.core.options import parameters_of
from tamis.core.plan import walk
from tamis.core.query_syntax import QuerySyntax, read_query
from tamis.core.stage import Stage
from tamis.serve.limits import QUERY_TERMS, SEARCHES, WHERE_FIELDS
from tamis.text.analyze import Analyzer

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
        searches += part.searches
        for name, option in parameters_of(type(part)).items():
            most, value = option.at_most, getattr(part, name, None)
            if most is not None and value is not None and value > most:
                raise ExpressionError(f"{part} has {name}={value}", remedy=_AT_MOST.format(most))
    if searches > SEARCHES:
        raise ExpressionError(
            f"the pipeline has {searches} stages that search", remedy=_AT_MOST.format(SEARCHES)
        )


def asked(text: str, condition: str | None, syntax: QuerySyntax) -> Query:
    """The query of a client: its words and its conditions. To the stages all queries have one id, or what
    they draw would differ by request.

    >>> asked("sieve", " or ".join(f"f{n} = 1" for n in range(17)), "plain")
    Traceback (most recent call last):
    tamis.base.errors.InputError: the condition has 17 fields: this server takes 16 at most
    """
    query = read_query(Query("0", text, where=None if condition is None else where(condition)), syntax)
    if query.where is not None:
        fields = {leaf.field for leaf in leaves(query.where) if not isinstance(leaf, Contains)}
        if len(fields) > WHERE_FIELDS:
            raise InputError(f"the condition has {len(fields)} fields", remedy=_AT_MOST.format(WHERE_FIELDS))
    return query


def check_query(stage: Stage, analyzer: Analyzer, query: str) -> None:
    """Raise if a query has more terms than the stages may search for."""
    bounded = [(part.query_terms, part.name) for part in walk(stage) if part.query_terms is not None]
    most, by = min([*bounded, (QUERY_TERMS, "this server")])
    if len(query) <= most:  # a term has one character at least
        return
    if (terms := len(analyzer.tokens(query))) > most:
        raise InputError(
            f"the query has {terms:,} terms", remedy=f"shorten it: {by} takes {most:,} at most here"
        )
