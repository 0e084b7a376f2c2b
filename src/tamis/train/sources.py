"""The data that a recipe names, as one stream of examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import xxhash

from tamis.base.documents import Document
from tamis.base.errors import InputError
from tamis.core.ranking import Run
from tamis.formats import read_corpus, read_qrels, read_queries
from tamis.index.index import Index, index_of
from tamis.models.tokenizer import Tokenizer
from tamis.train import examples
from tamis.train.dev import chosen, shortfalls
from tamis.train.examples import Negatives, Stream
from tamis.train.fixed import fixed, sample
from tamis.train.recipe import Data, Recipe
from tamis.train.recipe import Examples as Drawn
from tamis.train.sets import Report, TrainingSet
from tamis.train.triples import IdTriples, TextTriples, file_fingerprint, require_texts, stream_triples
from tamis.train.watch import Watch


@dataclass(frozen=True, slots=True)
class Examples:
    """A stream, the fingerprint of all that it draws from, and what was left out of each set."""

    stream: Stream
    fingerprint: str
    reports: Sequence[Report] = ()
    sets: Sequence[TrainingSet] | None = None  # None: some are triples, which are read during training

    @classmethod
    def of(cls, data: TrainingSet, recipe: Recipe) -> Examples:
        """The examples that a recipe draws from one set."""
        stream = _eased(_stream(data, recipe.examples, recipe), recipe)
        return cls(stream, data.fingerprint, [data.report], [data])


def read_examples(recipe: Recipe, tokenizer: Tokenizer, watch: Watch) -> Examples:
    """Read a recipe's data; `watch` shows progress and what was left out, also of the dev run."""
    with watch.reading("the data", "queries") as advance:
        found = open_examples(recipe, tokenizer, advance)
    for data, report in zip(recipe.data, found.reports, strict=True):
        if report != Report():
            watch.left_out(f"{data.name}: {report}")
    for shortfall in shortfalls(recipe.dev) if recipe.dev else ():
        watch.left_out(shortfall)
    return found


def open_examples(
    recipe: Recipe, tokenizer: Tokenizer, progress: Callable[[int], object] | None = None
) -> Examples:
    """Read and tokenise a recipe's data, in sequence or mixed. `progress` receives how many more queries have
    been read."""
    parts = [_opened(data, recipe, tokenizer, progress) for data in recipe.data]
    streams = [part.stream for part in parts]
    if len(streams) == 1:
        stream = streams[0]
    elif recipe.data[0].steps is not None:
        # a chain counts in batches, a recipe in steps
        batches = [each.steps and each.steps * recipe.optimiser.accumulate for each in recipe.data]
        stream = examples.chain(list(zip(streams, batches, strict=True)))
    else:
        weights = [each.weight for each in recipe.data]
        stream = examples.mixed(list(zip(streams, weights, strict=True)))
    fingerprint = xxhash.xxh3_128_hexdigest(" ".join(part.fingerprint for part in parts).encode())
    reports = [report for part in parts for report in part.reports]
    sets = [data for part in parts for data in part.sets or ()]
    whole = all(part.sets is not None for part in parts)
    return Examples(_eased(stream, recipe), fingerprint, reports, sets if whole else None)


def _opened(
    data: Data, recipe: Recipe, tokenizer: Tokenizer, progress: Callable[[int], object] | None
) -> Examples:
    """One collection, as batches of the recipe's kind."""
    if data.triples is not None:
        return _triples(data, recipe, tokenizer)
    found = open_set(data, recipe.examples, tokenizer, progress, recipe.limits.total)
    if data.sample is None:
        stream = _stream(found, recipe.examples, recipe)
    else:
        _check_set(found, recipe)
        groups = sample(found, data.sample, recipe.run.seed, _negatives(recipe.examples))
        stream = fixed(found, groups, _pairs_a_batch(recipe), recipe.run.seed)
        stream = both_ways(stream) if recipe.examples.kind == "duo" else stream
    return Examples(stream, found.fingerprint, [found.report], [found])


