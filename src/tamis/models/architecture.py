"""The seam for models: an `Architecture` says all about one kind of model in one file.

    what it is          `Settings`, the table of its name in a recipe, and its record in a checkpoint
    what it reads       `inputs`: queries and texts as tokens, and which texts share an input
    its networks        `network` for torch, `graphs` for ONNX
    what these say      `scores`, `rows`

All else is written once over that: checkpoints, the backends, the scorer with its cache, the training task,
recipes and the options of stages. A package of someone else brings one by an entry point of the group
`tamis.architectures`. Whoever writes one needs no more than

    tamis.models.architecture    Architecture, Reading, QUERY, TEXT, Inputs, Tokenised, Truncation
    tamis.models.settings        Settings, Count and the other types of fields
    tamis.models.network         Network, Encoder
    tamis.train.learning         Learning, RankingBatch, ranking_loss
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from inspect import isabstract
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import xxhash

from tamis.base.arrays import Array
from tamis.base.errors import InputError, quoted
from tamis.core.extensions import Extension, extensions
from tamis.core.registry import BUILT_IN as STAGES
from tamis.models import templates
from tamis.models.settings import Settings as Table
from tamis.models.templates import QUERY, TEXT, Inputs, Part, Special, Tokenised, Truncation

if TYPE_CHECKING:
    from onnx import ModelProto

    from tamis.models.checkpoint import Checkpoint
    from tamis.models.config import EncoderConfig
    from tamis.models.graph import Precision
    from tamis.models.names import Shape
    from tamis.models.network import Network
    from tamis.models.tokenizer import Tokenizer

__all__ = [
    "QUERY",
    "TEXT",
    "Architecture",
    "Inputs",
    "Part",
    "Reading",
    "Special",
    "Tokenised",
    "Truncation",
    "architecture",
    "brought",
    "drawn",
    "margin",
    "names",
]

DEVIATION = 0.02  # of weights that are drawn: BERT's initializer_range


#: All that this process has defined, for programs that have one in no package.
_DEFINED: dict[str, type[Architecture]] = {}


class Reading(NamedTuple):
    """What inputs are made with: the special tokens, the encoder's shape, and how many tokens an input may
    have."""

    special: Special
    config: EncoderConfig
    query_limit: int = 64
    limit: int = 512
    tokenizer: Tokenizer | None = None

    def words(self, text: str) -> list[int]:
        """The tokens of a text that inputs always have, such as a prompt."""
        if self.tokenizer is None:
            raise InputError("a reading without a tokenizer", remedy="give it the model's")
        found: list[int] = self.tokenizer.encode([text]).ids.tolist()
        return found

    @property
    def total(self) -> int:
        """Tokens of an input at most."""
        return min(self.limit, self.config.max_length)


class Architecture(ABC):
    """One kind of model. The methods here are those of a pointwise model that reads each text beside the
    query, as monoBERT does; a subclass says what is different."""

    name: ClassVar[str]
    #: The model's own options: recorded in its checkpoint, a table in a recipe.
    Settings: ClassVar[type[Table]] = Table
    #: Tokens of a query at most, where nothing else is said.
    query_limit: ClassVar[int] = 64
    #: The architectures whose checkpoints can be read as one of these, beside its own.
    reads: ClassVar[tuple[str, ...]] = ()
    #: The stage that ranks with it: by default the one of its name.
    stage: ClassVar[str] = ""
    #: What trains it: a `tamis.train.learning.Learning`, or where that is, so that torch is imported late.
    learning: ClassVar[str | type[Any]] = "tamis.train.learning:Learning"
    #: How the names of the tensors begin that it has beside the encoder's; its own name by default.
    prefix: ClassVar[str] = ""
    #: Whether it learns from the gains of passages beside the labels of documents.
    learns_gains: ClassVar[bool] = False
    #: Whether there is no ONNX graph.
    needs_torch: ClassVar[bool] = False
    #: Whether an input is a document of many passages, of which a batch holds few.
    of_passages: ClassVar[bool] = False

    def __init__(self, settings: Table | None = None) -> None:
        self.settings: Any = type(self).Settings() if settings is None else settings

    def __init_subclass__(cls) -> None:
        cls.stage = cls.__dict__.get("stage") or cls.__dict__.get("name", cls.stage)
        own = "tensors" in vars(cls) or cls.tensors is Architecture.tensors  # else they are those of its base
        if own and "prefix" not in vars(cls):
            cls.prefix = vars(cls).get("name", cls.prefix)
        # the graph of the network above it in the family would be another model
        if "network" in vars(cls) and "graphs" not in vars(cls):
            cls.needs_torch = True
        elif "graphs" in vars(cls):
            cls.needs_torch = vars(cls).get("needs_torch", False)
        cls.reads = vars(cls).get("reads", ())
        if "name" in vars(cls):
            _DEFINED[cls.name] = cls

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.settings == other.settings

    def __hash__(self) -> int:
        return hash((type(self), self.settings))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings!r})"

    @property
    def kind(self) -> str:
        """What an error calls it."""
        return self.name

    @property
    def without(self) -> str | None:
        """The table of embeddings that its inputs do without."""
        return None

    # -- what it reads

    def members(self, sizes: Array) -> Array:
        """Which texts share an input, for groups of so many texts laid end to end: a row of their numbers for
        each input, filled up with -1. Here each text has an input of its own."""
        return np.arange(int(sizes.sum()))[:, None]

    def parts(self, reading: Reading) -> Sequence[Part]:
        """What an input of one text is made of, in this order: a segment each, and the tokens that every
        input has there, `QUERY` or `TEXT` (see `tamis.models.templates`)."""
        return templates.mono_parts(reading.special)

    def inputs(
        self, queries: Tokenised, texts: Tokenised, members: Array, query_of: Array, reading: Reading
    ) -> tuple[Inputs, Truncation]:
        """The inputs, a row of `members` each, and what was cut; `query_of` is the number of each one's
        query. Ranking, training and dry runs all come here."""
        return templates.one_text(
            self.parts(reading),
            queries,
            texts.take(members[:, 0]),
            query_of=query_of,
            query_limit=reading.query_limit,
            total_limit=reading.total,
            segment_types=reading.config.segments,
        )

    def room(self, query_tokens: int, reading: Reading) -> int:
        """How many tokens of a text are read beside a query of so many."""
        return templates.text_room(
            self.parts(reading), query_tokens, query_limit=reading.query_limit, total_limit=reading.total
        )

    # -- its tensors

    def check_config(self, config: EncoderConfig) -> None:
        """Refuse an encoder that its settings do not fit."""
        if config.static:
            raise InputError(
                f"a {self.kind} model needs an encoder, and this is a table of words",
                remedy="use an interaction model, or another start",
            )

    def tensors(self, config: EncoderConfig) -> Mapping[str, Shape] | None:
        """The tensors that it has beside the encoder's and their shapes, all under its `prefix`; None where
        the network alone knows, as one of its own does unless this is defined too."""
        return {} if type(self).network is Architecture.network else None

    def begin(self, start: Checkpoint, seed: int = 0) -> Checkpoint:
        """A model to be trained, from any checkpoint: the tensors beside the encoder are the start's where
        that has the same ones, else they are drawn from `seed`."""
        self.check_config(start.config)
        wanted = self.tensors(start.config)
        same = wanted is None or {name: tensor.shape for name, tensor in start.head.items()} == wanted
        own = start.architecture.kind == self.kind and same
        head = start.head if own else self.drawn(start, seed)
        digest = xxhash.xxh3_64_hexdigest(f"{start.fingerprint} {self!r} {seed}".encode())
        if other := next((name for name in head if not name.startswith(f"{self.prefix}.")), None):
            raise InputError(
                f"the tensor {other} of a {self.kind} model does not begin with {self.prefix}.",
                remedy=f"call it {self.prefix}.{other}",
            )
        fingerprint = digest if head else start.fingerprint
        return replace(start, architecture=self, head=head, fingerprint=fingerprint)

    def drawn(self, start: Checkpoint, seed: int) -> Mapping[str, Array]:
        """The tensors beside the encoder as they begin. Each depends on its name, the seed and its shape; of
        those that the network alone knows, all depend on the seed as its modules draw them."""
        if (shapes := self.tensors(start.config)) is not None:
            return {name: drawn(name, shape, seed) for name, shape in shapes.items()}
        import torch

        from tamis.models.network import built

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return built(self, replace(start, architecture=self, head={})).head_tensors()

    @classmethod
    def adopted(cls, checkpoint: Checkpoint) -> Checkpoint:
        """A checkpoint of an architecture that this one `reads`, as one of its own."""
        return replace(checkpoint, architecture=cls(), head={})

    # -- its networks

    def network(self, checkpoint: Checkpoint) -> Network:
        """The network for torch around a checkpoint's encoder: `MyNetwork.of(checkpoint)`. What it has beside
        may be as its modules draw it: the checkpoint's tensors are put into it when it is opened."""
        from tamis.models.network import Pointwise

        return Pointwise.of(checkpoint)

    @property
    def plain(self) -> bool:
        """Whether its graph is that of an encoder with its own head, which a folder may hold exported."""
        return not self.needs_torch and type(self).graphs is Architecture.graphs

    def graphs(self, checkpoint: Checkpoint, precision: Precision) -> Sequence[ModelProto]:
        """The ONNX graphs, one behind the other where candidates may leave between them; none where it needs
        torch."""
        from tamis.models.graph import build_graph

        return [build_graph(checkpoint.config, checkpoint.tensors, precision)]

    # -- what these say

    def shape(self) -> tuple[int, ...]:
        """The shape of what is said of one input: a number."""
        return ()

    def scores(self, outputs: Array, inputs: Inputs, special: Special) -> Array:
        """What the (last) graph says, as one number for each thing that is scored."""
        found: Array = margin(outputs)
        return found

    def rows(self, scores: Array, inputs: Inputs, special: Special) -> Array:
        """Those numbers, a row an input."""
        return scores

    # -- what that costs

    def inferences(self, inputs: Inputs, special: Special) -> Array:
        """How many inferences each input is."""
        return np.ones(len(inputs), np.int64)

    def most_inferences(self) -> int:
        """How many inferences an input is at most."""
        return 1

    # -- how it is trained

    def check_recipe(self, recipe: Any) -> None:
        """Refuse a recipe that cannot train it: an input of most architectures has one text."""
        if recipe.examples.in_pairs:
            raise InputError(
                f"{recipe.examples.kind} examples have two texts an input",
                remedy="use grouped or balanced ones",
            )

    def saved(self, checkpoint: Checkpoint) -> Checkpoint:
        """What a training leaves of its model."""
        return checkpoint

    # -- how it ranks

    def pipeline(self, query_limit: int, limit: int) -> str:
        """What ranks with a model that was trained with these limits; {model} is the model."""
        return f"{self.stage}(model={{model}}, query_limit={query_limit}, limit={limit})"

    def dev_options(self) -> dict[str, Any]:
        """Options of its stage for a dev run."""
        return {}


