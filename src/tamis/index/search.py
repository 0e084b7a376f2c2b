"""Finding the k best documents for a weighted bag of terms: one plan, two ways to run it.

`plan` turns a model and a query into tables of contributions, one row per tf and one column per document
length, because a collection has few distinct values of either: the formula is evaluated a few thousand times
per query instead of once per posting, and the loops do not depend on the model. `exhaustive` (numpy) scores
every posting; the compiled kernel prunes. They return the same hits, and so does `untabled`, for a query of
so many terms that its tables would be larger than its postings.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError, MissingDependencyError
from tamis.base.interrupt import check, waiting
from tamis.index import hits
from tamis.index.compiled import numba_installed
from tamis.index.lengths import LENGTH_OF_NORM
from tamis.index.score import Collection, Model, Terms
from tamis.index.segment import Segment, Term

Backend = Literal["auto", "numba", "numpy"]
#: Under this many postings to score, numpy answers before numba is even imported.
SMALL_QUERY = 4_000_000
#: Tables of more contributions than this are made only where there are more postings still,
MOST_CELLS = 1 << 21
#: and of more than this never: they take four bytes each, and a few times that while they are made.
LARGEST_TABLES = 1 << 24


@dataclass(frozen=True, slots=True)
class Plan:
    """A query over one segment, ready to run."""

    terms: Sequence[Term]
    table: Array  # float32 (terms, tfs, codes)
    bounds: Array  # float32 (terms, tfs, norms): contributions at the blocks' competitive pairs
    norm_low: int
    codes: Array
    prior: Array | None  # float32 (codes,)
    overflow: Sequence[Array]  # contributions of postings whose tf is beyond a byte; empty if there are none

    @property
    def prunable(self) -> bool:
        """Pruning needs contributions that cannot be negative."""
        return bool(self.table.min() >= 0) and all(part.min(initial=0) >= 0 for part in self.overflow)


class Found(NamedTuple):
    """Documents found, best first: the segment of each, its number there, its score."""

    segments: Array
    documents: Array
    scores: Array


def statistics(
    segments: Sequence[Segment], weights: Mapping[str, float]
) -> tuple[list[list[Term | None]], Terms]:
    """Each query term's entry in every segment, and its statistics over all live documents."""
    entries = [[segment.term(term) for segment in segments] for term in weights]
    df = [sum(entry.df for entry in row if entry) for row in entries]
    cf = [sum(entry.cf for entry in row if entry) for row in entries]
    return entries, Terms(np.array(list(weights.values()), np.float64), np.array(df), np.array(cf))


def plan(
    segment: Segment, model: Model, entries: Sequence[Term | None], terms: Terms, collection: Collection
) -> Plan | None:
    """The tables for one segment, given the query terms' entries there; None where it holds none of them."""
    here = [i for i, entry in enumerate(entries) if entry is not None]
    if not here:
        return None
    present = [entry for entry in entries if entry is not None]
    stats = terms if len(here) == len(entries) else Terms(terms.weight[here], terms.df[here], terms.cf[here])
    norm_low, norm_high = segment.norm_range
    rounded = LENGTH_OF_NORM[norm_low : norm_high + 1]
    codes, lengths = (segment.codes, rounded) if model.lengths == "lucene" else segment.length_codes()
    tfs = np.arange(1, max([entry.max_tf for entry in present]) + 1)[:, None]
    columns = stats.column()
    table = _with_zero(model.contribution(tfs, lengths, columns, collection))
    bounds = table
    if model.lengths != "lucene":
        at_most = model.contribution(tfs, rounded, columns, collection)
        bounds = _with_zero(np.nextafter(at_most, np.float32(np.inf)))
    overflow: list[Array] = []
    if any(len(entry.overflow_tf) for entry in present):
        bounds = bounds.copy()
        for i, entry in enumerate(present):
            overflow.append(_overflow(segment, model, entry, stats.at(i), collection))
            bounds[i, -1] = np.maximum(bounds[i, -1], overflow[-1].max(initial=0))
    prior = model.prior(lengths, terms, collection)
    return Plan(present, table, bounds, norm_low, codes, prior, overflow)


