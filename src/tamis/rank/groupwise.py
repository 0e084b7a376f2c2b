"""Groupwise scoring functions (Ai et al. 2019): a small network reads the features of several candidates at
once and scores each in comparison with the others. `tamis.train.groupwise` trains one.

    n candidates of f features  ->  n f numbers  ->  fully connected layers  ->  n scores

Candidates are put into groups of n in several rounds, and a candidate's score is the sum of its scores over
its groups: see `tamis.rank.groups`. (The paper uses all permutations of n; their number grows so fast that
rounds are drawn here.) An empty place in a group is all zeros.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.base.nested import parse_json
from tamis.core.cost import Step
from tamis.core.options import AtMost, ModelFile
from tamis.core.ranking import Ranking
from tamis.core.stage import Role, Stage, stage
from tamis.index.index import Index
from tamis.rank.combine import Interpolation
from tamis.rank.groups import by_groups, check_rounds, drawn_groups
from tamis.rank.ltr_features import LEXICAL, NAMED, Feature, columns, cost_of
from tamis.storage.files import STDIN, atomic_write, read_text

NAME = "groupwise"
MODEL = "groupwise.json"
ROUNDS = 8  # a round costs almost nothing
MOST_ROUNDS = 100  # for a client of a server


@dataclass(frozen=True, eq=False)
class GroupwiseModel:
    """A trained model: a network of linear layers with ReLU between them, and the features that it reads,
    stages by their expressions before those of `NAMED`. `loss` is the loss on the training queries.

    >>> layers = [(np.array([[1.0, 0.0], [-1.0, 2.0]]), np.array([0.0, 0.5]))]
    >>> model = GroupwiseModel(("score",), layers, texts=2)
    >>> model.scores(np.array([[[3.0], [1.0]]])).tolist()
    [[3.0, -0.5]]
    """

    features: tuple[str, ...]
    layers: Sequence[tuple[Array, Array]]  # weights [out, in] and biases [out]
    texts: int  # the n of its groups
    normalise: Interpolation = "minmax"
    loss: float = 0.0
    queries: int = 0
    seed: int = 0

    @property
    def stages(self) -> tuple[str, ...]:
        """The features that are stages."""
        return tuple(name for name in self.features if name not in NAMED)

    def scores(self, groups: Array) -> Array:
        """The scores [G, n] of groups of features [G, n, f]."""
        x = laid_out(groups)
        for number, (weights, biases) in enumerate(self.layers):
            x = (np.maximum(x, 0.0) if number else x) @ weights.T + biases
        return np.asarray(x)

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        from tamis import __version__

        layers = [{"weights": weights.tolist(), "biases": biases.tolist()} for weights, biases in self.layers]
        plain = {name: getattr(self, name) for name in _PLAIN}
        with atomic_write(path, "w") as file:
            file.write(json.dumps({"tamis": __version__, **plain, "layers": layers}) + "\n")

    @classmethod
    def read(cls, path: str | Path) -> GroupwiseModel:
        """Read a saved model."""
        _check_regular(path)
        try:
            data = parse_json(read_text(path))
            layers = [
                (np.array(each["weights"], np.float64), np.array(each["biases"], np.float64))
                for each in data["layers"]
            ]
            plain = {name: data[name] for name in _PLAIN}
            model = cls(layers=layers, **plain | {"features": tuple(data["features"])})
            whole = _fits(model)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise _not_one(path) from error
        if not whole:
            raise _not_one(path)
        return model


_PLAIN = ("features", "texts", "normalise", "loss", "queries", "seed")


def _not_one(path: str | Path) -> InputError:
    return InputError("not a groupwise model", remedy="give a file that one was saved to", path=path)


def _check_regular(path: str | Path) -> None:
    """Refuse a pipe or a device: it may never end, and cannot be read again for the fingerprint. For a folder
    or a missing file, the attempt to open it raises the error."""
    file = Path(path)
    try:
        regular = file.is_file() or file.is_dir() or not file.exists()
    except OSError:
        regular = True  # its kind is unknown, but then it cannot be opened either
    if not regular or str(path) == STDIN:
        raise InputError("not a regular file", remedy="give a file that a model was saved to", path=path)


def _fits(model: GroupwiseModel) -> bool:
    """Whether the shapes of consecutive layers fit and all numbers are finite."""
    width = model.texts * len(model.features)
    for weights, biases in model.layers:
        if weights.shape != (len(biases), width) or biases.ndim != 1:
            return False
        if not np.isfinite(weights).all() or not np.isfinite(biases).all():
            return False
        width = len(biases)
    in_order = (*model.stages, *(name for name in NAMED if name in model.features))
    known = model.normalise in get_args(Interpolation) and model.features == in_order
    return known and len(model.layers) > 0 and 0 < width == model.texts


@stage(NAME, role=Role.MIXES)
class Groupwise(Stage):
    """Orders candidates by a groupwise scoring function: the file `model` that `train_groupwise` made. The
    stages among its features are passed as in training, in the same order; the file names the others.
    `rounds` and `seed` are those of the groups, as in `listwise`.

        >>> Groupwise(model="models/gsf.json", rounds=4)
        groupwise(model="models/gsf.json", rounds=4)
    """

    uses_depth = False

    def __init__(
        self,
        *stages: Stage,
        model: ModelFile = MODEL,
        rounds: Annotated[int, AtMost(MOST_ROUNDS)] = ROUNDS,
        seed: int = 0,
        index: Index | None = None,
    ) -> None:
        for each in stages:
            if not isinstance(each, Stage):
                raise InputError(f"groupwise of {each!r}", remedy="give stages, such as index.ql()")
        check_rounds(NAME, rounds, seed)
        self.stages, self.model, self.rounds, self.seed, self.index = stages, model, rounds, seed, index
        self._network: GroupwiseModel | None = None

    @property
    def network(self) -> GroupwiseModel:
        """The content of the file, read when it is first needed."""
        if self._network is None:
            model = GroupwiseModel.read(self.model)
            own = tuple(map(repr, self.stages))
            if own != model.stages:
                wanted = ", ".join((*model.stages, f'model="{self.model}"'))
                raise InputError(
                    f"{self.model} was trained with {', '.join(model.stages) or 'no stages'}",
                    remedy=f"write groupwise({wanted})",
                )
            wanting = [name for name in LEXICAL if name in model.features]
            if wanting and self.index is None:
                raise InputError(
                    f"{wanting[0]} of groupwise needs an index", remedy="give the index to search"
                )
            self._network = model
        return self._network

    @property
    def resources(self) -> str:
        lexical = any(name in LEXICAL for name in self.network.features)
        own = [self.index.fingerprint] if lexical and self.index is not None else []
        digest = hashlib.sha256(read_text(self.model).encode()).hexdigest()
        return "\n".join([digest, *own, *(stage.resources for stage in self.stages)])

    def prepare(self) -> None:
        super().prepare()
        _ = self.network

    def read_files(self) -> None:
        super().read_files()
        _ = self.network

    @property
    def searches(self) -> bool:
        return True  # it may look up the query's terms, which takes as long as a search

    def cost(self, enter: Array, depth: int | None = None) -> list[Step]:
        return cost_of(self, enter)

    def without_scores(self) -> Stage | None:
        return None

    def attach(self, ranking: Ranking) -> Ranking:
        return ranking  # the stages find nothing here

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        # all candidates, whatever the depth: the last may come to the top
        model = self.network
        named: list[Feature] = [name for name in NAMED if name in model.features]
        found = columns(rankings, [*self.stages, *named], self.index, model.normalise, NAME)
        ranked = []
        for ranking, own in zip(rankings, found, strict=True):
            groups = drawn_groups(len(ranking), model.texts, self.rounds, self.seed)
            rows = np.stack(own, axis=1)
            ranked.append(by_groups(ranking, groups, model.scores(gathered(rows, groups))))
        return ranked


def gathered(rows: Array, groups: Array) -> Array:
    """The rows [T, f] of groups [G, n] as [G, n, f]; zeros where a group is not full.

    >>> gathered(np.array([[1.0], [2.0], [3.0]]), np.array([[2, 0], [1, -1]])).tolist()
    [[[3.0], [1.0]], [[2.0], [0.0]]]
    """
    return np.concatenate([rows, np.zeros((1, rows.shape[1]))])[groups]


def laid_out(groups: Array) -> Array:
    """The network's input [G, n f]: each group's features [G, n, f] concatenated."""
    count, texts, features = groups.shape
    return groups.reshape(count, texts * features)  # not -1, which is ambiguous without groups