def margin(logits: Any) -> Any:
    """One number an input: its logit, or with two labels the second less the first. For arrays and tensors,
    of a column a label or with a number for each input.

    >>> margin(np.array([[1.0, 3.0]])).tolist(), margin(np.array([[1.0]])).tolist()
    ([2.0], [1.0])
    """
    if logits.ndim == 1:
        return logits
    return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


def drawn(name: str, shape: Shape, seed: int) -> Array:
    """A tensor as it begins: biases are zero, all else is normal with BERT's deviation. A tensor is the same
    whatever others there are.

    >>> drawn("exits.4.output.bias", (2,), seed=0).tolist()
    [0.0, 0.0]
    """
    if name.endswith(".bias"):
        return np.zeros(shape, np.float32)
    generator = np.random.default_rng([seed, xxhash.xxh3_64_intdigest(name.encode())])
    return generator.normal(0.0, DEVIATION, shape).astype(np.float32)


# -- which there are
# ------------------------------------------------------------------------------------------------------------

#: Ours by name. Those of other packages come by the entry points of `tamis.architectures`.
BUILT_IN: Mapping[str, str] = {
    "mono": "tamis.models.architectures.mono:Mono",
    "duo": "tamis.models.architectures.duo:Duo",
    "listwise": "tamis.models.architectures.listwise:Listwise",
    "cascade": "tamis.models.architectures.cascade:Cascade",
    "maxp": "tamis.models.architectures.maxp:MaxP",
    "birch": "tamis.models.architectures.birch:Birch",
    "cedr": "tamis.models.architectures.cedr:Cedr",
    "parade": "tamis.models.architectures.parade:Parade",
    "pcgm": "tamis.models.architectures.pcgm:Pcgm",
    "interaction": "tamis.models.architectures.interaction:Interaction",
}
#: What a recipe has beside the table of an architecture, and what tensors of encoders begin with.
_TABLES = (
    "model",
    "data",
    "optimiser",
    "run",
    "examples",
    "loss",
    "limits",
    "dev",
    "about",
    "folds",
    "gains",
)
_FAMILIES = ("bert", "roberta", "electra", "albert", "distilbert", "static", "classifier")
_RESERVED = {*_TABLES, *_FAMILIES, "architecture", "base", "longdoc", "student", "lm", "ranker", "objective"}


