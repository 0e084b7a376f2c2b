"""Int8 weights and transformers: it refuses them, and reads what `tamis export --weights` makes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tamis import Mono  # noqa: E402
from tamis.models.checkpoint import load_checkpoint, save_checkpoint  # noqa: E402
from tamis.models.convert import convert  # noqa: E402

FAMILIES = ("bert", "electra", "albert", "distilbert")
TEXTS = ["one text", "another", "a third one that is longer"]


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path, tiny_checkpoint: Callable[..., Path]) -> Path:
    """An int8 checkpoint."""
    given = load_checkpoint(tiny_checkpoint(tmp_path / "float", request.param))
    save_checkpoint(given, tmp_path / "int8", "int8")
    return tmp_path / "int8"


def test_transformers_refuses_int8_weights(folder: Path) -> None:
    """It would read the numbers without their scales."""
    with pytest.raises(ValueError, match="quant_method"):
        transformers.AutoModelForSequenceClassification.from_pretrained(folder)


@pytest.mark.parametrize(("weights", "tolerance"), [("float32", 1e-4), ("float16", 1e-2)])
def test_what_is_made_of_them_has_the_same_logits(
    folder: Path, tmp_path: Path, weights: str, tolerance: float
) -> None:
    convert(load_checkpoint(folder), tmp_path / "made", weights)  # type: ignore[arg-type]
    model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "made", dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values())  # nothing missing, unexpected or misshaped
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "made")
    batch = tokenizer(["query"] * len(TEXTS), TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits = model.eval()(**batch).logits[:, 0].numpy()
    ranked = Mono(str(folder), score="logit", precision="fp32", device="cpu").rank("query", TEXTS)
    expected = [each.score for each in sorted(ranked, key=lambda each: each.position)]
    np.testing.assert_allclose(logits, expected, atol=tolerance)


def test_sentence_transformers_reads_it_too(
    tmp_path: Path, tiny_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    save_checkpoint(load_checkpoint(tiny_checkpoint(tmp_path / "float")), tmp_path / "int8", "int8")
    convert(load_checkpoint(tmp_path / "int8"), tmp_path / "made", "float32")
    model = sentence_transformers.CrossEncoder(str(tmp_path / "made"), device="cpu")
    scores = model.predict([("query", text) for text in TEXTS], activation_fn=torch.nn.Identity())
    ranked = Mono(str(tmp_path / "int8"), score="logit", precision="fp32", device="cpu").rank("query", TEXTS)
    expected = [each.score for each in sorted(ranked, key=lambda each: each.position)]
    np.testing.assert_allclose(scores, expected, atol=1e-4)
