"""Models that version 0.1.0 wrote rank as they ranked there: see tests/assets/checkpoints/README.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import tamis

FOLDER = Path(__file__).parents[1] / "assets" / "checkpoints"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
DOCUMENTS = [tamis.Document(each["id"], each["text"], each["title"]) for each in EXPECTED["documents"]]
TOLERANCE = 1e-5

Ranked = Iterable[tuple[str, float]]


def check(found: Ranked, expected: Ranked) -> None:
    """The same documents in the same order; scores of any size to as many digits."""
    ids, scores = zip(*found, strict=True)
    wanted_ids, wanted_scores = zip(*expected, strict=True)
    assert ids == wanted_ids
    assert scores == pytest.approx(wanted_scores, rel=TOLERANCE, abs=TOLERANCE)


@pytest.mark.parametrize("case", EXPECTED["models"], ids=lambda case: f"{case['model']} {case['options']}")
def test_a_model_ranks_as_it_did(case: dict[str, Any]) -> None:
    if case["class"] in ("Cedr", "Parade"):
        pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")
    model = str(FOLDER / case["model"])
    stage = getattr(tamis, case["class"])(model=model, precision="fp32", device="cpu", **case["options"])
    assert str(stage) == case["stage"].replace("{model}", json.dumps(model))
    for name, query in EXPECTED["queries"].items():
        ranked = stage.rank(query, DOCUMENTS)
        check([(each.id, each.score) for each in ranked], case["rankings"][name])


@pytest.mark.parametrize("case", EXPECTED["pipelines"], ids=lambda case: case["pipeline"])
def test_a_pipeline_ranks_as_it_did(case: dict[str, Any], tmp_path: Path) -> None:
    index = tamis.Index.build(DOCUMENTS, tmp_path / "index")
    pipeline = index.pipeline(case["pipeline"].replace('"{model}"', json.dumps(str(FOLDER / case["model"]))))
    run = pipeline.run([tamis.Query(name, text) for name, text in EXPECTED["queries"].items()])
    for name, ranking in run.items():
        check([(hit.id, hit.score) for hit in ranking], case["rankings"][name])


def test_every_model_is_tried() -> None:
    tried = {case["model"] for case in [*EXPECTED["models"], *EXPECTED["pipelines"]]}
    assert tried == {path.name for path in FOLDER.iterdir()} - {"README.md", "expected.json"}