def architecture(name: str) -> type[Architecture]:
    """The architecture of this name.

    >>> architecture("mono").query_limit
    64
    """
    if (place := BUILT_IN.get(name)) is not None:
        module, _, attribute = place.partition(":")
        found: type[Architecture] = getattr(import_module(module), attribute)
        return found
    if (extension := brought().get(name)) is not None:
        return checked(extension)
    if (here := _DEFINED.get(name)) is not None and not isabstract(here):
        return here  # by a program that has it in no package
    raise InputError(f"there is no architecture {quoted(name)}", remedy=f"use {', '.join(names())}")


def names() -> list[str]:
    """The names of all architectures: ours, and those of installed packages."""
    return [*BUILT_IN, *(name for name, each in brought().items() if not each.problem)]


def brought() -> Mapping[str, Extension]:
    """What packages of others bring, by name. It is a stage too, so that its name is not one of ours."""
    return extensions("tamis.architectures", taken=BUILT_IN.keys() | STAGES.keys() | _RESERVED)


def checked(extension: Extension) -> type[Architecture]:
    """What an entry point stands for, which must be an architecture by that name."""
    found = extension.load()
    if not isinstance(found, type) or not issubclass(found, Architecture):
        raise extension.error(
            "is not a class of architectures", "derive it from tamis.models.architecture.Architecture"
        )
    if isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise extension.error(f"does not define {missing}", f"define {missing} in {found.__name__}")
    if vars(found).get("name") != extension.name:
        raise extension.error("declares another name", f'say name = "{extension.name}" in {found.__name__}')
    if not (isinstance(found.Settings, type) and issubclass(found.Settings, Table)):
        raise extension.error(
            "has Settings of another kind", "derive them from tamis.models.settings.Settings"
        )
    return found
