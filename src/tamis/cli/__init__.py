"""The command line: one file per verb, imported only when it is used."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from tamis import __version__
from tamis.base.errors import InputError, TamisError
from tamis.cli.arguments import ArgumentParser
from tamis.cli.console import note

#: Each is a module of this package: `add_arguments(parser)` names the parameters of its `main`.
VERBS = {
    "index": "index documents",
    "search": "search an index for one query",
    "run": "rank documents for many queries: a TREC run",
    "rerank": "rerank the candidates of a run",
    "eval": "evaluate runs against judgments",
    "compare": "test the differences between runs for significance",
    "moved": "list the documents whose rank differs most between two runs",
    "tune": "choose a pipeline's parameters by cross-validation",
    "tradeoff": "measure the effectiveness and cost of a pipeline's settings, and choose one",
    "sample": "sample a share of the judgments",
    "serve": "search and rerank over HTTP, with a page",
    "show": "print a document",
    "delete": "delete documents",
    "merge": "merge an index into one segment",
    "backup": "copy an index that is in use",
    "tokens": "tokenise an index's documents for a model, once",
    "train": "train a model from a recipe",
    "distill": "distil a large model into a small one, from a recipe",
    "pretrain": "pretrain a model on a corpus, from a recipe",
    "export": "write a model as an ONNX graph, or its weights in another type",
    "demo": "index, search and evaluate the bundled collection",
    "doctor": "check the installation and an index; repair an index",
}
_HELP = f"""usage: tamis VERB ...

Multi-stage text ranking: index documents, search them, evaluate the result.

verbs:
{"".join(f"  {verb:<10}{purpose}{chr(10)}" for verb, purpose in VERBS.items())}
`tamis VERB --help` lists the arguments of a verb; `tamis demo` is a short tour.
`tamis --version` prints the version.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status."""
    # no matrix products here, and numpy starts faster without a thread pool for them
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if sys.stdout is None:  # closed by the parent process: discard the output
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # do not fail if the console cannot show a character
            stream.reconfigure(errors="backslashreplace")
    return status_of(lambda: _run(list(sys.argv[1:] if arguments is None else arguments)))


def status_of(program: Callable[[], object]) -> int:
    """Run a program and return its exit status: 0, 2 for an error, which is reported in one line, 130 when
    interrupted. For scripts as well: `sys.exit(status_of(main))`.

    >>> status_of(lambda: None)
    0
    """
    try:
        program()
        sys.stdout.flush()
    except TamisError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        note("interrupted")
        return 130
    except BrokenPipeError:
        # closed by `| head`; the interpreter must not complain when it flushes the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(
            f"{where}{error.strerror or error}: check the path, its permissions and the space on the disk"
        )
    except MemoryError:
        return _fail("out of memory: close other programs, or use a larger machine")
    return 0


def _run(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(_HELP)
        return
    if arguments[0] == "--version":
        sys.stdout.write(f"tamis {__version__}\n")
        return
    name, *rest = arguments
    if name not in VERBS:
        from difflib import get_close_matches

        near = get_close_matches(name, VERBS, 1)
        raise InputError(f"{name!r} is not a verb", remedy=f"use {near[0] if near else ', '.join(VERBS)}")
    verb = import_module(f"tamis.cli.{name}")
    parser = ArgumentParser(prog=f"tamis {name}", description=verb.main.__doc__, allow_abbrev=False)
    verb.add_arguments(parser)
    try:
        options = parser.parse_intermixed_args(rest)
    except SystemExit:  # --help
        return
    verb.main(**vars(options))


def _fail(message: str) -> int:
    note(f"error: {message}")
    return 2
