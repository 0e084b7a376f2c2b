"""How long the papers' recipes for long documents train, and on what: what can be said in a recipe is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tamis.train.recipe import Recipe, read_recipe

DATA = '[[data]]\nset = "data"\n[dev]\nqueries = "q"\nqrels = "r"\ncorpus = ["c"]\nrun = "b"\n'


def read(base: str, folder: Path) -> Recipe:
    (folder / "mine.toml").write_text(f'base = "{base}"\n{DATA}')
    return read_recipe(folder / "mine.toml")


@pytest.mark.parametrize("base", ["cedr-vanilla", "cedr"])
def test_cedr_stops_after_20_epochs_without_a_better_one(base: str, tmp_path: Path) -> None:
    """An epoch of its authors is 32 batches; patience counts dev runs."""
    cedr = read(base, tmp_path)
    assert cedr.dev is not None and cedr.run.patience is not None
    assert cedr.run.patience * cedr.dev.every == 20 * 32
    assert cedr.optimiser.steps == 100 * 32


def test_maxp_learns_from_the_first_1000_candidates_and_tells_what_albert_wants(tmp_path: Path) -> None:
    maxp = read("maxp", tmp_path)
    assert (maxp.examples.last, maxp.optimiser.dropout) == (1000, 0.1)
    assert maxp.dev is not None and maxp.dev.depth == 100
    assert "dropout = 0.0" in maxp.about and "ALBERT" in maxp.about