def _overflow(segment: Segment, model: Model, entry: Term, term: Terms, collection: Collection) -> Array:
    """The contributions of a term's postings whose tf does not fit a byte."""
    if not len(entry.overflow_tf):
        return np.zeros(0, np.float32)
    documents, tfs = segment.decode(entry)
    at = entry.overflow_place - entry.first_posting
    return model.contribution(tfs[at], _lengths(segment, model)[documents[at]], term, collection)


def _lengths(segment: Segment, model: Model) -> Array:
    """Each document's length, as the model sees it."""
    return LENGTH_OF_NORM[segment.norms] if model.lengths == "lucene" else segment.lengths


def _worth_tables(segment: Segment, model: Model, entries: Sequence[Term | None]) -> bool:
    """Whether the tables of `plan` are small, or at least smaller than the postings that they serve."""
    present = [entry for entry in entries if entry is not None]
    norm_low, norm_high = segment.norm_range
    lengths = norm_high - norm_low + 1 if model.lengths == "lucene" else len(segment.length_codes()[1])
    cells = len(present) * max([entry.max_tf for entry in present], default=0) * lengths
    return cells <= max(MOST_CELLS, min(LARGEST_TABLES, sum([entry.postings for entry in present])))


def _with_zero(contributions: Array) -> Array:
    """A row for tf = 0 in front, so that tf is the index."""
    table = np.zeros((contributions.shape[0], contributions.shape[1] + 1, contributions.shape[2]), np.float32)
    table[:, 1:] = contributions
    return table


def exhaustive(segment: Segment, plan: Plan, k: int, allowed: Array | None) -> tuple[Array, Array]:
    """The k best documents and their scores, best first, by scoring every posting."""
    scores = np.zeros(len(segment), dtype=np.float64)
    for i, term in enumerate(plan.terms):
        check()
        documents, tfs = segment.decode(term)
        contributions = plan.table[i, np.minimum(tfs, term.max_tf), plan.codes[documents]]
        if plan.overflow:
            contributions[term.overflow_place - term.first_posting] = plan.overflow[i]
        scores[documents] += contributions
    documents = _found(scores, allowed)
    prior = None if plan.prior is None else plan.prior[plan.codes[documents]]
    return best_of(segment, documents, scores[documents], prior, k)


def untabled(
    segment: Segment,
    model: Model,
    entries: Sequence[Term | None],
    terms: Terms,
    collection: Collection,
    k: int,
    allowed: Array | None,
) -> tuple[Array, Array]:
    """The same with the formula for every posting."""
    lengths = _lengths(segment, model)
    scores = np.zeros(len(segment), dtype=np.float64)
    for i, entry in enumerate(entries):
        if entry is not None:
            check()
            documents, tfs = segment.decode(entry)
            scores[documents] += model.contribution(tfs, lengths[documents], terms.at(i), collection)
    documents = _found(scores, allowed)
    prior = model.prior(lengths[documents], terms, collection)
    return best_of(segment, documents, scores[documents], prior, k)


def _found(scores: Array, allowed: Array | None) -> Array:
    found = scores != 0
    if allowed is not None:
        found &= allowed
    return np.flatnonzero(found)


def best_of(
    segment: Segment, documents: Array, totals: Array, prior: Array | None, k: int
) -> tuple[Array, Array]:
    """The k best of some documents of a segment, and their scores, best first."""
    if prior is not None:
        totals += prior
    best = hits.best(hits.keys(totals.astype(np.float32), segment.store.rank(documents)), k)
    best_scores, ranks = hits.unpack(best)
    return segment.store.at_rank(ranks), best_scores


