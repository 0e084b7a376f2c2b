"""The interface for models: an `Architecture` describes one kind of model completely, in one file.

    its definition    `Settings`, the recipe table with its name, and its record in a checkpoint
    its inputs        `inputs`: queries and texts as tokens, and which texts share an input
    its networks      `network` for torch, `graphs` for ONNX
    its outputs       `scores`, `rows`

Everything else builds on this interface: checkpoints, the backends, the scorer with its cache, the training
task, recipes and the options of stages. Another package can add an architecture with an entry point of the
group `tamis.architectures`. It needs only

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

DEVIATION = 0.02  # standard deviation of randomly drawn weights: BERT's initializer_range


#: Every architecture defined in this process, for programs that define one outside a package.
_DEFINED: dict[str, type[Architecture]] = {}


class Reading(NamedTuple):
    """What inputs are built with: the special tokens, the encoder's shape, and the token limits."""

    special: Special
    config: EncoderConfig
    query_limit: int = 64
    limit: int = 512
    tokenizer: Tokenizer | None = None

    def words(self, text: str) -> list[int]:
        """The tokens of a text that every input contains, such as a prompt."""
        if self.tokenizer is None:
            raise InputError("a reading without a tokenizer", remedy="give it the model's")
        found: list[int] = self.tokenizer.encode([text]).ids.tolist()
        return found

    @property
    def total(self) -> int:
        """The maximum number of tokens of an input."""
        return min(self.limit, self.config.max_length)


