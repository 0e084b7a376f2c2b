"""Documents longer than the model: a pointwise stage scores their passages, and a document's score is
computed from its passages' scores.

    FirstP  s_1      MaxP  max s_i      SumP  sum s_i      AvgP  mean s_i      KMaxP  mean of the k highest

Dai & Callan 2019; AvgP and the limit of 30 passages are from Zhang, Yates & Lin 2021. A document of one
passage gets the same score as from the pointwise stage itself.

Passages of all documents and queries are scored together, in blocks of a few thousand, and a score does not
depend on the rest of the batch. Outside the current block, only offsets and margins are held in memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import fsum
from typing import ClassVar, NamedTuple

import numpy as np

from tamis.base.arrays import Array
from tamis.base.documents import Document
from tamis.base.errors import InputError
from tamis.core.ranking import Ranking, ScoreKind, Span, best_first, each_document
from tamis.core.stage import Role, Stage, stage
from tamis.models.templates import Inputs, Tokenised, Truncation
from tamis.rank.choose import AMONG, Choice, Lexical, Unread
from tamis.rank.mono import Mono
from tamis.rank.reading import Cutting, Read, Reader, Title, Unit, Wanted
from tamis.rank.reranker import Reranker, to_score
from tamis.text.segment import Keep, Passage

PASSAGES = 30  # of a document that are read

_TOGETHER = 4096  # passages that are scored together
_DOCUMENTS = 64  # documents that are cut together


# -- formulae
# ------------------------------------------------------------------------------------------------------------


def first_p(scores: Array) -> float:
    """The first passage's score.

    >>> first_p(np.array([0.5, 0.9]))
    0.5
    """
    return float(scores[0])


def max_p(scores: Array) -> float:
    """The best passage's score.

    >>> max_p(np.array([0.5, 0.9]))
    0.9
    """
    return float(scores.max())


def sum_p(scores: Array) -> float:
    """The sum of the passages' scores; long documents have more of them.

    >>> sum_p(np.array([0.1] * 10))
    1.0
    """
    return fsum(scores.tolist())  # exact, so it is the same in any order


def avg_p(scores: Array) -> float:
    """The mean of the passages' scores, over this document's passages only.

    >>> avg_p(np.array([0.5, 0.25]))
    0.375
    """
    return sum_p(scores) / len(scores)


def k_max_p(scores: Array, k: int) -> float:
    """The mean of the k highest of the passages' scores, or of all if there are fewer.

    >>> k_max_p(np.array([0.5, 0.1, 0.25]), 2), k_max_p(np.array([0.5]), 2)
    (0.375, 0.5)
    """
    return avg_p(np.sort(scores)[::-1][:k])


# -- from passages to scores
# ------------------------------------------------------------------------------------------------------------


class ScoredPassages(NamedTuple):
    """A document's passages and their margins."""

    passages: Sequence[Passage]
    margins: Array


