"""The dev run of a training: the same order as the stage's."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from tamis import Mono
from tamis.base.documents import Document
from tamis.base.errors import InputError
from tamis.infer.scorer import Scorer
from tamis.infer.torch_backend import TorchBackend
from tamis.models.architectures.duo import Duo
from tamis.models.checkpoint import Checkpoint, load_checkpoint, with_third_segment
from tamis.models.settings import changed
from tamis.rank.reranker import Reranker
from tamis.train.dev import dev_stage, open_dev
from tamis.train.recipe import Dev, Limits


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(
        tmp_path_factory.mktemp("tiny") / "model", layers=2, hidden=16, heads=2, positions=64
    )


def staged(checkpoint: Checkpoint, total: int = 512) -> Reranker:
    stage = dev_stage(Scorer.over(checkpoint, TorchBackend(checkpoint, "cpu")), Limits(total=total))
    assert isinstance(stage, Reranker)
    return stage


def test_a_dev_run_is_reranked_as_the_stage_would(folder: Path, tmp_path: Path) -> None:
    words = ["sieve", "flour", "cake", "onion", "soup", "butter", "steel"]
    documents = [Document(f"d{n}", " ".join(words[n % 7 :][:3]), words[-n % 7]) for n in range(14)]
    (tmp_path / "c.jsonl").write_text(
        "".join(json.dumps({"_id": d.id, "title": d.title, "text": d.text}) + "\n" for d in documents)
    )
    (tmp_path / "q.jsonl").write_text(
        "".join(json.dumps({"_id": f"q{n}", "text": words[n]}) + "\n" for n in range(3))
    )
    (tmp_path / "qrels.txt").write_text("q0 0 d3 1\nq1 0 d5 1\nq7 0 d1 1\n")
    (tmp_path / "run.txt").write_text(
        "".join(f"q{q} Q0 d{n} {n + 1} {20 - n} x\n" for q in range(3) for n in range(14))
    )
    place = {
        name: str(tmp_path / file)
        for name, file in (("queries", "q.jsonl"), ("qrels", "qrels.txt"), ("run", "run.txt"))
    }
    settings = Dev(**place, corpus=(str(tmp_path / "c.jsonl"),), depth=10)
    checkpoint = load_checkpoint(folder)
    dev, live = open_dev(settings), staged(checkpoint)
    assert [ranking.query.id for ranking in dev.rankings] == ["q0", "q1"]
    assert dev.first() == pytest.approx((1 / math.log2(5) + 1 / math.log2(7)) / 2)
    mono = Mono(str(folder), precision="fp32", device="cpu")
    ranks = [
        [hit.id for hit in mono.apply([ranking])[0]].index(f"d{wanted}") + 1
        for ranking, wanted in zip(dev.rankings, (3, 5), strict=True)
    ]
    assert dev.score(live) == pytest.approx(sum(1 / math.log2(rank + 1) for rank in ranks) / 2)
    long = changed(settings, corpus=(str(tmp_path / "long.jsonl"),))
    (tmp_path / "long.jsonl").write_text(
        "".join(json.dumps({"_id": d.id, "text": "a " * 600}) + "\n" for d in documents)
    )
    deep = replace(checkpoint, config=replace(checkpoint.config, positions=1024))
    position = np.zeros((1024, 16), np.float32)
    deep = replace(deep, tensors={**deep.tensors, "embeddings.position": position})
    (inputs, _) = staged(deep, 1024).build_inputs(open_dev(long).rankings).inputs
    assert inputs.lengths.min() > 600
    duo = Duo().begin(with_third_segment(checkpoint))
    in_twos = staged(duo).build_inputs(dev.rankings).inputs
    assert sum(map(len, in_twos)) == 2 * 10 * 9
    with pytest.raises(InputError, match="'nDGC' is not a measure"):
        open_dev(changed(settings, measure="nDGC"))
