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
    >>> cluster_of("ray:auto"), cluster_of("ray:head:6379")
    (RayRuntime(address='auto'), RayRuntime(address='head:6379'))
    >>> cluster_of("ray://head")
    Traceback (most recent call last):
    tamis.base.errors.InputError: 'ray://head' is not a cluster: use ray, ray://HOST:10001, or on one of the
    cluster's machines ray:auto or ray:HOST:6379
    """
    if on is None:
        return None
    from tamis.infer.ray_runtime import LOCAL, RayRuntime, is_address

    name, _, address = on.partition(":")
    if on == _RAY:
        return RayRuntime(LOCAL, workers)
    if address.startswith("//"):
        address = on
    if name != _RAY or not is_address(address):
        remedy = "use ray, ray://HOST:10001, or on one of the cluster's machines ray:auto or ray:HOST:6379"
        raise InputError(f"{on!r} is not a cluster", remedy=remedy)
    return RayRuntime(address, workers)