class PassageReranker(Reranker):
    """A reranker that reads documents passage by passage, with the model of a pointwise stage."""

    def __init__(self, stage: Mono, cutting: Cutting, evidence: int, choice: Choice | None = None) -> None:
        name = self.name
        if not isinstance(stage, Mono):
            raise InputError(f"{name} of {stage!r}", remedy=f"give a pointwise stage, as in {name}(mono)")
        if evidence < 0:
            raise InputError(f"{evidence} passages as evidence", remedy="use a whole number of at least 0")
        super().__init__(stage.scorer, stage.cache)
        self.stage, self.cutting, self.evidence, self.choice = stage, cutting, evidence, choice
        self._most = cutting.passages if choice is None else choice.passages  # that the model reads
        # the number of passages is known when a document is cut, but it is at least one
        of_one = max(self._most or 0, self.choosing(1))
        self.counts = "least" if self._most is None else "most" if of_one > 1 else "exact"

    @property
    def unit(self) -> Unit:
        return self.cutting.unit

    @property
    def window(self) -> int | None:
        return self.cutting.window

    @property
    def stride(self) -> int | None:
        return self.cutting.stride

    @property
    def title(self) -> Title:
        return self.cutting.title

    @property
    def passages(self) -> int | None:
        return self._most

    @property
    def keep(self) -> Keep:
        return self.cutting.keep

    @property
    def seed(self) -> int:
        return self.cutting.seed

    def inferences(self, candidates: int) -> int:
        """The largest number of inputs for a query with this many candidates. The number of passages of a
        document is not known in advance; if it has no limit, this is the smallest number."""
        return candidates * (self._most or 1)

    def choosing(self, candidates: int) -> int:
        """The largest number of inputs for the model that chooses passages."""
        return candidates * self.choice.among if self.choice and self.choice.model else 0

    @property
    def parts(self) -> Sequence[Stage]:
        return () if self.choice is None or self.choice.model is None else (self.choice.model,)

    @property
    def resources(self) -> str:
        return "\n".join([super().resources, *(part.resources for part in self.parts)])

    def prepare(self) -> None:
        super().prepare()
        self.reader.prepare()
        for part in self.parts:
            part.prepare()

    @cached_property
    def reader(self) -> Reader:
        """The reader that cuts the documents; it needs the tokenizer."""
        longest = Tokenised.of([[0] * self.stage.query_limit])
        return Reader(self.cutting, self.scorer.tokenizer, self._room(longest))

    def _room(self, query: Tokenised) -> int:
        """The number of tokens of a text that the model reads beside a query."""
        _, cut = self.stage.inputs_of(query, Tokenised.of([[0] * self.stage.limit]))
        return cut.text_tokens - cut.text_tokens_lost

    def _wanted(self, ranking: Ranking) -> Wanted | None:
        """Which passages of a ranking's documents are read; None for all."""
        return None

    def keys(self, ranking: Ranking, inputs: Inputs) -> list[bytes]:
        # the stage's own keys, so that its model does not read a passage again, whichever stage read it
        return self.stage.keys(ranking, inputs)

    def _scored(self, rankings: Sequence[Ranking]) -> list[list[ScoredPassages]]:
        """The documents of each ranking, in their order, with the margins of their passages."""
        queries = self.scorer.tokenizer.encode([ranking.query.text for ranking in rankings])
        scored: list[list[ScoredPassages]] = [[] for _ in rankings]
        for cut_up in self._batches(rankings, queries):
            numbers = list(cut_up)
            together = self._chosen(cut_up, [(rankings[number], len(scored[number])) for number in numbers])
            inputs, cuts = [], []
            for number, reads in together.items():
                texts = Tokenised.join([read.tokens for read in reads])
                made, cut = self.stage.inputs_of(queries.take([number]), texts)
                inputs.append(made)
                # the query is counted only with the first of its documents
                cuts.append(_of_documents(_without_query(cut) if scored[number] else cut, reads))
            found = self.margins([rankings[number] for number in numbers], inputs, cuts)
            for number, margins in zip(numbers, found, strict=True):
                offsets = np.cumsum([len(read.passages) for read in together[number]])
                each = zip(together[number], np.split(margins, offsets[:-1]), strict=True)
                scored[number] += [ScoredPassages(read.passages, own) for read, own in each]
        return scored

    def _batches(self, rankings: Sequence[Ranking], queries: Tokenised) -> Iterator[dict[int, list[Read]]]:
        """Documents by the number of their ranking, in blocks of a few thousand passages."""
        together: dict[int, list[Read]] = {}
        count = 0
        for number, ranking in enumerate(rankings):
            wanted, room = self._wanted(ranking), self._room(queries.take([number]))
            for start in range(0, len(ranking), _DOCUMENTS):
                reads = self.reader.read(ranking, ranking.ids[start : start + _DOCUMENTS], wanted, room)
                together.setdefault(number, []).extend(reads)
                count += sum(len(read.passages) for read in reads)
                if count >= _TOGETHER:
                    yield together
                    together, count = {}, 0
        if together:
            yield together

    def _chosen(
        self, together: dict[int, list[Read]], places: Sequence[tuple[Ranking, int]]
    ) -> dict[int, list[Read]]:
        """The passages that are read of the documents at these positions of their rankings."""
        if self.choice is None:
            return together
        unread = [
            Unread(ranking, ranking.ids[start : start + len(reads)], reads)
            for (ranking, start), reads in zip(places, together.values(), strict=True)
        ]
        return dict(zip(together, self.choice.made(unread, self.reader), strict=True))

    def _evident(self, ranking: Ranking, scored: Mapping[str, ScoredPassages], depth: int | None) -> Ranking:
        """The ranking with the best passages of the candidates within `depth`."""
        looked_at = ranking.ids[:depth] if self.evidence else ()
        pairs = zip(looked_at, self._read(ranking, looked_at), strict=True)
        return replace(
            ranking, evidence={doc_id: self._spans(scored[doc_id], document) for doc_id, document in pairs}
        )

    def _read(self, ranking: Ranking, ids: Sequence[str]) -> Iterable[Document | None]:
        """The documents, if their texts are needed to locate the passages."""
        if self.reader.in_text or ranking.texts is None:
            return [None] * len(ids)
        return each_document(ranking.texts, ids)

    def _spans(self, scored: ScoredPassages, document: Document | None) -> tuple[Span, ...]:
        """The best passages, best first, without those that overlap a better one and so add little."""
        best: list[int] = []
        for number in np.argsort(-scored.margins, kind="stable").tolist():
            if len(best) == self.evidence:
                break
            start, stop = scored.passages[number]
            taken = (scored.passages[each] for each in best)
            if all(stop <= other.start or other.stop <= start for other in taken):
                best.append(number)
        places: Sequence[Passage] = [scored.passages[number] for number in best]
        if document is not None:
            places = self.reader.characters(document, places)
        scores = to_score(scored.margins[best], self.stage.kind).tolist()
        return tuple(Span(*place, score) for place, score in zip(places, scores, strict=True))


