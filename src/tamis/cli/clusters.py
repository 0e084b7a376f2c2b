"""The option `--on`: the cluster whose workers do the work of a command."""

from __future__ import annotations

from tamis.base.errors import InputError
from tamis.cli.arguments import ArgumentParser
from tamis.core.cluster import Cluster

_RAY = "ray"


def on_argument(parser: ArgumentParser, what: str, note: str = "") -> None:
    parser.add_argument(
        "--on",
        metavar="CLUSTER",
        help=f"{what} in the workers of a cluster: ray for the GPUs or cores of this machine, "
        f"ray://HOST:10001 for a running cluster{note}",
    )


def cluster_of(on: str | None, workers: int | None = None) -> Cluster | None:
    """The cluster that `--on` names, with so many workers.

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
    from tamis.infer.ray_runtime import LOCAL, RayRuntime

    return RayRuntime((on if address.startswith("//") else address) or LOCAL, workers)
