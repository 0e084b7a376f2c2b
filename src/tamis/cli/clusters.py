"""Where the batches of a command are worked on: here, or by the workers of a cluster."""

from __future__ import annotations

import argparse

from tamis.base.errors import InputError
from tamis.cli.arguments import ArgumentParser
from tamis.core.cluster import Cluster

_RAY = "ray"


def on_argument(parser: argparse._ActionsContainer | ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--on",
        metavar="CLUSTER",
        help=f"{what} in the workers of a cluster: ray is this machine's cores or GPUs, ray://HOST:10001 a "
        "cluster that is there",
    )


def cluster_of(on: str | None, workers: int | None = None) -> Cluster | None:
    """The cluster that a word names, with so many workers of one core each.

    >>> cluster_of("ray", workers=2), cluster_of("ray://head:10001"), cluster_of(None)
    (RayRuntime(workers=2), RayRuntime(address='ray://head:10001'), None)
    >>> cluster_of("spark")
    Traceback (most recent call last):
    tamis.base.errors.InputError: 'spark' is not a cluster: use ray, or ray://HOST:10001
    """
    if on is None:
        return None
    name, _, address = on.partition(":")
    if name != _RAY or on == f"{_RAY}:":
        raise InputError(f"{on!r} is not a cluster", remedy="use ray, or ray://HOST:10001")
    from tamis.core.ray_runtime import LOCAL, RayRuntime

    return RayRuntime((on if address.startswith("//") else address) or LOCAL, workers)