def _without_query(cut: Truncation) -> Truncation:
    return replace(cut, queries=0, queries_cut=0, query_tokens=0, query_tokens_lost=0)


def _of_documents(cut: Truncation, reads: Sequence[Read]) -> Truncation:
    """The truncation of the documents, instead of that of their passages, which are cut to fit. Text outside
    all passages may be counted in words; each word is at least one token."""
    lost = sum(read.lost for read in reads)
    return replace(
        cut,
        texts=len(reads),
        texts_cut=sum(read.lost > 0 for read in reads),
        text_tokens=cut.text_tokens + lost,
        text_tokens_lost=cut.text_tokens_lost + lost,
        at_least=cut.at_least or lost > 0,
    )


# -- the stages
# ------------------------------------------------------------------------------------------------------------


class PassageStage(PassageReranker):
    """Sorts documents by a score computed from their passages' scores, in the form in which the pointwise
    stage shows them: probabilities as in the papers, or the logits of `mono(score=logit)`. `Cutting`
    describes the options; `evidence` is the number of best passages that the ranking has for each document.

    With `choose`, a smaller pointwise stage or a model of the first stage, only the `passages` that it scores
    highest are read, and the score is computed from these. It scores `among` passages, by default 30."""

    of_one: ClassVar[bool] = False  # whether the score is that of one of the passages

    def __init__(
        self,
        stage: Mono,
        choose: Mono | Lexical | None = None,
        window: int | None = None,
        stride: int | None = None,
        unit: Unit = "words",
        title: Title = True,
        passages: int | None = PASSAGES,
        among: int = AMONG,
        keep: Keep = "first",
        seed: int = 0,
        evidence: int = 3,
    ) -> None:
        name = self.name
        if choose is None and among != AMONG:
            raise InputError(f"{name} with among={among}", remedy="say what chooses, as in choose=bm25")
        choice = None if choose is None else Choice(choose, passages, among, name)
        looked_at = passages if choice is None else among
        super().__init__(stage, Cutting(unit, window, stride, title, looked_at, keep, seed), evidence, choice)

    @abstractmethod
    def aggregate(self, scores: Array) -> float:
        """A document's score, from the scores of its passages."""

    @property
    def kind(self) -> ScoreKind:
        """The kind of the scores: that of the pointwise stage, unless they are sums."""
        return self.stage.kind

    @property
    def choose(self) -> Mono | Lexical | None:
        return None if self.choice is None else self.choice.by

    @property
    def among(self) -> int:
        return AMONG if self.choice is None else self.choice.among

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        found = zip(rankings, self._scored(rankings), strict=True)
        return [self._aggregated(ranking, scored, depth) for ranking, scored in found]

    def _aggregated(self, ranking: Ranking, scored: Sequence[ScoredPassages], depth: int | None) -> Ranking:
        scores = np.array([self.aggregate(to_score(each.margins, self.stage.kind)) for each in scored])
        # probabilities can be equal although their margins differ
        order_by = np.array([self.aggregate(each.margins) for each in scored]) if self.of_one else scores
        best = ranking.reordered(best_first(order_by, ranking.ids), scores, self.kind)
        return self._evident(best, dict(zip(ranking.ids, scored, strict=True)), depth)


