"""The contract of an architecture."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tamis.base.arrays import Array
from tamis.base.documents import Document, Query
from tamis.base.errors import InputError
from tamis.core.ranking import Ranking
from tamis.core.runtime import Runtime
from tamis.models.architecture import Architecture
from tamis.models.bundled import open_model
from tamis.models.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from tamis.models.templates import Inputs
from tamis.models.tokenizer import open_tokenizer
from tamis.testing.stages import check_stage

if TYPE_CHECKING:
    from tamis.train.ranking import RankingTask
    from tamis.train.recipe import Recipe

_CLOSE = 1e-3  # tolerance for equal scores: sums may be added in another order
_STEPS, _RATE = 10, 5e-3
_QUERIES = ("castle of the king", "how to sieve flour", "soup")
_WORDS = ("castle", "king", "sieve", "flour", "soup", "the", "of", "old", "river", "bread", "a", "glass")
_LENGTHS = (5, 0, 12, 300, 1, 40)  # of the texts, in words


def check_architecture(
    kind: Architecture, start: str | Path | Checkpoint, recipe: Recipe | None = None, limit: int = 40
) -> None:
    """Raise an AssertionError with the reason if an architecture violates the contract, with the encoder of
    `start` and inputs of `limit` tokens. It is trained by `recipe`, by default by one with groups or pairs,
    whichever it accepts.

    >>> from tamis.models.architectures.mono import Mono
    >>> check_architecture(Mono(), "mono")
    """
    if not isinstance(start, Checkpoint):
        start = open_model(str(start), None)
    with tempfile.TemporaryDirectory() as folder:
        contract = _Contract(kind, start, recipe, limit, Path(folder) / "model")
        contract.begins()
        contract.reads_each_query_by_itself()
        contract.scores_each_input_by_itself()
        contract.is_what_was_saved()
        contract.says_the_same_in_onnx()
        contract.learns()
        contract.ranks()


class _Contract:
    def __init__(
        self, kind: Architecture, start: Checkpoint, recipe: Recipe | None, limit: int, folder: Path
    ) -> None:
        from tamis.infer.scorer import Scorer
        from tamis.infer.torch_backend import TorchBackend

        self.kind, self.start, self.recipe, self.limit, self.folder = kind, start, recipe, limit, folder
        self.require(bool(getattr(kind, "name", "")), "it has no name: say name = ... in the class")
        self.begun = kind.begin(start, seed=1)
        self.backend = TorchBackend(self.begun, "cpu", "fp32")
        self.scorer = Scorer.over(self.begun, self.backend)
        self.rankings = list(_rankings())
        self.inputs = self.read(self.rankings)

    def require(self, holds: bool, problem: str) -> None:
        if not holds:
            raise AssertionError(f"{getattr(self.kind, 'name', type(self.kind).__name__)}: {problem}")

    def stage(self, scorer: Any) -> Any:
        """The stage that ranks with the model."""
        from tamis.train.dev import dev_stage
        from tamis.train.recipe import Limits

        return dev_stage(scorer, Limits(total=self.limit))

    def read(self, rankings: Sequence[Ranking]) -> list[Inputs]:
        found: list[Inputs] = self.stage(self.scorer).build_inputs(rankings).inputs
        return found

    def begins(self) -> None:
        begun, again = self.begun, self.kind.begin(self.start, seed=1)
        self.require(begun.architecture == self.kind, f"it begins as {begun.architecture!r}")
        self.require(not _differ(begun.head, again.head), "begun again from one seed, its head is another")
        self.require(begun.fingerprint == again.fingerprint, "begun again, its fingerprint is another")
        on = self.kind.begin(begun, seed=2)
        self.require(not _differ(begun.head, on.head), "begun from a model of its own, the head is lost")

    def reads_each_query_by_itself(self) -> None:
        special, config = open_tokenizer(self.begun).special, self.begun.config
        for inputs, ranking in zip(self.inputs, self.rankings, strict=True):
            (alone,) = self.read([ranking])
            name = f"of query {ranking.query.id!r}"
            self.require(_same(inputs, alone), f"the inputs {name} are others beside other queries")
            self.require(len(inputs) > 0, f"there are no inputs {name}")
            count = self.kind.inferences(inputs, special)
            self.require(len(count) == len(inputs) and int(count.min()) > 0, "inferences counts each input")
            for what, largest, most in (
                ("token", inputs.ids, config.vocabulary),
                ("segment", inputs.segments, config.segments or 1),
            ):
                top = int(largest.max(initial=0))
                self.require(top < most, f"{what} {top} {name}, of a model that has {most}")
            if not self.kind.of_passages:
                longest = int(inputs.lengths.max())
                self.require(longest <= self.limit, f"an input {name} of {longest} tokens: see Reading.total")

    def scores_each_input_by_itself(self) -> None:
        """Scores are equal with other inputs and alone, in another order, padded and packed."""
        together = Inputs.join(self.inputs)
        scores = self.scorer.margins(together)
        self.require(bool(np.isfinite(scores).all()), "a score is not a finite number")
        self.require(float(np.ptp(scores)) > 0, "all inputs have one score")
        alone = [self.scorer.margins(together.part(n, n + 1)) for n in range(len(together))]
        self.compare(np.concatenate(alone), scores, "by itself, an input has another score")
        turned = self.scorer.margins(together.take(np.arange(len(together))[::-1]))[::-1]
        self.compare(turned, scores, "in another order, an input has another score")
        if not self.kind.of_passages:
            self.compare(self.backend.margins(together), scores, "in one batch, an input has another score")
        self.backend.network.packed = True
        self.compare(self.backend.margins(together), scores, "packed, an input has another score")
        self.backend.network.packed = False

    def is_what_was_saved(self) -> None:
        from tamis.infer.scorer import Scorer
        from tamis.infer.torch_backend import TorchBackend

        save_checkpoint(self.begun, self.folder)
        loaded = load_checkpoint(self.folder)
        self.require(loaded.architecture == self.kind, f"saved and loaded, it is {loaded.architecture!r}")
        for what, one, other in (
            ("tensor", loaded.tensors, self.begun.tensors),
            ("tensor of the head", loaded.head, self.begun.head),
        ):
            if name := _differ(one, other):
                self.require(False, f"saved and loaded, the {what} {name} is another")
        scorer = Scorer.over(loaded, TorchBackend(loaded, "cpu", "fp32"))
        together = Inputs.join(self.inputs)
        self.compare(
            scorer.margins(together), self.scorer.margins(together), "saved and loaded, other scores"
        )

    def says_the_same_in_onnx(self) -> None:
        if self.kind.needs_torch:
            return
        from tamis.infer.onnx_backend import OnnxBackend
        from tamis.infer.scorer import Scorer

        loaded = load_checkpoint(self.folder)
        scorer = Scorer.over(loaded, OnnxBackend(loaded, "fp32", 1))
        together = Inputs.join(self.inputs)
        self.compare(scorer.margins(together), self.scorer.margins(together), "its graph has other scores")

    def learns(self) -> None:
        """Ten steps on one batch change the weights and lower the loss."""
        import torch

        task = self.task()
        parts = task.parts(0, 0, 1)
        module = task.module.eval()  # no dropout: the loss of a batch is deterministic
        learning = {name: each for name, each in module.named_parameters() if each.requires_grad}
        self.require(bool(learning), "it has no parameter to learn")
        optimiser = torch.optim.AdamW(learning.values(), lr=_RATE, weight_decay=0.0)
        losses = []
        for _ in range(_STEPS):
            optimiser.zero_grad(set_to_none=True)
            total = torch.stack([module(part.batch) * part.share for part in parts]).sum()
            total.backward()  # type: ignore[no-untyped-call]
            losses.append(total.item())
            unreached = [name for name, each in learning.items() if each.grad is None]
            if unreached and not task.learning.partial:
                name = unreached[0].removeprefix("network.")
                self.require(False, f"the loss does not depend on {name}: leave it out in `freeze`")
            optimiser.step()
        self.require(bool(np.isfinite(losses).all()), f"its loss is {losses[-1]}")
        least = min(losses[1:])
        self.require(least < losses[0], f"it does not learn: its loss begins at {losses[0]:.4f} and is at "
                     f"least {least:.4f} in {_STEPS} steps on one batch")  # fmt: skip
        trained = task.trained()
        changed = _differ(trained.head, self.begun.head) or _differ(trained.tensors, self.begun.tensors)
        self.require(bool(changed), "after training, its checkpoint has the weights that it had before")

    def task(self) -> RankingTask:
        """A training task with a few groups."""
        from tamis.train.ranking import RankingTask
        from tamis.train.sets import Judged, TrainingSet
        from tamis.train.sources import Examples

        tokenizer = open_tokenizer(self.begun)
        texts = [document.contents for ranking in self.rankings for document in ranking.documents()]
        size, relevant = len(_LENGTHS), 2
        data = TrainingSet(
            tokenizer.encode(_QUERIES),
            tokenizer.encode(texts),
            [ranking.query.id for ranking in self.rankings],
            [f"{ranking.query.id}-{doc}" for ranking in self.rankings for doc in ranking.ids],
            Judged(
                np.arange(len(_QUERIES) + 1),
                np.arange(len(_QUERIES)) * size + relevant,
                np.ones(len(_QUERIES), np.int64),
            ),
        )
        recipe = self.recipe or self.own_recipe()
        return RankingTask(recipe, self.begun, Examples.of(data, recipe), None, "cpu")

    def own_recipe(self) -> Recipe:
        """A recipe that the architecture accepts."""
        from tamis.train import recipe

        group = next(iter(self.kind.shape()), 4)
        kinds: tuple[tuple[recipe.Kind, recipe.LossName], ...]
        kinds, problems = (("grouped", "softmax"), ("duo", "duo"), ("balanced", "pointwise")), []
        for kind, loss in kinds:
            try:
                return recipe.Recipe(
                    recipe.Model(str(self.begun.folder)),
                    (recipe.Data(set="checked"),),
                    recipe.Optimiser(steps=_STEPS, dropout=0.0),
                    run=recipe.Run(batch=2),
                    examples=recipe.Examples(kind=kind, group=group),
                    loss=recipe.Loss(loss),
                    limits=recipe.Limits(total=self.limit),
                    architecture=self.kind,
                )
            except InputError as error:
                problems.append(str(error))
        raise AssertionError(f"{self.kind.name}: it takes no recipe ({problems[0]}): give one it takes")

    def ranks(self) -> None:
        from tamis.infer.scorer import Scorer

        scorer = Scorer(str(self.folder), architectures=(self.kind.name,), device="cpu", workers=1)
        stage = self.stage(scorer)
        kinds = getattr(type(stage), "architectures", ())
        self.require(self.kind.name in kinds, f"its stage {stage} is for {', '.join(kinds)}")
        check_stage(stage, self.rankings, Runtime(device="cpu", workers=1))

    def compare(self, found: Array, expected: Array, problem: str) -> None:
        self.require(found.shape == expected.shape, f"{problem}: {found.shape}, not {expected.shape}")
        self.require(np.allclose(found, expected, _CLOSE, _CLOSE), problem)


def _rankings() -> Iterator[Ranking]:
    """Candidates for several queries, of different lengths: one is empty, one too long."""
    generator = np.random.default_rng(0)
    for number, query in enumerate(_QUERIES):
        texts = [" ".join(generator.choice(_WORDS, length)) for length in _LENGTHS]
        documents = {f"d{n}": Document(f"d{n}", text) for n, text in enumerate(texts)}
        scores = np.arange(len(documents), 0, -1, dtype=np.float64)
        yield replace(
            Ranking(Query(f"q{number}", query)), ids=tuple(documents), scores=scores, texts=_Texts(documents)
        )


class _Texts:
    def __init__(self, documents: Mapping[str, Document]) -> None:
        self.documents = documents

    def document(self, doc_id: str) -> Document:
        return self.documents[doc_id]


def _same(one: Inputs, other: Inputs) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ("ids", "segments", "offsets")
    )


def _differ(one: Mapping[str, Array], other: Mapping[str, Array]) -> str:
    """The name of the first tensor that differs; empty if all are equal."""
    alone = sorted(set(one) ^ set(other))
    return next(iter(alone), "") or next((n for n in one if not np.array_equal(one[n], other[n])), "")