def pruned(segment: Segment, plan: Plan, k: int, allowed: Array | None) -> tuple[Array, Array]:
    """The same from the compiled kernel."""
    from tamis.index.kernel import WINDOW, top_k

    try:
        accumulator = _scratch.accumulator
    except AttributeError:
        accumulator = _scratch.accumulator = np.zeros(WINDOW)

    entries = np.zeros((len(plan.terms), 6), dtype=np.int64)
    entries[:, :4] = [(t.first_block, t.last_block, t.first_posting, t.postings) for t in plan.terms]
    places, scores = _NO_PLACES, _NO_SCORES
    if plan.overflow:
        places = np.concatenate([term.overflow_place for term in plan.terms])
        scores = np.concatenate(plan.overflow)
        entries[:, 5] = np.cumsum([len(part) for part in plan.overflow])
        entries[1:, 4] = entries[:-1, 5]
    keys = top_k(
        k,
        accumulator,
        entries,
        plan.table,
        plan.bounds,
        plan.norm_low,
        _NO_SCORES if plan.prior is None else plan.prior,
        plan.codes,
        _ALL if allowed is None else allowed,
        segment.store.id_rank,
        places,
        scores,
        waiting(),
        *segment.posting_columns,
    )
    check()  # the kernel may have given up
    keys.sort()
    best_scores, ranks = hits.unpack(keys)
    return segment.store.at_rank(ranks), best_scores


_scratch = threading.local()  # the kernel leaves it zero, so each thread makes it once
_ALL = np.zeros(0, dtype=bool)
_NO_PLACES = np.zeros(0, dtype=np.int64)
_NO_SCORES = np.zeros(0, dtype=np.float32)


def search(
    segments: Sequence[Segment],
    model: Model,
    weights: Mapping[str, float],
    k: int,
    collection: Collection,
    *,
    allowed: Sequence[Array | None] | None = None,
    backend: Backend = "auto",
) -> Found:
    """The k best documents, best first; `allowed` masks each segment's documents."""
    for segment in segments:
        segment.check_sizes()
    entries, terms = statistics(segments, weights)
    if not (terms.df * terms.weight).all():  # an unknown term, or a weight of zero, adds nothing
        known = {t: w for (t, w), df in zip(weights.items(), terms.df.tolist(), strict=True) if df and w}
        entries, terms = statistics(segments, known)
    parts: list[Found] = []
    for number, segment in enumerate(segments):
        check()
        here = [row[number] for row in entries]
        mask, most = segment.live if allowed is None else allowed[number], min(k, len(segment))
        if not _worth_tables(segment, model, here):
            documents, scores = untabled(segment, model, here, terms, collection, most, mask)
        else:
            planned = plan(segment, model, here, terms, collection)
            if planned is None:
                continue
            way = pruned if planned.prunable and use_numba(backend, planned) else exhaustive
            documents, scores = way(segment, planned, most, mask)
        parts.append(Found(np.full(len(documents), number), documents, scores))
    return parts[0] if len(parts) == 1 else merged(segments, parts, k)


def merged(segments: Sequence[Segment], parts: Sequence[Found], k: int) -> Found:
    """One list from the segments' lists; across segments the ids themselves break ties."""
    if not parts:
        return Found(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))
    joined = Found(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    ids = [
        i
        for part in parts
        if len(part.segments)
        for i in segments[part.segments[0]].store.ids(part.documents)
    ]
    scores_and_ids = list(zip((-joined.scores).tolist(), ids, strict=True))
    order = sorted(range(len(ids)), key=scores_and_ids.__getitem__)[:k]
    return Found(*(column[order] for column in joined))


def ids_of(segments: Sequence[Segment], found: Found) -> list[str]:
    """The ids of the hits."""
    if len(segments) == 1:
        return segments[0].store.ids(found.documents)
    ids: list[str] = [""] * len(found.documents)
    for number, segment in enumerate(segments):
        places = np.flatnonzero(found.segments == number)
        for place, doc_id in zip(places.tolist(), segment.store.ids(found.documents[places]), strict=True):
            ids[place] = doc_id
    return ids


def collection_of(segments: Sequence[Segment]) -> Collection:
    return Collection(sum(s.not_empty for s in segments), sum(s.tokens for s in segments))


def use_numba(backend: Backend, planned: Plan) -> bool:
    """numpy while that is quicker than loading the compiled kernel, numba from then on."""
    if backend != "auto":
        if backend == "numba" and not numba_installed():
            raise MissingDependencyError(
                "numba is not installed", remedy="pip install numba, or use backend='numpy'"
            )
        if backend not in ("numba", "numpy"):
            raise InputError(f"no backend {backend!r}", remedy="use auto, numba or numpy")
        return backend == "numba"
    if "tamis.index.kernel" in sys.modules:
        return True
    return sum(term.postings for term in planned.terms) > SMALL_QUERY and numba_installed()
