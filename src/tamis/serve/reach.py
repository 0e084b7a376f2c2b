"""How far into its texts the last model of a request has read: the rest was cut to fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tamis.base.documents import Document
from tamis.core.ranking import Ranking
from tamis.rank.reranker import Reranker
from tamis.serve.work import Outcome

_CHARACTERS = 12  # of a token, at most, in most texts
_LOOKED_AT = 100  # documents of an answer: each is made into tokens once more


class Reach(NamedTuple):
    """The last stage with a model, and which candidates it has read. Of texts that had to be cut `models` are
    asked how many tokens they have read."""

    stage: str
    ids: frozenset[str]
    models: tuple[Reranker, ...]
    query: str

    def of(self, document: Document, doc_id: str) -> int | None:
        """The characters of a document's text from its start that were read; None where that is not known."""
        if doc_id not in self.ids:
            return None
        ends = [_read(model, self.query, document) for model in self.models]
        return max(ends, default=len(document.text))


def reach(outcome: Outcome) -> Reach | None:
    """What the last model has read, where it reads texts from their start; None without such a model."""
    done = outcome.done
    place = next((at for at in reversed(range(len(done))) if done[at].step.models), None)
    if place is None:
        return None
    last, before = done[place], done[place - 1].ranking if place else outcome.incoming
    if before is None:
        return None
    models = tuple(each for each in last.step.models if isinstance(each, Reranker))
    if len(models) < len(last.step.models) or not all(map(_from_the_start, models)):
        return None
    ids = frozenset(doc_id for model in models for doc_id in _first(model.best(before)))
    cut = last.tally.truncation.texts_cut
    return Reach(last.step.name, ids, models if cut else (), last.ranking.query.text)


def _from_the_start(model: Reranker) -> bool:
    """Several texts of a list share an input, and `cut=best` chooses a part by the query."""
    return model.cut == "start" and model.scorer.architecture.name != "listwise"


def _first(ranking: Ranking) -> Sequence[str]:
    return ranking.ids[:_LOOKED_AT]


def _read(model: Reranker, query: str, document: Document) -> int:
    scorer = model.scorer
    query_tokens = len(scorer.tokenizer.encode([query]).ids)
    room = scorer.architecture.room(query_tokens, scorer.reading(model.query_limit, model.limit))
    contents, before = document.contents, len(document.contents) - len(document.text)
    if len(contents) <= room:
        return len(document.text)  # a token has one character at least
    read = contents[: room * _CHARACTERS]
    ends = _ends(model, read)
    if len(ends) <= room and len(read) < len(contents):
        ends = _ends(model, contents)
    return len(document.text) if len(ends) <= room else max(0, ends[room - 1] - before)


def _ends(model: Reranker, text: str) -> Sequence[int]:
    """Where each token of a text ends."""
    _, places = model.scorer.tokenizer.places(text)
    return [end for _, end in places]
