"""What a model of long documents is: its kind, and how much of a document it reads. In a model's folder it is
`tamis.json`, in a recipe the table [longdoc]."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from tamis.base.errors import CorruptError, InputError
from tamis.base.nested import parse_json
from tamis.models.settings import Count, Settings, Share, Whole, build
from tamis.models.templates import COUNTED
from tamis.storage.files import is_there, read_text

PLAN = "tamis.json"
FORMAT = 1

Kind = Literal[
    "maxp",
    "birch",
    "vanilla",
    "cedr-knrm",
    "cedr-pacrr",
    "cedr-drmm",
    "parade-avg",
    "parade-sum",
    "parade-max",
    "parade-attn",
    "parade-cnn",
    "parade-transformer",
    "pcgm",
    "knrm",
    "pacrr",
    "drmm",
]
STATIC = ("knrm", "pacrr", "drmm")  # on embeddings without context: no encoder
EVEN = ("vanilla", "cedr-knrm", "cedr-pacrr", "cedr-drmm")  # chunks rather than windows


class LongDoc(Settings):
    """A kind of model, and how much of a document it reads. The sizes are those of PARADE (Li et al. 2020):
    16 windows of 225 tokens, 25 of them shared with the next.

    What limits windows is `passages`: of a longer document the first, the last and others are read (of MaxP's
    the first alone, as `maxp(mono)` reads them). Chunks are of the whole document. `tokens` bounds both, so
    that a document of five megabytes takes no longer than one of 6,000 words: its end is not read.

    >>> LongDoc("parade-max").sequence, LongDoc("cedr-knrm").sequence
    (256, 512)
    """

    kind: Kind  # which of them
    cls: bool = True  # of CEDR: the averaged [CLS] beside the signals of the matrices
    frozen: bool = False  # whether the encoder stays as it is when the model is trained
    tokens: Count = 8000  # of a document: what comes after them is not read
    window: Count = 225  # tokens of a window
    stride: Count = 200  # tokens from the start of one to that of the next
    passages: Count = 16  # windows at most
    sequence: Whole = 0  # tokens of an input at most, with query and special tokens; 0: 256, of chunks 512
    query: Count = 128  # tokens at most, and half of an input: the text makes room
    gains: Count = 4  # of PCGM: grades, from 0 on
    keep: Share = 0.1  # of MaxP: in training, with what probability a window is kept after the first

    def model_post_init(self, _: object) -> None:
        if self.sequence == 0:
            object.__setattr__(self, "sequence", 512 if self.even else 256)
        if self.stride > self.window:
            raise InputError(
                f"windows of {self.window} tokens every {self.stride} leave out text",
                remedy="make the stride no larger than the window",
            )
        if self.tokens > COUNTED:
            raise InputError(f"cannot read {self.tokens:,} tokens", remedy=f"use at most {COUNTED:,}")
        if self.gains < 2:
            raise InputError(f"{self.gains} grade of gain", remedy="use at least 2")

    @property
    def even(self) -> bool:
        """Whether its passages are chunks as even as possible."""
        return self.kind in EVEN or self.kind in STATIC

    @property
    def static(self) -> bool:
        """Whether it has embeddings in place of an encoder."""
        return self.kind in STATIC


def is_long(folder: str | Path) -> bool:
    """Whether a folder holds a model of long documents.

    >>> is_long(getfixture("tmp_path"))
    False
    """
    path = Path(folder) / PLAN
    return is_there(path) and path.is_file()


def read_plan(folder: str | Path) -> LongDoc:
    """What a folder's model is."""
    path = Path(folder) / PLAN
    if not path.is_file():
        raise InputError(
            f"{folder} holds no model of long documents",
            remedy="train one: `tamis train` with a recipe that has a table [longdoc]",
        )
    try:
        content = parse_json(read_text(path))
        version = content.pop("format")
    except (ValueError, AttributeError, KeyError, TypeError):
        raise CorruptError(f"{path} is damaged", remedy="train or copy the model again") from None
    if version != FORMAT:
        raise InputError(f"format {version!r}, this tamis reads {FORMAT}", remedy="use that tamis", path=path)
    return build(LongDoc, content, path, "longdoc")
