"""The models that come with tamis, and how to open any model by its name."""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from tamis.base.errors import CorruptError, InputError, quoted
from tamis.models.architecture import BUILT_IN
from tamis.models.checkpoint import CONFIG, Checkpoint, holds_checkpoint, load_checkpoint
from tamis.models.tokenizer import Tokenizer
from tamis.storage.files import is_there

BUNDLED = Path(__file__).parents[1] / "models_data"
#: The file in the folder of a bundled model with its `Checkpoint.fingerprint` at the time of bundling.
FINGERPRINT = "fingerprint.txt"


def open_model(model: str, revision: str | None = None) -> Checkpoint:
    """Open a bundled model, a model in a folder, or a model from the hub."""
    bundled = bundled_folder(model)
    if bundled is not None:
        return load_bundled(bundled)
    if model in BUILT_IN and not holds_model(model):
        raise InputError(
            f"no model is bundled under the name {model!r}",
            remedy=f"name one: {model}(model=FOLDER), or a name on the hub",
        )
    if "/" in model or "\\" in model or is_there(Path(model)):
        return load_checkpoint(model, revision)
    bundled_names = f"bundled are {', '.join(bundled_models())}"
    if near := get_close_matches(model, bundled_models(), 1):  # do not ask the hub, where names have an owner
        remedy = f"did you mean {near[0]}? {bundled_names}; others are a FOLDER, or OWNER/NAME on the hub"
        raise InputError(f"no model is called {quoted(model)}", remedy=remedy)
    try:  # the names of the hub's oldest models have no owner
        return load_checkpoint(model, revision)
    except InputError as error:
        if error.path is not None:  # it was found
            raise
        raise InputError(error.problem, remedy=f"{error.remedy}; {bundled_names}") from error


def bundled_models() -> list[str]:
    """The models that come with tamis.

    >>> bundled_models()
    ['duo', 'mono', 'mono-nano', 'mono-tiny']
    """
    return sorted(path.parent.name for path in BUNDLED.glob("*/config.json"))


@lru_cache(maxsize=1)
def bundled_tokenizer() -> Tokenizer:
    """The tokenizer that all bundled models share, so that one store of tokens serves all of them.

    >>> bundled_tokenizer().encode(["a sieve"]).ids.tolist()
    [1037, 9033, 18697]
    """
    return Tokenizer(BUNDLED / "mono")


def bundled_folder(model: str) -> Path | None:
    """The folder of a bundled model, unless the working directory has a model of that name. A file, or a
    folder without a model, does not count.

    >>> bundled_folder("mono").name, bundled_folder("cross-encoder/ms-marco-MiniLM-L6-v2")
    ('mono', None)
    """
    bundled = BUNDLED / model
    named = "/" not in model and "\\" not in model and not holds_model(model)
    return bundled if named and is_there(bundled / CONFIG) else None


def holds_model(folder: str | Path) -> bool:
    """Whether a folder contains a model, or a training run that contains models.

    >>> holds_model(getfixture("tmp_path")), holds_model(BUNDLED / "mono")
    (False, True)
    """
    path = Path(folder)
    return any(map(holds_checkpoint, (path, path / "best", path / "last")))


def load_bundled(folder: Path) -> Checkpoint:
    """Load a bundled model; raise an error if it has changed since it was bundled."""
    checkpoint, path = load_checkpoint(folder), folder / FINGERPRINT
    if is_there(path) and path.read_text(encoding="utf-8").strip() != checkpoint.fingerprint:
        raise CorruptError(f"the bundled model in {folder} is damaged", remedy="install tamis again")
    return checkpoint
