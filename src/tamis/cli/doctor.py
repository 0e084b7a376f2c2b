"""tamis doctor: what is installed, what works, and whether an index is intact."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tamis import __version__
from tamis.base.errors import InputError, TamisError, some
from tamis.base.extras import install
from tamis.cli import runtimes
from tamis.cli.arguments import ArgumentParser, folder_of_index, index_argument, json_argument
from tamis.cli.console import (
    counted,
    doing,
    duration,
    note,
    print_json,
    printable,
    size,
    size_on_disk,
    stdout,
)
from tamis.core import registry
from tamis.core.extensions import Extension
from tamis.index.embedded import EmbeddedIndex
from tamis.index.place import Place, is_address
from tamis.index.verify import verify
from tamis.models import architecture
from tamis.models.bundled import bundled_models

#: What tamis does without, what each adds, and how to get it.
OPTIONAL = {
    "cwl-eval": ("the measures RBP, BPM, INST and SDCG", install("cwl-eval")),
    "pyndeval": ("the measures alpha_nDCG, ERR_IA and StRecall", install("pyndeval")),
    "tantivy": ("`make bench` beside tantivy", install("tantivy")),
    "bm25s": ("`make bench` beside bm25s", install("bm25s")),
    "ir-datasets": ("collections by their names, `irds:NAME`", install("ir-datasets")),
    "torch": ("training, and rerankers on a GPU", install("torch")),
}
_MANY_DELETED = 0.2


def add_arguments(parser: ArgumentParser) -> None:
    index_argument(parser, ", to check: on disk byte by byte", optional=True)
    parser.add_argument(
        "--repair",
        action="store_true",
        help="move damaged files out of the index into a folder beside it",
    )
    json_argument(parser)


def main(index: Place | None, repair: bool, json: bool) -> None:
    """Check the installation and an index; --repair makes a damaged index open again and lists losses."""
    if repair and index is None:
        raise InputError("no index to repair", remedy="name it: tamis doctor IDX --repair")
    repaired = _repair(folder_of_index(str(index)), json) if repair and index is not None else None
    found: dict[str, Any] = {
        "machine": _machine(),
        "packages": _packages(),
        "kernel": _kernel(),
        "models": _models(),
        "extensions": _extensions(),
    }
    if index is not None:
        found["index"] = _index(index)
    problems = [
        *(
            f"{p['name']} is not installed: pip install {p['name']}"
            for p in found["packages"]
            if p["needed"] and not p["version"]
        ),
        *found["kernel"]["problems"],
        *found["models"]["onnx_runtime"]["problems"],
        *(each["problem"] for each in found["extensions"] if each["problem"]),
        *found.get("index", {}).get("problems", []),
    ]
    if json:
        print_json({**found, "problems": problems, **({"repair": repaired} if repaired is not None else {})})
    else:
        _print(found)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise TamisError(problems[0] + more)


def _repair(index: Path, json: bool) -> dict[str, Any]:
    from tamis.index.repair import LOST, repair

    with doing("Looking for damage"):
        report = repair(index)
    if not json and not report.problems:
        note(f"{index}: nothing to repair")
    elif not json:
        for problem in report.problems:
            note(problem)
        lost = len(report.lost) + report.unnamed
        again = f"{counted(report.recovered, 'document')} of damaged segments indexed again"
        note(f"{index}: {again}, {counted(lost, 'document')} lost; the damaged files are in {report.aside}")
        if report.lost:
            note(f"lost: {some(report.lost)} (all ids: {report.aside}/{LOST})")
        if report.unnamed:
            note(f"lost: at most {counted(report.unnamed, 'document')} whose ids cannot be read")
    return asdict(report)


def _machine() -> dict[str, Any]:
    memory = None
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "tamis": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": platform.platform(),
        "cores": cores,
        "memory": memory,
    }


def _packages() -> list[dict[str, Any]]:
    """Those that tamis asks for without an extra, and the optional ones."""
    asked = importlib.metadata.requires("tamis") or []
    needed = [match[0] for line in asked if "extra ==" not in line and (match := re.match(r"[\w.-]+", line))]
    return [
        {"name": name, "version": _version(name), "needed": name in needed, "adds": adds, "remedy": remedy}
        for name, (adds, remedy) in (dict.fromkeys(needed, ("", "")) | OPTIONAL).items()
    ]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _kernel() -> dict[str, Any]:
    """Compile or load the search kernel, and see whether the next process will find it compiled."""
    started = time.perf_counter()
    try:
        with doing("Preparing the search kernel (compiled once per machine)"):
            from tamis.index.warm import warm

            warm()
            from tamis.index.kernel import top_k
    except Exception as error:  # report any problem with numba or llvmlite here
        problem = f"numba does not work ({' '.join(str(error).split())}): pip install --force-reinstall numba"
        return {"works": False, "seconds": None, "cache": None, "problems": [problem]}
    cache = top_k.stats.cache_path
    problems = []
    if not (cache and os.access(cache, os.W_OK)):
        problems.append(
            f"numba cannot write to its cache {cache}: set NUMBA_CACHE_DIR to a folder where you may"
        )
    return {
        "works": True,
        "seconds": round(time.perf_counter() - started, 3),
        "cache": cache,
        "problems": problems,
    }


def _models() -> dict[str, Any]:
    """What runs models, and which are inside the package."""
    with doing("Trying the runtimes of models"):
        onnx, torch = runtimes.onnx_runtime(), runtimes.torch()
    return {
        "onnx_runtime": onnx,
        "torch": torch,
        "automatic": runtimes.automatic(onnx, torch),
        "bundled": bundled_models(),
        "architectures": architecture.names(),
    }


def _extensions() -> list[dict[str, Any]]:
    """What other packages bring: stages, and kinds of models."""
    return [
        {"kind": kind, "name": each.name, "package": each.package, "is": about, "problem": problem}
        for kind, each, about, problem in [*_brought_stages(), *_brought_architectures()]
    ]


def _brought_stages() -> Iterator[tuple[str, Extension, str, str]]:
    for each in registry.brought().values():
        if each.group != "tamis.stages":
            continue
        try:
            yield "stage", each, str(registry.checked(each).role), ""
        except InputError as error:
            yield "stage", each, "", str(error)


def _brought_architectures() -> Iterator[tuple[str, Extension, str, str]]:
    for each in architecture.brought().values():
        try:
            yield "architecture", each, f"a kind of model, for {architecture.checked(each).stage}", ""
        except InputError as error:
            yield "architecture", each, "", str(error)


def _index(place: Place) -> dict[str, Any]:
    if is_address(place):
        return _in_a_cluster(str(place))
    path = Path(place)
    with doing("Verifying checksums"):
        problems = verify(path)
    if problems:
        remedy = f"restore it from a copy, build the index again, or `tamis doctor {path} --repair`"
        return {"path": str(path), "problems": [f"{problem}: {remedy}" for problem in problems]}
    opened = EmbeddedIndex.open(path)
    stored = sum(map(len, opened.segments))
    deleted = stored - len(opened)
    advice = None
    if len(opened.segments) > 1 or (stored and deleted / stored >= _MANY_DELETED):
        advice = f"tamis merge {path}"
    return {
        "path": str(path),
        "documents": len(opened),
        "deleted": deleted,
        "segments": len(opened.segments),
        "analyzer": opened.manifest.analyzer,
        "positions": opened.manifest.positions,
        "bytes": size_on_disk(path),
        "advice": advice,
        "problems": [],
    }


def _in_a_cluster(address: str) -> dict[str, Any]:
    from tamis.index.opensearch.connection import connect
    from tamis.index.opensearch.index import OpenSearchIndex
    from tamis.index.opensearch.mapping import read_meta

    connection = connect(address)
    meta = read_meta(connection)
    opened = OpenSearchIndex(connection, meta)
    health = opened.health
    remedy = f"continue with `tamis index CORPUS -o {address} --resume`"
    return {
        "path": address,
        "documents": len(opened),
        "opensearch": ".".join(map(str, opened.connection.version)),
        "shards": meta.shards,
        "health": health,
        "analyzer": meta.analyzer,
        "similarities": meta.expressions,
        "problems": [f"not all documents are written: {remedy}"] if meta.documents is None else [],
    }


def _print(found: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = stdout()
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(overflow="fold")
    good, bad, absent = Text("ok", "green"), Text("no", "bold red"), Text("--", "dim")

    def line(mark: Text, name: str, value: str) -> None:
        table.add_row(mark, Text(name), Text(printable(value)))

    machine, kernel = found["machine"], found["kernel"]
    memory = size(machine["memory"]) if machine["memory"] else "unknown"
    line(good, "tamis", f"{machine['tamis']}, Python {machine['python']} ({machine['executable']})")
    line(good, "machine", f"{machine['system']}, {counted(machine['cores'], 'core')}, memory {memory}")
    for package in found["packages"]:
        if package["version"]:
            line(good, package["name"], package["version"])
        elif package["needed"]:
            line(bad, package["name"], f"not installed: pip install {package['name']}")
        else:
            line(absent, package["name"], f"adds {package['adds']}: {package['remedy']}")
    if kernel["problems"]:
        line(bad, "search kernel", kernel["problems"][0])
    else:
        line(good, "search kernel", f"ready in {duration(kernel['seconds'])}, cached in {kernel['cache']}")
    _model_lines(found["models"], line, good, bad, absent)
    for each in found["extensions"]:
        about = each["problem"] or f"{each['is']}, from {each['package']}"
        line(bad if each["problem"] else good, f"{each['kind']} {each['name']}", about)
    if "index" in found:
        _index_lines(found["index"], line, good, bad)
    console.print(table)


def _model_lines(models: dict[str, Any], line: Any, good: Any, bad: Any, absent: Any) -> None:
    onnx, torch = models["onnx_runtime"], models["torch"]
    if onnx["works"]:
        line(good, "models on cpu", f"ONNX Runtime {onnx['version']} works")
    else:
        line(bad, "models on cpu", onnx["problems"][0])
    if torch["failure"]:
        line(bad, "models by torch", f"torch {torch['version'] or ''} does not work: {torch['failure']}")
    elif torch["version"]:
        devices = [name for name, there in (("CUDA", torch["cuda"]), ("MPS", torch["mps"])) if there]
        gpu = f"{' and '.join(devices)} ({torch['cuda'] or 'Apple'})" if devices else "no GPU"
        line(good, "models by torch", f"torch {torch['version']}, {gpu}")
        if torch["cpu_bf16"] is True:
            line(good, "", "its bf16 on the CPU works (tamis does not use it)")
        else:
            wrong = torch["cpu_bf16"] or "gives wrong results"
            remedy = "tamis does not use it; for other programs set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16"
            line(absent, "", f"its bf16 on the CPU {wrong}: {remedy}")
    else:
        line(absent, "models by torch", "torch is not installed")
    if models["automatic"]:
        line(good, "automatic choice", models["automatic"])
    names = ", ".join(models["bundled"])
    line(good if names else absent, "bundled models", names or "none: name one, as in mono(model=FOLDER)")
    line(good, "architectures", ", ".join(models["architectures"]))


def _index_lines(index: dict[str, Any], line: Any, good: Any, bad: Any) -> None:
    if index["problems"]:
        for problem in index["problems"]:
            line(bad, index["path"], problem)
        return
    if "opensearch" in index:
        what = f"{counted(index['documents'], 'document')} in {counted(index['shards'], 'shard')}"
        version = f"OpenSearch {index['opensearch']}, {index['health']}"
        line(good, index["path"], f"{what}, {version}, analyzer {index['analyzer']}")
        line(good, "", f"can be searched by {', '.join(index['similarities'])}")
        return
    documents, segments = counted(index["documents"], "document"), counted(index["segments"], "segment")
    details = f"{documents}, {index['deleted']:,} deleted, {segments}, {size(index['bytes'])}, "
    details += f"analyzer {index['analyzer']}"
    line(good, index["path"], details + (", positions" if index["positions"] else ""))
    line(good, "", "all checksums are valid")
    if index["advice"]:
        line(good, "", f"searches will be faster after `{index['advice']}`")
