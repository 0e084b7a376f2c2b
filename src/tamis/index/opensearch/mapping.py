"""How an index of OpenSearch is made so that it ranks as one on disk: its analysis, similarities and fields.

The cluster analyses the texts by itself. Its `standard` tokenizer and filters are Lucene's, whose terms ours
equal (tests compare them, and `check_analysis` compares a few whenever an index is made), so no terms have to
be sent or kept beside the texts, and other clients can search the index as any other.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from tamis.base.errors import ExpressionError, InputError, quoted
from tamis.base.version import __version__
from tamis.core.language import Call, parse
from tamis.index.opensearch.connection import Connection
from tamis.index.opensearch.errors import ClusterError
from tamis.index.score import BM25, QueryLikelihood
from tamis.text.analyze import get_analyzer

Similarity = BM25 | QueryLikelihood
DEFAULT_SIMILARITIES: tuple[Similarity, ...] = (BM25(0.9, 0.4), QueryLikelihood(1000.0))
ID, TITLE, TEXT, METADATA, CONTENTS = "id", "title", "text", "metadata", "contents"
LONGEST_ID = 512  # bytes of an `_id`
FORMAT = 1  # of what follows
_OURS = "tamis"  # the key of what we say of an index, in the `_meta` of its mapping
_FILTERS: dict[str, list[str]] = {
    "english": ["tamis_possessive", "lowercase", "tamis_stop", "porter_stem"],
    "plain": ["lowercase"],
}
#: What tells our terms from near ones: other stop words, stemmers, word breaks, versions of Unicode, longest
#: tokens.
_SAMPLE = (
    "The Cook's sieves weren't running; O'Neil’s 3.14 snake_case C++ flies, generously: 東京タワー ひらがな "
    "ภาษาไทย İstanbul ΟΔΟΣ naïve 👩‍👩‍👧 e-mail 한국어 \u0e81\u0ebb " + "ab" * 150
)


@dataclass(frozen=True, slots=True)
class Meta:
    """The metadata that tamis keeps in the mapping of an index. `fields` are those of the similarities."""

    index: str = ""  # its name, also where an alias was asked for
    analyzer: str = "english"
    fields: Mapping[Similarity, str] = field(default_factory=lambda: named_fields(DEFAULT_SIMILARITIES))
    shards: int = 1
    replicas: int = 0  # once all documents are there
    identity: str = field(default_factory=lambda: secrets.token_hex(8))
    runs: int = 1  # how many commands have written to it
    before: int = 0  # documents that it held when the last of them began
    documents: int | None = None  # and when it had ended; None: it has not
    version: str = __version__

    @property
    def expressions(self) -> list[str]:
        """The similarities as the pipeline language writes them.

        >>> Meta().expressions
        ['bm25(k1=0.9, b=0.4)', 'ql(mu=1000.0)']
        """
        return [expression(each) for each in self.fields]


def similarity(text: str) -> Similarity:
    """The similarity that an expression names: of BM25 and query likelihood what a cluster can compute.

    >>> similarity("bm25(0.9, 0.4)"), similarity("ql(mu=500)") == QueryLikelihood(500.0)
    (BM25(k1=0.9, b=0.4, variant='lucene'), True)
    >>> similarity("tfidf")
    Traceback (most recent call last):
    tamis.base.errors.InputError: 'tfidf' is not a similarity of OpenSearch: use bm25(k1, b), ql(mu) or
    ql(smoothing=jelinek-mercer, lam=0.1)
    """
    call = parse(text)
    kinds: dict[str, type[Similarity]] = {"bm25": BM25, "ql": QueryLikelihood}
    if not isinstance(call, Call) or call.name not in kinds:
        raise _no_similarity(text)
    kind = kinds[call.name]
    names = [each.name for each in fields(kind)]
    options = [*zip(names, call.arguments, strict=False), *call.options]
    if len(call.arguments) > len(names) or len(dict(options)) < len(options):
        raise ExpressionError(f"{quoted(text)} has too many values", remedy=_takes(names))
    values: dict[str, Any] = {}
    for name, value in options:
        if name not in names:
            raise ExpressionError(f"{call.name} has no option {quoted(name)}", remedy=_takes(names))
        words = name in ("variant", "smoothing")
        if isinstance(value, bool) or not isinstance(value, str if words else int | float):
            raise ExpressionError(f"{name} of {call.name} cannot be {value}", remedy=_takes(names))
        values[name] = value if words else float(value)
    made = kind(**values)
    if made.variant != "lucene":
        raise _no_similarity(text)
    return made


def _no_similarity(text: str) -> InputError:
    remedy = "use bm25(k1, b), ql(mu) or ql(smoothing=jelinek-mercer, lam=0.1)"
    return InputError(f"{quoted(text)} is not a similarity of OpenSearch", remedy=remedy)


def _takes(names: Sequence[str]) -> str:
    return f"it takes {', '.join(names)}"


def expression(model: Similarity) -> str:
    """A similarity with all its parameters, as `similarity` reads it.

    >>> expression(BM25()), expression(QueryLikelihood(smoothing="jelinek-mercer", lam=0.5))
    ('bm25(k1=0.9, b=0.4)', 'ql(smoothing=jelinek-mercer, lam=0.5)')
    """
    if isinstance(model, BM25):
        return f"bm25(k1={float(model.k1)}, b={float(model.b)})"
    if model.smoothing == "dirichlet":
        return f"ql(mu={float(model.mu)})"
    return f"ql(smoothing={model.smoothing}, lam={float(model.lam)})"


def named_fields(similarities: Sequence[Similarity]) -> dict[Similarity, str]:
    """A field for each: the first is `contents` itself, the others are below it."""
    names: dict[Similarity, str] = {}
    for number, each in enumerate(dict.fromkeys(similarities)):
        names[each] = f"{CONTENTS}.{each.name}_{number + 1}" if number else CONTENTS
    return names


def new_meta(
    index: str,
    *,
    analyzer: str = "english",
    similarities: Sequence[Similarity] = (),
    shards: int = 1,
    replicas: int = 0,
) -> Meta:
    """What to make an index by; `InputError` for an analyzer that the cluster does not have.

    >>> new_meta("books", analyzer="french")
    Traceback (most recent call last):
    tamis.base.errors.InputError: OpenSearch does not have the analyzer 'french' as tamis has it: use english,
    plain
    """
    if analyzer not in _FILTERS:
        get_analyzer(analyzer)  # one that nobody has is another error
        problem = f"OpenSearch does not have the analyzer {analyzer!r} as tamis has it"
        raise InputError(problem, remedy=f"use {', '.join(_FILTERS)}")
    every = tuple(similarities) or DEFAULT_SIMILARITIES
    if not any(isinstance(each, BM25) for each in every):  # from which the collection's statistics are read
        problem = f"no bm25 among the similarities ({', '.join(map(expression, every))})"
        raise InputError(problem, remedy="add one, such as bm25(k1=0.9, b=0.4)")
    return Meta(index, analyzer, named_fields(every), shards, replicas)


# -- what is sent to make an index
# ------------------------------------------------------------------------------------------------------------


def body_of(meta: Meta) -> dict[str, Any]:
    """The body of the request that makes an index: its settings and its mapping, for writing it."""
    return {"settings": _settings(meta), "mappings": _mappings(meta)}


def _settings(meta: Meta) -> dict[str, Any]:
    return {
        "number_of_shards": meta.shards,
        "number_of_replicas": 0,  # until all is written: then they are copies of files
        "refresh_interval": "-1",  # the same
        "analysis": _analysis(meta.analyzer),
        "similarity": {_similarity_name(number): _similar(each) for number, each in enumerate(meta.fields)},
    }


def _analysis(analyzer: str) -> dict[str, Any]:
    return {
        "filter": {
            "tamis_possessive": {"type": "stemmer", "language": "possessive_english"},
            "tamis_stop": {"type": "stop", "stopwords": "_english_"},
        },
        "analyzer": {"tamis": {"type": "custom", "tokenizer": "standard", "filter": _FILTERS[analyzer]}},
    }


def _similarity_name(number: int) -> str:
    return f"tamis_{number + 1}"


def _similar(model: Similarity) -> dict[str, Any]:
    if isinstance(model, BM25):
        return {"type": "BM25", "k1": model.k1, "b": model.b}
    if model.smoothing == "dirichlet":
        return {"type": "LMDirichlet", "mu": model.mu}
    return {"type": "LMJelinekMercer", "lambda": model.lam}


def _mappings(meta: Meta) -> dict[str, Any]:
    def indexed(number: int) -> dict[str, Any]:
        similar = _similarity_name(number)
        # no positions: they take more than half of an index
        return {"type": "text", "analyzer": "tamis", "similarity": similar, "index_options": "freqs"}

    names = [*meta.fields.values()]
    below = {name.removeprefix(f"{CONTENTS}."): indexed(n) for n, name in enumerate(names) if n}
    stored = {"type": "text", "index": False, "copy_to": CONTENTS}  # its value is in the `_source`
    return {
        "dynamic": False,
        "_meta": {_OURS: _written(meta)},
        "properties": {
            ID: {"type": "keyword"},  # with doc values: ties are sorted by it
            TITLE: stored,
            TEXT: stored,
            METADATA: {"type": "object", "enabled": False},  # any JSON: one type a key would refuse documents
            CONTENTS: indexed(0) | {"fields": below},
        },
    }


# -- what is known of an index that is there
# ------------------------------------------------------------------------------------------------------------


def _written(meta: Meta) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": meta.version,
        "identity": meta.identity,
        "analyzer": meta.analyzer,
        # a list: a JSON object that the cluster returns may come in another order
        "similarities": [
            {"similarity": expression(each), "field": name} for each, name in meta.fields.items()
        ],
        "shards": meta.shards,
        "replicas": meta.replicas,
        "runs": meta.runs,
        "before": meta.before,
        "documents": meta.documents,
    }


def find_meta(connection: Connection) -> Meta | None:
    """What tamis has written about the index of a connection; None if there is no such index."""
    try:
        return read_meta(connection)
    except ClusterError as error:
        if error.kind == "index_not_found_exception":
            return None
        raise


def read_meta(connection: Connection) -> Meta:
    """What tamis has written about the index of a connection: an index of its own making, or one that an
    alias leads to."""
    place = connection.address
    answer = connection.request("GET", f"/{place.index}/_mapping")
    if len(answer) != 1:
        remedy = f"name one of them: {', '.join(sorted(answer))}"
        raise InputError(f"{place} leads to {len(answer)} indexes", remedy=remedy)
    ((index, mapping),) = answer.items()
    written = mapping.get("mappings", {}).get("_meta", {}).get(_OURS)
    if not isinstance(written, Mapping):
        remedy = "make one with `tamis index`, under another name"
        raise InputError(f"the index {place} was not made by tamis", remedy=remedy)
    if written.get("format") != FORMAT:
        problem = f"the index {place} has format {quoted(written.get('format'))}, and tamis reads {FORMAT}"
        raise InputError(problem, remedy=f"use the version that made it, {quoted(written.get('version'))}")
    try:
        return Meta(
            index=index,
            analyzer=str(written["analyzer"]),
            fields={similarity(each["similarity"]): str(each["field"]) for each in written["similarities"]},
            shards=int(written["shards"]),
            replicas=int(written["replicas"]),
            identity=str(written["identity"]),
            runs=int(written["runs"]),
            before=int(written["before"]),
            documents=None if written["documents"] is None else int(written["documents"]),
            version=str(written["version"]),
        )
    except (KeyError, TypeError, ValueError, InputError) as error:
        problem = f"what the index {place} says of itself is damaged ({type(error).__name__}: {error})"
        raise InputError(problem, remedy="make it again with `tamis index --overwrite`") from None


def write_meta(connection: Connection, meta: Meta) -> None:
    """Write down what is now known of an index."""
    body = {"_meta": {_OURS: _written(meta)}}
    connection.request("PUT", f"/{connection.address.index}/_mapping", body, patience=120)


def check_analysis(connection: Connection, analyzer: str) -> None:
    """Refuse a cluster whose terms are not those of the analyzer of this name."""
    body = {"analyzer": "tamis", "text": _SAMPLE}
    answer = connection.request("POST", f"/{connection.address.index}/_analyze", body)
    theirs = [each["token"] for each in answer["tokens"]]
    ours = get_analyzer(analyzer).tokens(_SAMPLE)
    if theirs != ours:
        pair = next((a, b) for a, b in zip([*theirs, ""], [*ours, ""], strict=False) if a != b)
        problem = f"{connection.address.nodes} makes other terms of a text: {pair[0]!r}, not {pair[1]!r}"
        raise ClusterError(problem, remedy="use a version of OpenSearch that tamis has been tried with")