class Architecture(ABC):
    """One kind of model. The methods here are those of a pointwise model that reads each text together with
    the query, as monoBERT does; a subclass overrides what is different."""

    name: ClassVar[str]
    #: The model's own options: recorded in its checkpoint, a table in a recipe.
    Settings: ClassVar[type[Table]] = Table
    #: The default maximum number of tokens of a query.
    query_limit: ClassVar[int] = 64
    #: The other architectures whose checkpoints can be read as this one.
    reads: ClassVar[tuple[str, ...]] = ()
    #: The stage that ranks with it; by default the stage of the same name.
    stage: ClassVar[str] = ""
    #: What trains it: a `tamis.train.learning.Learning`, or its import path, so that torch is imported late.
    learning: ClassVar[str | type[Any]] = "tamis.train.learning:Learning"
    #: The prefix of the names of its tensors outside the encoder; by default its own name.
    prefix: ClassVar[str] = ""
    #: Whether it learns from the gains of passages in addition to the labels of documents.
    learns_gains: ClassVar[bool] = False
    #: Whether it has no ONNX graph.
    needs_torch: ClassVar[bool] = False
    #: Whether an input is a document of many passages, so that a batch holds only a few inputs.
    of_passages: ClassVar[bool] = False

    def __init__(self, settings: Table | None = None) -> None:
        self.settings: Any = type(self).Settings() if settings is None else settings

    def __init_subclass__(cls) -> None:
        cls.stage = cls.__dict__.get("stage") or cls.__dict__.get("name", cls.stage)
        own = "tensors" in vars(cls) or cls.tensors is Architecture.tensors  # otherwise they are inherited
        if own and "prefix" not in vars(cls):
            cls.prefix = vars(cls).get("name", cls.prefix)
        # the inherited graph would be that of another model
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
        """The name used in error messages."""
        return self.name

    @property
    def without(self) -> str | None:
        """The table of embeddings that its inputs do not use."""
        return None

    # -- its inputs

    def members(self, sizes: Array) -> Array:
        """Which texts share an input. The texts of all groups lie end to end, and `sizes` are the sizes of
        the groups. Each row has the indices of one input's texts, padded with -1. Here each text has an input
        of its own."""
        return np.arange(int(sizes.sum()))[:, None]

    def parts(self, reading: Reading) -> Sequence[Part]:
        """The parts of an input of one text, in order. Each part has a segment, and either fixed tokens,
        `QUERY` or `TEXT` (see `tamis.models.templates`)."""
        return templates.mono_parts(reading.special)

    def inputs(
        self, queries: Tokenised, texts: Tokenised, members: Array, query_of: Array, reading: Reading
    ) -> tuple[Inputs, Truncation]:
        """The inputs, one per row of `members`, and what was truncated; `query_of` is the index of each
        input's query. Ranking, training and dry runs all call this."""
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
        """How many tokens of a text fit beside a query of `query_tokens` tokens."""
        return templates.text_room(
            self.parts(reading), query_tokens, query_limit=reading.query_limit, total_limit=reading.total
        )

    # -- its tensors

    def check_config(self, config: EncoderConfig) -> None:
        """Raise an error for an encoder that does not fit the settings."""
        if config.static:
            raise InputError(
                f"a {self.kind} model needs an encoder, and this is a table of words",
                remedy="use an interaction model, or another start",
            )

    def tensors(self, config: EncoderConfig) -> Mapping[str, Shape] | None:
        """The shapes of its tensors outside the encoder, by name; all names start with its `prefix`. None
        means that only the network knows them: this is the case for a subclass that defines `network` but not
        this method."""
        return {} if type(self).network is Architecture.network else None

    def begin(self, start: Checkpoint, seed: int = 0) -> Checkpoint:
        """A model to train, from any checkpoint. The tensors outside the encoder are those of the start if it
        has the same ones; otherwise they are drawn from `seed`."""
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
        """The initial tensors outside the encoder. Each depends only on its name, its shape and the seed. If
        only the network knows the tensors, its modules draw all of them from the seed."""
        if (shapes := self.tensors(start.config)) is not None:
            return {name: drawn(name, shape, seed) for name, shape in shapes.items()}
        import torch

        from tamis.models.network import built

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return built(self, replace(start, architecture=self, head={})).head_tensors()

    @classmethod
    def adopted(cls, checkpoint: Checkpoint) -> Checkpoint:
        """Convert a checkpoint of an architecture listed in `reads` to this architecture."""
        return replace(checkpoint, architecture=cls(), head={})

    # -- its networks

    def network(self, checkpoint: Checkpoint) -> Network:
        """The torch network around a checkpoint's encoder: `MyNetwork.of(checkpoint)`. Its other tensors may
        have the initial values of its modules: opening the network loads the checkpoint's tensors into it."""
        from tamis.models.network import Pointwise

        return Pointwise.of(checkpoint)

    @property
    def plain(self) -> bool:
        """Whether its graph is that of an encoder with its own head; a folder may hold such a graph
        exported."""
        return not self.needs_torch and type(self).graphs is Architecture.graphs

    def graphs(self, checkpoint: Checkpoint, precision: Precision) -> Sequence[ModelProto]:
        """The ONNX graphs. There are several, in sequence, if candidates may leave between them, and none if
        the model needs torch."""
        from tamis.models.graph import build_graph

        return [build_graph(checkpoint.config, checkpoint.tensors, precision)]

    # -- its outputs

    def shape(self) -> tuple[int, ...]:
        """The shape of the output for one input: a scalar."""
        return ()

    def scores(self, outputs: Array, inputs: Inputs, special: Special) -> Array:
        """Convert the outputs of the (last) graph to one number per scored item."""
        found: Array = margin(outputs)
        return found

    def rows(self, scores: Array, inputs: Inputs, special: Special) -> Array:
        """Arrange those numbers as one row per input."""
        return scores

    # -- its cost

    def inferences(self, inputs: Inputs, special: Special) -> Array:
        """How many inferences each input counts as."""
        return np.ones(len(inputs), np.int64)

    def most_inferences(self) -> int:
        """The maximum number of inferences that one input counts as."""
        return 1

    # -- how it is trained

    def check_recipe(self, recipe: Any) -> None:
        """Raise an error for a recipe that cannot train it: inputs of most architectures have one text."""
        if recipe.examples.in_pairs:
            raise InputError(
                f"{recipe.examples.kind} examples have two texts an input",
                remedy="use grouped or balanced ones",
            )

    def saved(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint that training saves."""
        return checkpoint

    # -- how it ranks

    def pipeline(self, query_limit: int, limit: int) -> str:
        """The pipeline that ranks with a model trained with these limits; {model} stands for the model."""
        return f"{self.stage}(model={{model}}, query_limit={query_limit}, limit={limit})"

    def dev_options(self) -> dict[str, Any]:
        """Options of its stage for a dev run."""
        return {}


def margin(logits: Any) -> Any:
    """One number per input: its logit, or with two labels the second logit minus the first. Takes arrays and
    tensors with one column per label, or with one number per input.

    >>> margin(np.array([[1.0, 3.0]])).tolist(), margin(np.array([[1.0]])).tolist()
    ([2.0], [1.0])
    """
    if logits.ndim == 1:
        return logits
    return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


def drawn(name: str, shape: Shape, seed: int) -> Array:
    """The initial value of a tensor: zero for biases, else normally distributed with BERT's standard
    deviation. It does not depend on the other tensors of the model.

    >>> drawn("exits.4.output.bias", (2,), seed=0).tolist()
    [0.0, 0.0]
    """
    if name.endswith(".bias"):
        return np.zeros(shape, np.float32)
    generator = np.random.default_rng([seed, xxhash.xxh3_64_intdigest(name.encode())])
    return generator.normal(0.0, DEVIATION, shape).astype(np.float32)


# -- the registry
# ------------------------------------------------------------------------------------------------------------

#: The built-in architectures by name. Other packages add theirs with entry points of `tamis.architectures`.
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
#: The tables of a recipe besides that of the architecture, and the prefixes of encoder tensors.
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
        return here  # defined by a program, outside a package
    raise InputError(f"there is no architecture {quoted(name)}", remedy=f"use {', '.join(names())}")


def names() -> list[str]:
    """The names of all architectures, built in and from installed packages."""
    return [*BUILT_IN, *(name for name, each in brought().items() if not each.problem)]


def brought() -> Mapping[str, Extension]:
    """The architectures of other packages, by name. An architecture is also a stage, so it must not have the
    name of a built-in stage."""
    return extensions("tamis.architectures", taken=BUILT_IN.keys() | STAGES.keys() | _RESERVED)


def checked(extension: Extension) -> type[Architecture]:
    """Load an entry point and check that it is an architecture with that name."""
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
