"""tamis serve: the index and its pipeline over HTTP."""

from __future__ import annotations

import argparse
import re
from contextlib import nullcontext
from pathlib import Path

from tamis.base.errors import InputError, MissingDependencyError
from tamis.base.extras import install
from tamis.cli.access import KEY, access_arguments, access_of, certificate_of, reloading
from tamis.cli.arguments import (
    ArgumentParser,
    at_least_one,
    index_argument,
    pipeline_argument,
    runtime_arguments,
)
from tamis.cli.console import counted, note, warn
from tamis.cli.outputs import check_cache, check_output, named_in
from tamis.core.defaults import INTERACTIVE, RERANKING
from tamis.core.runtime import Device, Precision, Runtime
from tamis.index.embedded import EmbeddedIndex
from tamis.index.index import Index
from tamis.index.place import Place
from tamis.serve.limits import LONGEST_DEADLINE, Limits
from tamis.storage.files import STDIN

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")
_DEFAULT = Limits()


def add_arguments(parser: ArgumentParser) -> None:
    index_argument(parser, "; without one, the server reranks what requests send", optional=True)
    pipeline_argument(parser, INTERACTIVE, f" for requests that name none; without an index {RERANKING}")
    parser.set_defaults(pipeline=None)
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=_port, default=8000, help="the port, 0 for any that is free (8000)")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="M",
        help="a model that requests may name, besides those of P and the bundled ones",
    )
    parser.add_argument(
        "--examples",
        type=Path,
        metavar="FILE",
        help="example queries for the page, as `tamis run` reads them",
    )
    parser.add_argument(
        "--no-tokens",
        dest="tokens",
        action="store_false",
        help="do not tokenise in the background the documents that have no tokens beside the index",
    )
    access_arguments(parser)
    _limit_arguments(parser)
    runtime_arguments(parser)


def _limit_arguments(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    group.add_argument(
        "--deadline",
        type=_duration,
        default=_DEFAULT.deadline,
        metavar="TIME",
        help="time after which a request gets what is finished, such as 500ms or 2s (2s)",
    )
    for name, default, about in (
        ("queue", _DEFAULT.queue, "requests in progress; further ones get a 503"),
        ("max-candidates", _DEFAULT.candidates, "candidates that a stage may keep or a request may send"),
        ("max-inferences", _DEFAULT.inferences, "inferences that a request may take"),
        ("max-body", _DEFAULT.body, "bytes in the body of a request"),
    ):
        group.add_argument(
            f"--{name}", type=at_least_one, default=default, metavar="N", help=f"{about} ({default:,})"
        )
    group.add_argument(
        "--one-at-a-time",
        action="store_true",
        help="do not share the batches of a model between requests, for comparison",
    )


def main(
    index: Place | None,
    pipeline: str | None,
    host: str,
    port: int,
    model: list[str],
    examples: Path | None,
    tokens: bool,
    api_key_file: Path | None,
    keys: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    rate: float | None,
    burst: float | None,
    host_name: list[str],
    allow_origin: list[str],
    proxy: list[str],
    access_log: str | None,
    log_queries: bool,
    deadline: float,
    queue: int,
    max_candidates: int,
    max_inferences: int,
    max_body: int,
    one_at_a_time: bool,
    device: Device,
    precision: Precision,
    workers: int | None,
    cache: Path | None,
) -> None:
    """Serve an index over HTTP, a page for people and JSON for programs; or a reranker alone."""
    pipeline = pipeline or (RERANKING if index is None else INTERACTIVE)
    if index is None and examples is not None:
        raise InputError("--examples needs an index to search", remedy="name one, or leave out --examples")
    limits = Limits(deadline, queue, max_candidates, max_inferences, max_body)
    if access_log is not None and access_log != STDIN:  # to a server, - is the standard output
        read = (index, api_key_file, keys, tls_cert, tls_key, examples, *model, *named_in(pipeline))
        check_output(Path(access_log), *read)
    check_cache(cache, index, *model, *named_in(pipeline))
    opened = None if index is None else Index.open(index)
    try:
        from tamis.serve.run import serve

        access = access_of(api_key_file, keys, rate, burst, host_name, allow_origin, access_log, log_queries)
        certificate = certificate_of(tls_cert, tls_key)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"serving needs {error.name}, which is not installed", remedy=install(error.name or "fastapi")
        ) from error
    from tamis.core.plan import rerankers
    from tamis.serve.background import tokens_in_background
    from tamis.serve.examples import example_queries
    from tamis.serve.pipelines import Pipelines
    from tamis.serve.service import Service

    runtime = Runtime(device, precision, workers, cache)
    pipelines = Pipelines(opened, pipeline, runtime, limits, model)
    # a pipeline that cannot be built is better known now
    own = pipelines.rerank(None) if opened is None else pipelines.search(None)
    proposed = [] if opened is None else example_queries(opened, examples)
    service = Service(pipelines, examples=proposed, join=not one_at_a_time)

    def started(url: str, local: bool) -> None:
        if not local and access.keys is None:
            warn(
                f"anyone who can reach {host} can send requests: set {KEY}, or give --api-key-file or --keys"
            )
        what = "no index" if opened is None else counted(len(opened), "document")
        note(f"{what}, {own.expression}: {url}")

    models = rerankers(own.stage) if tokens else []
    beside = opened if isinstance(opened, EmbeddedIndex) else None  # no other index keeps tokens
    with tokens_in_background(beside, models[0].scorer) if models and beside else nullcontext():
        serve(
            service,
            host,
            port,
            access=access,
            certificate=certificate,
            proxies=proxy,
            reload=reloading(access, keys, certificate),
            started=started,
        )
    if access.log is not None:
        access.log.close()


def _duration(text: str) -> float:
    """Seconds.

    >>> _duration("500ms"), _duration("2s")
    (0.5, 2.0)
    """
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) / (1000 if match[2] == "ms" else 1) if match else 0.0
    if not 0.001 <= seconds <= LONGEST_DEADLINE:
        longest = f"{LONGEST_DEADLINE:.0f}s"
        raise argparse.ArgumentTypeError(f"{text!r} is not a time of 1ms to {longest}, such as 500ms or 2s")
    return seconds


def _port(text: str) -> int:
    """
    >>> _port("8000")
    8000
    """
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, 0 to 65535")
    return int(text)