def _triples(data: Data, recipe: Recipe, tokenizer: Tokenizer) -> Examples:
    assert data.triples is not None
    limit = data.text_limit or recipe.limits.total
    source: TextTriples | IdTriples = TextTriples(tokenizer, limit)
    if data.queries is not None:
        queries = read_queries(data.queries, field=data.field)
        source = IdTriples(queries, _documents(data), tokenizer, limit)
    else:
        require_texts(data.triples)
    # the length of an epoch requires reading the whole file; it is not needed if the recipe counts steps
    counted = recipe.optimiser.epochs is not None
    stream = stream_triples(data.triples, source, _pairs_a_batch(recipe), counted=counted)
    stream = both_ways(stream) if recipe.examples.kind == "duo" else stream
    return Examples(stream, f"{file_fingerprint(data.triples)} {source.fingerprint}", [Report()])


def both_ways(stream: Stream) -> Stream:
    """A stream of pairs with each pair in both orders."""
    return Stream(lambda number: examples.both_orders(stream.batch(number)), stream.epoch)


def _pairs_a_batch(recipe: Recipe) -> int:
    """The number of pairs of a relevant text and another in a batch."""
    if recipe.examples.kind in ("grouped", "duo_lists"):
        return recipe.run.batch
    if recipe.run.batch % 2:
        raise InputError(f"a batch of {recipe.run.batch} has no two halves", remedy="use an even number")
    return recipe.run.batch // 2


def open_set(
    data: Data,
    drawn: Drawn,
    tokenizer: Tokenizer,
    progress: Callable[[int], object] | None = None,
    limit: int = 512,
) -> TrainingSet:
    """A recipe's training set, opened or made from its files; `limit` tokens of its texts are kept, unless
    the data set another limit."""
    if data.set is not None:
        return TrainingSet.open(data.set)
    assert data.queries is not None
    queries = chosen(read_queries(data.queries, field=data.field), data.only, data.queries)
    qrels = {} if data.qrels is None else read_qrels(data.qrels)
    missing = 0
    if data.only is not None:  # from here on the others are unknown, including their judgments
        wanted = frozenset(data.only)
        missing = len(wanted.difference(query.id for query in queries))
        qrels = {qid: judged for qid, judged in qrels.items() if qid in wanted}
    try:
        found = examples.training_set(
            queries,
            qrels,
            _documents(data),
            tokenizer,
            None if data.run is None else Run.read(data.run, queries=queries),
            None if data.teacher is None else Run.read(data.teacher, queries=queries),
            relevant=drawn.relevant,
            limit=data.text_limit or limit,
            depth=drawn.last or 1000,
            skip=data.skip,
            progress=progress,
        )
    except InputError as error:
        if error.path is not None:
            raise
        raise InputError(error.problem, remedy=error.remedy, path=data.name) from None  # of several, maybe
    return replace(found, report=replace(found.report, wanted_queries_that_are_not_there=missing))


def _documents(data: Data) -> Index | Iterable[Document]:
    index = index_of(data.corpus)
    return read_corpus(*data.corpus) if index is None else index


def _stream(data: TrainingSet, drawn: Drawn, recipe: Recipe) -> Stream:
    negatives = _negatives(drawn)
    seed, size = recipe.run.seed, recipe.run.batch
    _check_set(data, recipe)
    if drawn.kind == "balanced":
        return examples.balanced(data, size, seed, negatives)
    if drawn.kind == "duo":
        return examples.duo_pairs(data, size, seed, negatives)
    if drawn.kind == "teacher_pairs":
        return examples.teacher_pairs(data, size, seed, drawn.first, drawn.last)
    return examples.grouped(data, drawn.group, size, seed, negatives, drawn.positives)


def _check_set(data: TrainingSet, recipe: Recipe) -> None:
    """Check that a set has what the recipe draws from it."""
    if recipe.loss.taught and data.scores is None:
        raise InputError("the training set has no teacher's scores", remedy="use a loss that needs none")
    if recipe.examples.curriculum is not None and data.candidates is None:
        raise InputError(
            "a curriculum needs the ranks of candidates, and the training set has none",
            remedy="give run, or an index as the corpus, or leave out the curriculum",
        )


def _negatives(drawn: Drawn) -> Negatives:
    return Negatives(drawn.first, drawn.last, drawn.judged, drawn.random)


def _eased(stream: Stream, recipe: Recipe) -> Stream:
    drawn = recipe.examples
    if drawn.curriculum is None:
        return stream
    return examples.curriculum(stream, drawn.curriculum_steps * recipe.optimiser.accumulate, drawn.curriculum)
