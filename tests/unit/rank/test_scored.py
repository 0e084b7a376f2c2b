"""The stages that rank long documents: CEDR, PARADE and the models that go with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis import Document, MaxP, Mono, Query  # noqa: E402
from tamis.base.errors import InputError  # noqa: E402
from tamis.core.ranking import Ranking, ScoreKind  # noqa: E402
from tamis.infer.engine import OutOfMemory  # noqa: E402
from tamis.infer.torch_backend import TorchBackend  # noqa: E402
from tamis.models.checkpoint import load_checkpoint, save_checkpoint  # noqa: E402
from tamis.models.tokenizer import open_tokenizer  # noqa: E402
from tamis.rank.combine import Interpolate  # noqa: E402
from tamis.rank.given_run import Documents  # noqa: E402
from tamis.rank.scored import Cedr, Parade  # noqa: E402
from tests.unit.models.builders import document_model, read_documents  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = ["sieve", "soup", "the", "of", "and", "cook", "book", "river", "stone", "bread", "water", "fire"]


@pytest.fixture(scope="module")
def start(tiny_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("start") / "model"
    return load_checkpoint(tiny_checkpoint(folder, layers=2, hidden=16, heads=2, positions=64))


@pytest.fixture(scope="module")
def folder(start, tmp_path_factory):
    """The folder of a model of each kind that was asked for."""
    root = tmp_path_factory.mktemp("models")

    def written(kind, **options):
        small = {"window": 20, "stride": 15, "passages": 4, "sequence": 48, "query": 8, "tokens": 200}
        where = root / f"{kind} {options}"
        if not where.exists():
            save_checkpoint(document_model(kind, **small | options).begin(start, 1), where)
        return str(where)

    return written


def rankings(count=3, documents=5):
    rng = np.random.default_rng(2)
    found = []
    for number in range(count):
        texts = [
            Document(f"d{place}", " ".join(rng.choice(WORDS, int(rng.integers(1, 120)))))
            for place in range(documents)
        ]
        ids = tuple(each.id for each in texts)
        query = Query(f"q{number}", " ".join(rng.choice(WORDS, 3)))
        held = Documents(texts, only=ids)
        found.append(Ranking(query, ids, -np.arange(documents, dtype=float), texts=held))
    return found


STAGES = [
    (Parade, "parade-max"),
    (Parade, "parade-transformer"),
    (Parade, "birch"),
    (Parade, "pcgm"),
    (Cedr, "cedr-knrm"),
    (Cedr, "cedr-pacrr"),
    (Cedr, "vanilla"),
    (Cedr, "drmm"),
]


@pytest.mark.parametrize(("stage", "kind"), STAGES)
def test_queries_together_are_ranked_as_one_by_one(stage, kind, folder):
    ranker = stage(folder(kind), device="cpu")
    together = ranker(rankings())
    alone = [ranker(ranking) for ranking in rankings()]
    for one, other in zip(together, alone, strict=True):
        assert one.ids == other.ids and one.kind == ScoreKind.COMBINED
        assert one.scores == pytest.approx(other.scores, abs=1e-4)
        assert (np.diff(one.scores) <= 0).all()
    assert any(one.ids != ranking.ids for one, ranking in zip(together, rankings(), strict=True))


@pytest.mark.parametrize(("stage", "kind"), [(Parade, "birch"), (Cedr, "cedr-knrm")])
def test_interpolated_scores_keep_their_order(stage, kind, start, tmp_path):
    """A hinge says nothing about where scores begin: from 8 to 11 they are no log-odds."""
    (ranking,) = rankings(1)
    made = document_model(kind, window=20, stride=15, sequence=48).begin(start, 1)
    save_checkpoint(made, tmp_path / "before")
    scores = stage(str(tmp_path / "before"), device="cpu")(ranking).scores
    scale = 3 / (scores.max() - scores.min())
    weight, bias = (f"{made.architecture.prefix}.score.{part}" for part in ("weight", "bias"))
    moved = {
        weight: made.head[weight] * np.float32(scale),
        bias: (made.head[bias] * scale + 8 - scores.min() * scale).astype(np.float32),
    }
    save_checkpoint(replace(made, head={**made.head, **moved}), tmp_path / "after")
    ranker = stage(str(tmp_path / "after"), device="cpu")
    own = ranker(ranking)
    assert (own.scores.min(), own.scores.max()) == pytest.approx((8, 11), abs=1e-3)
    came_with = {hit.id: hit.score / 4 + 1 for hit in ranking}  # 0 to -4, by min-max
    expected = {hit.id: 0.3 * came_with[hit.id] + 0.7 * (hit.score - 8) / 3 for hit in own}
    scored = replace(ranking, kind=ScoreKind.RETRIEVAL)
    found = {hit.id: hit.score for hit in Interpolate(ranker, alpha=0.3)(scored)}
    assert found == pytest.approx(expected, abs=1e-3)


def test_its_scores_are_the_models(folder):
    where = folder("parade-attn")
    loaded = load_checkpoint(where)
    network, tokenizer = loaded.architecture.network(loaded), open_tokenizer(loaded)
    (ranking,) = rankings(1)
    found = Parade(where, device="cpu")(ranking)
    asked = tokenizer.encode([ranking.query.text]).ids
    for hit in found:
        text = tokenizer.encode([ranking.texts.document(hit.id).contents]).ids
        one = read_documents(loaded.architecture, [text], tokenizer.special, loaded.config, asked)
        with torch.inference_mode():
            assert hit.score == pytest.approx(network(one.inputs).item(), abs=1e-4)


def test_maxp_in_training_is_maxp_in_a_pipeline(folder, start):
    """A dev run reads passages as the stage with the same windows does: of long documents the first."""
    small = {"window": 20, "stride": 10, "passages": 4}
    trained = Parade(folder("maxp", sequence=64, query=64, **small), device="cpu", precision="fp32")
    mono = Mono(str(start.folder), score="logit", device="cpu", precision="fp32")
    stage = MaxP(mono, unit="tokens", **small)
    for one, other in zip(trained(rankings()), stage(rankings()), strict=True):
        assert one.ids == other.ids and one.scores == pytest.approx(other.scores, abs=1e-4)
    assert stage.tally.truncation.texts_cut > 0  # there were more than four windows


def test_it_counts_passages_and_what_was_cut(folder):
    ranker = Parade(folder("parade-max", tokens=30), device="cpu")
    ranker(rankings())
    inputs = ranker.build_inputs(rankings()).inputs
    cls = ranker.scorer.tokenizer.special.cls
    assert ranker.tally.inferences == sum(int((each.ids == cls).sum()) for each in inputs) > 15
    assert ranker.tally.truncation.texts == 15 and ranker.tally.truncation.texts_cut > 0


def test_scores_come_from_the_cache_the_second_time(folder, tmp_path):
    ranker = Parade(folder("parade-max"), device="cpu", cache=tmp_path / "scores")
    first = ranker(rankings())
    second = ranker(rankings())
    assert first == second
    assert ranker.tally.inferences == ranker.tally.cached > 15
    other = Parade(folder("parade-sum"), device="cpu", cache=ranker.cache)
    assert other(rankings()) != first


def test_what_it_is(folder):
    where = folder("parade-max")
    ranker = Parade(where, device="cpu", precision="fp32")
    assert repr(ranker) == f'parade(model="{where}", precision=fp32)'
    assert ranker.fingerprint == Parade(where, device="cpu", precision="fp32").fingerprint
    assert ranker.fingerprint != Parade(folder("parade-sum"), device="cpu", precision="fp32").fingerprint
    assert ranker.description == "torch, processor, fp32"
    assert ranker.inferences(100) == 400  # of at most four passages each


@pytest.mark.parametrize("workers", [None, 1, 2])
def test_it_runs_on_as_many_cores_as_it_is_told(workers, folder, monkeypatch):
    cores = []
    real = TorchBackend.margins

    def watched(self, inputs):
        cores.append(torch.get_num_threads())
        return real(self, inputs)

    monkeypatch.setattr(TorchBackend, "margins", watched)
    torch.set_num_threads(3)  # the caller's own
    ranker = Parade(folder("parade-max"), device="cpu", workers=workers)
    ranker(rankings())
    assert set(cores) == {workers or 3} and torch.get_num_threads() == 3
    assert ranker.scorer.workers == workers


def test_no_core_is_too_few():
    with pytest.raises(InputError, match="0 processor cores: use at least 1"):
        Cedr("model", workers=0)


def test_models_of_the_other_kind_are_refused(folder):
    with pytest.raises(InputError, match=r"holds a parade-max model: write parade\(model="):
        Cedr(folder("parade-max")).prepare()
    with pytest.raises(InputError, match=r"holds a vanilla model: write cedr\(model="):
        Parade(folder("vanilla")).prepare()


def test_no_model_and_a_model_of_another_kind(start):
    with pytest.raises(InputError, match=r"no model is bundled under the name 'cedr': name one: cedr\("):
        Cedr()("query")
    with pytest.raises(InputError, match=r"holds a mono model: write mono\(model="):
        Parade(str(start.folder))("query")


def test_strange_documents(folder):
    texts = {
        "empty": "",
        "word": "sieve",
        "emoji": "\U0001f372" * 300,
        "endless": "sievesoup" * 20_000,  # no space, no sentence end
        "long": "sieve " * 50_000,
        "special": "[CLS] [SEP] sieve [CLS]",
    }
    for stage, kind in ((Parade, "parade-cnn"), (Cedr, "cedr-pacrr"), (Cedr, "knrm")):
        held = Documents([Document(*each) for each in texts.items()], only=texts)
        ranking = Ranking(Query("q", "sieve soup"), tuple(texts), np.zeros(len(texts)), texts=held)
        found = stage(folder(kind), device="cpu")(ranking)
        assert sorted(found.ids) == sorted(texts) and np.isfinite(found.scores).all()
        ranker = stage(folder(kind), device="cpu")
        assert len(ranker(Ranking(Query("q", "sieve"), texts=held))) == 0
        assert len(ranker(Ranking(Query("q", ""), ("empty",), np.zeros(1), texts=held))) == 1


def test_memory_that_does_not_suffice_is_met_by_smaller_batches(folder, monkeypatch):
    ranker = Parade(folder("parade-max"), device="cpu")
    whole = ranker(rankings())
    real = TorchBackend.margins

    def short_of_memory(self, inputs):
        if len(inputs) > 3:
            raise OutOfMemory
        return real(self, inputs)

    monkeypatch.setattr(TorchBackend, "margins", short_of_memory)
    again = Parade(folder("parade-max"), device="cpu")(rankings())
    for one, other in zip(whole, again, strict=True):
        assert one.ids == other.ids and one.scores == pytest.approx(other.scores, abs=1e-4)
