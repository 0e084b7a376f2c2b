"""What pointwise and pairwise rerankers share: the model, the cache, the tally, and the ranking of candidates
that come from elsewhere."""

from __future__ import annotations

import itertools
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tamis.base.arrays import Array
from tamis.base.documents import Document, Query
from tamis.base.errors import InputError
from tamis.core.language import Call, Node, Value
from tamis.core.ranking import Ranking, ScoreKind, Span
from tamis.core.stage import Stage
from tamis.infer.score_cache import ScoreCache, cached, pair_keys, prefix
from tamis.infer.scorer import CrossEncoder, Tally
from tamis.models.templates import Inputs, Truncation
from tamis.rank.given_run import placed

Candidate = str | Mapping[str, Any] | Document
_TEXT, _ID = ("text", "contents", "content", "passage", "body"), ("id", "_id", "docid", "doc_id")


Ledger = list[tuple[Query, Tally]]
_LEDGER: ContextVar[Ledger | None] = ContextVar("_LEDGER", default=None)


@contextmanager
def ledger() -> Iterator[Ledger]:
    """What rerankers do in this thread meanwhile, query by query: a reranker's own tally is the sum over all
    queries, and a stage may have several rerankers inside.

    >>> with ledger() as work:
    ...     pass
    >>> work
    []
    """
    work: Ledger = []
    before = _LEDGER.set(work)
    try:
        yield work
    finally:
        _LEDGER.reset(before)


def check_limits(query_limit: int, limit: int) -> None:
    """Refuse limits that leave a model nothing to read; how much it needs is known when it is loaded.

    >>> check_limits(query_limit=0, limit=512)
    Traceback (most recent call last):
    tamis.base.errors.InputError: a query_limit of 0 tokens: use 1 or more
    """
    for name, tokens in (("query_limit", query_limit), ("limit", limit)):
        if tokens < 1:
            raise InputError(f"a {name} of {tokens} tokens", remedy="use 1 or more")


class Ranked(NamedTuple):
    """A candidate in its place: `position` is where it stood in the caller's list, `item` the caller's own
    object, untouched. `evidence` is the best passages, of a stage that reads passages."""

    rank: int
    id: str
    score: float
    text: str
    position: int
    item: Candidate
    evidence: tuple[Span, ...] = ()


