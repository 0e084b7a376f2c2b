"""What repro/models reads before a training, and does to a model after it."""

from __future__ import annotations

import json
import random
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from textwrap import indent

import numpy as np
import pytest

from tamis.models.checkpoint import load_checkpoint, save_checkpoint
from tamis.rank.mono import Mono

REPRO = Path(__file__).resolve().parents[3] / "repro" / "models"
TEXTS = ["one text", "another", "a third one that is longer"]


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(REPRO), *sys.path])


def test_even_odds_are_where_both_kinds_are_as_dense() -> None:
    from calibrate import fitted  # type: ignore[import-not-found]

    rng = np.random.default_rng(0)
    # normal with unit spread around 3 and 1, of which there are ten times as many: the odds are exp(2 m - 4)
    margins = np.concatenate([rng.normal(3, 1, 20_000), rng.normal(1, 1, 200_000)])
    scale, shift = fitted(margins, np.arange(len(margins)) < 20_000)
    assert (scale, shift) == pytest.approx((2, -4), abs=0.1)


@pytest.mark.parametrize("labels", [1, 2])
def test_margins_are_scaled_and_shifted(
    labels: int, tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    from calibrate import calibrated

    folder = tiny_checkpoint(tmp_path / "before", labels=labels)
    save_checkpoint(calibrated(load_checkpoint(folder), 2.5, -0.75), tmp_path / "after")
    before, after = (
        [each.score for each in Mono(str(path), score="logit", precision="fp32").rank("query", TEXTS)]
        for path in (folder, tmp_path / "after")
    )
    np.testing.assert_allclose(after, 2.5 * np.array(before) - 0.75, atol=1e-4)


def test_a_release_is_int8_and_calibration_changes_its_head_alone(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    from calibrate import calibrated, save
    from retrain import release  # type: ignore[import-not-found]

    tiny_checkpoint(tmp_path / "run" / "last", labels=2)
    (tmp_path / "run" / "log.jsonl").write_text("{}\n")
    folder = tmp_path / "release"
    release(tmp_path / "run", folder)
    before = load_checkpoint(folder)
    kept = {name: before.tensors[name] for name in before.tensors}
    size = (folder / "model.safetensors").stat().st_size
    save(calibrated(before, 2.5, -0.75))
    after = load_checkpoint(folder)
    changed = {name for name in kept if not np.array_equal(kept[name], after.tensors[name])}
    assert changed == {"head.output.weight", "head.output.bias"}
    assert (folder / "model.safetensors").stat().st_size == size
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "training.jsonl",
    ]


PROSE = "The flow separates behind the sphere and leaves a wake, whose width says how large the drag is. "


def wheel(folder: Path, name: str, licence: str, files: dict[str, str]) -> None:
    metadata = f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\nLicense-Expression: {licence}\n"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}-1.0.dist-info/METADATA", metadata)
        for path, text in files.items():
            file.writestr(path, text)


def test_manuals_are_the_prose_of_permissive_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import manuals  # type: ignore[import-not-found]

    def function(name: str, *more: str) -> str:
        said = "\n\n".join(["Drag of a sphere", f"{PROSE}This is {name}. " + PROSE, *more])
        return f'def {name}():\n    """' + indent(said, "    ").strip() + '"""\n'

    parameters = "Parameters\n----------\nspeed : float\n    The speed of the flow far from the sphere."
    wheel(
        tmp_path,
        "flows",
        "BSD-3-Clause",
        {
            "flows/drag.py": function("first", parameters) + function("second"),
            "flows/again.py": function("first"),  # the same text
            "flows/tests/test_drag.py": function("third"),
            "flows/broken.py": "def",
        },
    )
    wheel(tmp_path, "copyleft", "GPL-3.0-only", {"copyleft/a.py": function("fourth")})
    monkeypatch.setattr(
        sys, "argv", ["manuals.py", "--packages", str(tmp_path), "--out", str(tmp_path / "out")]
    )
    manuals.main()
    lines = (tmp_path / "out" / "corpus.jsonl").read_text().splitlines()
    documents = [json.loads(line) for line in lines]
    assert {each["title"] for each in documents} == {"Drag of a sphere"}
    assert sorted(each["text"] for each in documents) == [
        f"{PROSE}This is {name}. {PROSE}".strip() for name in ("first", "second")
    ]
    assert (tmp_path / "out" / "licences.tsv").read_text() == "flows\t1.0\tBSD-3-Clause\t2\n"


def test_long_pseudo_queries_are_whole_sentences() -> None:
    from questions import PseudoQueries  # type: ignore[import-not-found]

    text = "It is short. " + " ".join(f"{PROSE.strip()[:-1]} in case {number}." for number in range(3))
    pseudo = PseudoQueries([text], random.Random(0))
    told = [pseudo.told(text) for _ in range(50)]
    for query in told:
        assert query is not None and 8 <= len(query.split()) <= 55
        assert "the flow separates behind the sphere" in query.lower()
    assert len(set(told)) > 10
    assert pseudo.told("It is short. So is this one.") is None
