"""--dry-run of `run` and `rerank`: the plan, and how long it would take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tamis.base.arrays import Array
from tamis.base.documents import Query
from tamis.cli.console import counted, doing, duration, print_json, printable, stdout
from tamis.core.cost import Step
from tamis.core.plan import calibrate, counts, plan, sample
from tamis.core.stage import Stage

_BOUND = {"exact": "", "most": "at most ", "least": "at least ", "either": ""}
_EITHER = " (fewer if fewer candidates are found, more for each further passage)"


def dry_run(
    stage: Stage, candidates: Sequence[int], queries: Sequence[Query], first: Stage, *, json: bool
) -> None:
    """Print the plan of `stage` for queries with the given numbers of candidates, without running it; `first`
    has candidates to time the models with."""
    steps = plan(stage, candidates)
    with doing("Timing the models"):
        rankings = sample(first, queries)
        described = [_described(step, rankings) for step in steps]
    timed = [each["seconds"] for step, each in zip(steps, described, strict=True) if _is_timed(step)]
    whole = {
        "pipeline": repr(stage),
        "queries": len(queries),
        "counts": counts(stage),
        "steps": described,
        "inferences": _spread(sum((step.inferences for step in steps), start=steps[0].inferences * 0)),
        "seconds": None if None in timed else round(sum(timed), 3),
    }
    if json:
        print_json(whole)
    else:
        _print(whole)


def _described(step: Step, rankings: Sequence[Any]) -> dict[str, Any]:
    model = step.model
    calibration = calibrate(model, rankings) if model is not None and _is_timed(step) else None
    inferences = int(step.inferences.sum())
    seconds = None if inferences else 0.0
    if calibration:
        seconds = round(calibration.seconds_each * inferences, 3)
    return {
        "stage": repr(step.stage),
        "model": model and model.scorer.model,
        "runs_on": model and model.description,
        "candidates": _spread(step.enter),
        "kept": _spread(step.leave),
        "inferences": _spread(step.inferences),
        "timed_on": calibration and calibration.inferences,
        "seconds_each": calibration and round(calibration.seconds_each, 9),
        "seconds": seconds,
    }


def _is_timed(step: Step) -> bool:
    return step.model is not None and not step.part


def _spread(numbers: Array) -> dict[str, int]:
    return {"least": int(numbers.min()), "most": int(numbers.max()), "all": int(numbers.sum())}


def _print(whole: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("stage", "candidates", "keeps", "inferences", "each", "in all"):
        table.add_column(name, justify="left" if name == "stage" else "right", overflow="fold")
    for step in whole["steps"]:
        each, seconds = step["seconds_each"], step["seconds"]
        table.add_row(
            Text(printable(step["stage"])),
            _range(step["candidates"]),
            _range(step["kept"]),
            _range(step["inferences"]) if step["model"] else "",
            "" if each is None else duration(each),
            duration(seconds) if step["model"] and seconds is not None else "",
        )
        if step["model"]:
            table.add_row(Text(f"  {printable(step['runs_on'])}", "dim"))
    console = stdout()
    console.print(table)
    console.print()
    inferences, queries = whole["inferences"], counted(whole["queries"], "query", "queries")
    bound, note = _BOUND[whole["counts"]], _EITHER if whole["counts"] == "either" else ""
    console.print(
        f"{queries}: {bound}{_range(inferences)} inferences per query, {inferences['all']:,} in all{note}"
        + ("" if whole["seconds"] is None else f", about {duration(whole['seconds'])}"),
        soft_wrap=True,
    )


def _range(spread: dict[str, int]) -> str:
    """
    >>> _range({"least": 50, "most": 1000, "all": 1050})
    '50 to 1,000'
    """
    least, most = spread["least"], spread["most"]
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"