class Reranker(Stage):
    """A stage that reads its candidates' texts with a cross-encoder."""

    queries_at_once = 8
    #: What `inferences` says of what a query will take: just that, or the most or the least, where the number
    #: is known only afterwards.
    counts: Literal["exact", "most", "least"] = "exact"

    def __init__(self, encoder: CrossEncoder, cache: str | Path | ScoreCache | None = None) -> None:
        self.encoder = encoder
        self.cache = ScoreCache(cache) if isinstance(cache, str | Path) else cache
        self.tally = Tally()
        self._tally_lock = threading.Lock()

    @property
    def resources(self) -> str:
        return self.encoder.fingerprint

    def prepare(self) -> None:
        """Load the model and the tokenizer, and hear of a model that does not take what the stage makes
        before anything is searched for."""
        _ = self.encoder.tokenizer, self.encoder.engine
        self._made([placed(Query("", ""), [])])

    @property
    def description(self) -> str:
        """The runtime, the device and the precision."""
        return self.encoder.description

    @abstractmethod
    def inferences(self, candidates: int) -> int:
        """How many inputs a query with so many candidates takes."""

    def choosing(self, candidates: int) -> int:
        """How many inputs its parts take first, to choose what its own model reads."""
        return 0

    def rank(self, query: str, candidates: Iterable[Candidate], top_k: int | None = None) -> list[Ranked]:
        """Rank candidates from elsewhere: texts, dictionaries with a `text` (and perhaps `id`, `title`), or
        documents. Nothing of the caller's is changed; candidates that tie keep their order."""
        if isinstance(candidates, str | Mapping):
            raise InputError("one candidate where several are wanted", remedy="give a list")
        if top_k is not None and top_k < 0:
            raise InputError(f"cannot keep {top_k} candidates", remedy="use a top_k of 0 or more")
        items = list(candidates)  # of a generator there is one look, and a table's rows have names for places
        documents = [_document(item, place) for place, item in enumerate(items)]
        given = placed(Query("", query), documents)
        found = self.apply([given])[0]
        ranked = []
        for hit in found.head(len(documents) if top_k is None else top_k):
            place = int(hit.id)
            document, item = documents[place], items[place]
            spans = tuple(found.evidence.get(hit.id, ()))
            ranked.append(Ranked(hit.rank, document.id, hit.score, document.text, place, item, spans))
        return ranked

    def _made(self, rankings: Sequence[Ranking]) -> object:
        """The inputs for some rankings; nothing of a stage that looks into texts to make them."""
        return None

    def _margins(
        self, rankings: Sequence[Ranking], inputs: Sequence[Inputs], cuts: Sequence[Truncation]
    ) -> list[Array]:
        """The margins of several queries' inputs, scored together; `cuts` is what was cut for each query."""
        together = Inputs.join(inputs)
        scored = np.full(len(together), self.cache is None)
        if self.cache is None:
            margins = self.encoder.margins(together)
        else:
            keys = [key for each in zip(rankings, inputs, strict=True) for key in self._keys(*each)]

            def score(missing: Array) -> Array:
                scored[missing] = True
                return self.encoder.margins(together.take(missing))

            margins = self._cached(self.cache, keys, score)
        offsets = np.cumsum([len(each) for each in inputs])[:-1]
        tallies = [
            Tally(int(own.sum()), int((~own).sum()), cut)
            for own, cut in zip(np.split(scored, offsets), cuts, strict=True)
        ]
        self._count(rankings, tallies)
        return np.split(margins, offsets)

    def _cached(self, cache: ScoreCache, keys: Sequence[bytes], score: Callable[[Array], Array]) -> Array:
        """What the model says of the inputs with these keys, of which `score` scores those not known."""
        return cached(cache, keys, score)

    def _count(self, rankings: Sequence[Ranking], tallies: Sequence[Tally]) -> None:
        with self._tally_lock:
            self.tally = sum(tallies, start=self.tally)
        if (work := _LEDGER.get()) is not None:
            work.extend((ranking.query, tally) for ranking, tally in zip(rankings, tallies, strict=True))

    def _keys(self, ranking: Ranking, inputs: Inputs) -> list[bytes]:
        """By what the model reads, tokens and segments: whatever changes a score changes one of these, or the
        model's fingerprint."""
        own = prefix(self.encoder.fingerprint, type(self).__name__, "")
        offsets = inputs.offsets.tolist()
        read = [
            inputs.ids[start:stop].tobytes() + inputs.segments[start:stop].tobytes()
            for start, stop in itertools.pairwise(offsets)
        ]
        return pair_keys(own, ranking.query.text, read)

    def _call(self, name: str, options: Sequence[tuple[str, Node | Value, Value]]) -> Call:
        """The stage in the pipeline language: options that differ from their defaults."""
        given = tuple((key, value) for key, value, default in options if value != default)
        return Call(name, (), given)


def _document(item: Candidate, place: int) -> Document:
    if isinstance(item, Document):
        return item
    if isinstance(item, str):
        return Document(str(place), item)
    if not isinstance(item, Mapping):
        raise InputError(
            f"candidate {place} is {type(item).__name__}",
            remedy="give a str, a dict with a text, or a Document",
        )
    text = next((item[name] for name in _TEXT if item.get(name) is not None), None)
    if not isinstance(text, str):
        raise InputError(f"candidate {place} has no text", remedy="give it a 'text' that is a str")
    doc_id = next((item[name] for name in _ID if item.get(name) is not None), place)
    title = item.get("title")
    if not isinstance(title, str | None):
        problem = f"the title of candidate {place} is {type(title).__name__}"
        raise InputError(problem, remedy="give a str, or none")
    return Document(str(doc_id), text, title or "")


def shown(margins: Array, kind: ScoreKind) -> Array:
    """Margins as what a caller asked to see; all three forms are in the same order.

    >>> [shown(np.array([0.0]), kind).tolist() for kind in (ScoreKind.PROBABILITY, ScoreKind.LOGIT)]
    [[0.5], [0.0]]
    """
    from tamis.rank.aggregate import probability

    exact = margins.astype(np.float64)
    if kind == ScoreKind.PROBABILITY:
        return probability(exact)
    if kind == ScoreKind.LOG_PROBABILITY:
        return -np.logaddexp(0.0, -exact)
    return exact
