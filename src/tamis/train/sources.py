"""The data that a recipe names, as one stream of examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from tamis.documents import Document
from tamis.errors import InputError
from tamis.formats import read_corpus, read_qrels, read_queries
from tamis.models.tokenizer import Tokenizer
from tamis.ranking import Run
from tamis.retrieve.index import Index
from tamis.train import examples
from tamis.train.examples import Negatives, Stream
from tamis.train.recipe import Data, Recipe
from tamis.train.recipe import Examples as Drawn
from tamis.train.sets import Report, TrainingSet


@dataclass(frozen=True, slots=True)
class Examples:
    """A stream, the fingerprint of all that it draws from, and what was left out of each set."""

    stream: Stream
    fingerprint: str
    reports: Sequence[Report] = ()

    @classmethod
    def of(cls, data: TrainingSet, recipe: Recipe) -> Examples:
        """What a recipe draws from one set."""
        stream = _eased(_stream(data, recipe.examples, recipe), recipe)
        return cls(stream, data.fingerprint, [data.report])


def open_examples(
    recipe: Recipe, tokenizer: Tokenizer, progress: Callable[[int], object] | None = None
) -> Examples:
    """Read and tokenise a recipe's data: one after the other, or mixed. `progress` is told how many more
    queries have been read."""
    sets = [open_set(data, recipe.examples, tokenizer, progress) for data in recipe.data]
    streams = [_stream(data, recipe.examples, recipe) for data in sets]
    if len(streams) == 1:
        stream = streams[0]
    elif recipe.data[0].steps is not None:
        # a chain counts in batches, a recipe in steps
        batches = [each.steps and each.steps * recipe.optimiser.accumulate for each in recipe.data]
        stream = examples.chain(list(zip(streams, batches, strict=True)))
    else:
        weights = [each.weight for each in recipe.data]
        stream = examples.mixed(list(zip(streams, weights, strict=True)))
    fingerprint = xxhash.xxh3_128_hexdigest(" ".join(data.fingerprint for data in sets).encode())
    return Examples(_eased(stream, recipe), fingerprint, [data.report for data in sets])


def open_set(
    data: Data, drawn: Drawn, tokenizer: Tokenizer, progress: Callable[[int], object] | None = None
) -> TrainingSet:
    """A recipe's training set: opened, or made of its files."""
    if data.set is not None:
        return TrainingSet.open(data.set)
    assert data.queries is not None
    queries = read_queries(data.queries)
    return examples.training_set(
        queries,
        {} if data.qrels is None else read_qrels(data.qrels),
        _documents(data),
        tokenizer,
        None if data.run is None else Run.read(data.run, queries=queries),
        None if data.teacher is None else Run.read(data.teacher, queries=queries),
        relevant=drawn.relevant,
        limit=data.text_limit,
        depth=drawn.last or 1000,
        skip=data.skip,
        progress=progress,
    )


def _documents(data: Data) -> Index | Iterable[Document]:
    if len(data.corpus) == 1 and (Path(data.corpus[0]) / "manifest.json").is_file():
        return Index.open(data.corpus[0])
    return read_corpus(*data.corpus)


def _stream(data: TrainingSet, drawn: Drawn, recipe: Recipe) -> Stream:
    negatives = Negatives(drawn.first, drawn.last, drawn.judged, drawn.random)
    seed, size = recipe.run.seed, recipe.run.batch
    if recipe.loss.taught and data.scores is None:
        raise InputError("the training set has no teacher's scores", remedy="use a loss that needs none")
    if drawn.kind == "balanced":
        return examples.balanced(data, size, seed, negatives)
    if drawn.kind == "duo":
        return examples.duo_pairs(data, size, seed, negatives)
    if drawn.kind == "teacher_pairs":
        return examples.teacher_pairs(data, size, seed, drawn.first, drawn.last)
    return examples.grouped(data, drawn.group, size, seed, negatives, drawn.positives)


def _eased(stream: Stream, recipe: Recipe) -> Stream:
    drawn = recipe.examples
    if drawn.curriculum is None:
        return stream
    return examples.curriculum(stream, drawn.curriculum_steps * recipe.optimiser.accumulate, drawn.curriculum)