@stage("firstp", role=Role.ORDERS)
class FirstP(PassageStage):
    """The score of a document's first passage, the only one that is read.

    >>> FirstP(Mono("models/my-model"), window=100)
    firstp(mono(model="models/my-model"), window=100)
    """

    of_one = True

    def __init__(
        self,
        stage: Mono,
        window: int | None = None,
        stride: int | None = None,
        unit: Unit = "words",
        title: Title = True,
        evidence: int = 3,
    ) -> None:
        super().__init__(stage, None, window, stride, unit, title, passages=1, evidence=evidence)

    def aggregate(self, scores: Array) -> float:
        return first_p(scores)


@stage("maxp", role=Role.ORDERS)
class MaxP(PassageStage):
    """The score of a document's best passage.

    >>> MaxP(Mono("models/my-model"), window=150, stride=75)
    maxp(mono(model="models/my-model"), window=150, stride=75)
    >>> from tamis import BM25
    >>> MaxP(Mono("models/my-model"), choose=BM25(), passages=3)
    maxp(mono(model="models/my-model"), choose=bm25, passages=3)
    """

    of_one = True

    def aggregate(self, scores: Array) -> float:
        return max_p(scores)


@stage("sump", role=Role.ORDERS)
class SumP(PassageStage):
    """The sum of the scores of a document's passages.

    >>> SumP(Mono("models/my-model"), unit="tokens")
    sump(mono(model="models/my-model"), unit=tokens)
    """

    kind = ScoreKind.COMBINED

    def aggregate(self, scores: Array) -> float:
        return sum_p(scores)


@stage("avgp", role=Role.ORDERS)
class AvgP(PassageStage):
    """The mean of the scores of a document's passages.

    >>> AvgP(Mono("models/my-model"), passages=None)
    avgp(mono(model="models/my-model"), passages=none)
    """

    def aggregate(self, scores: Array) -> float:
        return avg_p(scores)


@stage("kmaxp", role=Role.ORDERS)
class KMaxP(PassageStage):
    """The mean of the k highest of the scores of a document's passages.

    >>> KMaxP(Mono("models/my-model"), k=2)
    kmaxp(mono(model="models/my-model"), k=2)
    """

    def __init__(
        self,
        stage: Mono,
        k: int = 3,
        choose: Mono | Lexical | None = None,
        window: int | None = None,
        stride: int | None = None,
        unit: Unit = "words",
        title: Title = True,
        passages: int | None = PASSAGES,
        among: int = AMONG,
        keep: Keep = "first",
        seed: int = 0,
        evidence: int = 3,
    ) -> None:
        if k < 1:
            raise InputError(f"the {k} best passages", remedy="use a k of 1 or more")
        super().__init__(stage, choose, window, stride, unit, title, passages, among, keep, seed, evidence)
        self.k = k

    def aggregate(self, scores: Array) -> float:
        return k_max_p(scores, self.k)
