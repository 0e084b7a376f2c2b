"""Pipelines of tamis in the interfaces of other frameworks, each in a module that needs the framework's own
package: `tamis.integrations.langchain`, `llama_index`, `haystack`, `pyterrier` and `rerankers`.

A pipeline is given as text (`"mono % 20 >> duo"`) or as stages (`tamis.Mono(device="cuda") % 20 >>
tamis.Duo()`). Nothing of the framework's is changed: what comes back are copies with new scores.
"""

from __future__ import annotations

from pathlib import Path

from tamis.base.errors import MissingDependencyError
from tamis.base.extras import install
from tamis.core.registry import build
from tamis.core.stage import Stage
from tamis.index.index import Index


def reranker(pipeline: str | Stage) -> Stage:
    """The stages that rank a framework's candidates.

    >>> reranker("mono % 20")
    mono % 20
    """
    return build(pipeline) if isinstance(pipeline, str) else pipeline


def searcher(index: Index | str | Path | None, pipeline: str | Stage) -> Stage:
    """The stages that search an index; those that are given as such have theirs."""
    if isinstance(pipeline, Stage):
        return pipeline
    return build(pipeline, Index.open(index) if isinstance(index, str | Path) else index)


def missing(package: str, extra: str) -> MissingDependencyError:
    """That a framework's package is not installed."""
    problem = f"tamis.integrations.{extra.replace('-', '_')} needs {package}, which is not installed"
    return MissingDependencyError(problem, remedy=install(package))
