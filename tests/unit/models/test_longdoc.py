"""How long documents are read, and the stages that rank them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis import Document, MaxP, Mono, Query  # noqa: E402
from tamis.base.errors import InputError  # noqa: E402
from tamis.core.ranking import Ranking, ScoreKind  # noqa: E402
from tamis.infer.engine import OutOfMemory  # noqa: E402
from tamis.infer.longdoc_backend import LongBackend  # noqa: E402
from tamis.models.checkpoint import load_checkpoint  # noqa: E402
from tamis.models.config import EncoderConfig  # noqa: E402
from tamis.models.long_checkpoint import begin, load_long, save_long  # noqa: E402
from tamis.models.long_plan import LongDoc  # noqa: E402
from tamis.models.longdoc import Layout, read  # noqa: E402
from tamis.models.templates import Special, Tokenised  # noqa: E402
from tamis.rank.combine import Interpolate  # noqa: E402
from tamis.rank.given_run import Documents  # noqa: E402
from tamis.rank.longdoc import Cedr, Parade  # noqa: E402
from tamis.text.segment import even_chunks  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

SPECIAL = Special(cls=1, sep=2)
CONFIG = EncoderConfig("bert", 400, hidden=8, layers=1, heads=1, feed_forward=8)


def made(plan, *texts, query=(7,), config=CONFIG, seed=0):
    own = np.zeros(len(texts), np.int64)
    return read(Tokenised.of([list(query)]), own, Tokenised.of(texts), SPECIAL, plan, config, seed=seed)


def passages(found):
    """The text of each passage, document by document."""
    there = Layout.of(found.inputs, SPECIAL)
    texts = [
        found.inputs.ids[start : start + count].tolist()
        for start, count in zip(there.text_starts, there.text_counts, strict=True)
    ]
    return [texts[start:stop] for start, stop in zip(there.offsets, there.offsets[1:], strict=False)]


def text(count, first=10):
    return list(range(first, first + count))


# -- reading


def test_windows_overlap_and_the_last_takes_what_is_left():
    found = made(LongDoc("parade-max", window=4, stride=3), text(9), text(4), text(5))
    assert passages(found) == [
        [[10, 11, 12, 13], [13, 14, 15, 16], [16, 17, 18]],
        [[10, 11, 12, 13]],
        [[10, 11, 12, 13], [13, 14]],
    ]
    assert found.truncation.text_tokens_lost == 0


def test_chunks_are_as_even_as_possible():
    plan = LongDoc("cedr-knrm", sequence=8)  # 8 less three special tokens and the query: 4
    assert [list(map(len, each)) for each in passages(made(plan, text(9), text(4), text(5), text(16)))] == [
        [3, 3, 3],
        [4],
        [3, 2],
        [4, 4, 4, 4],
    ]


def test_chunks_are_those_of_stages_with_even_ones():
    """CEDR and `unit=even` cut alike: the longer chunks come first."""
    plan = LongDoc("cedr-knrm", sequence=8)
    for count in range(1, 60):
        (found,) = passages(made(plan, text(count)))
        whole = text(count)
        assert found == [whole[start:stop] for start, stop in even_chunks(count, 4)]


@pytest.mark.parametrize("kind", ["parade-max", "cedr-knrm", "knrm"])
def test_every_token_is_read_in_its_order(kind):
    config = None if kind == "knrm" else CONFIG
    found = made(LongDoc(kind, window=30, stride=30, sequence=64), text(150, 100), config=config)
    assert [token for each in passages(found)[0] for token in each] == text(150, 100)


def test_static_embeddings_read_a_document_at_once():
    found = made(LongDoc("knrm"), text(900), config=None)
    assert len(passages(found)[0]) == 1


def test_an_empty_document_is_one_empty_passage():
    for kind in ("parade-max", "cedr-knrm"):
        found = made(LongDoc(kind), [], text(3))
        assert passages(found) == [[[]], [text(3)]]


def test_a_long_query_makes_windows_smaller_and_loses_no_text():
    plan = LongDoc("parade-max", window=8, stride=6, sequence=16, query=10)
    found = made(plan, text(20, 100), query=text(10))  # leaves 16 - 3 - 6 = 7 tokens
    lengths = np.diff(Layout.of(found.inputs, SPECIAL).passages.offsets)
    assert lengths.max() <= 16
    assert sorted({token for each in passages(found)[0] for token in each}) == text(20, 100)
    assert found.truncation.text_tokens_lost == 0
    assert found.truncation.query_tokens_lost == 4  # a query takes at most half of the room


def test_too_many_windows_keep_the_first_the_last_and_some_between():
    plan = LongDoc("parade-max", window=10, stride=10, passages=5, tokens=1000)
    found = made(plan, text(300, 50), text(30))
    assert found.offsets.tolist() == [0, 5, 8]
    kept = found.numbers[:5].tolist()
    assert kept[0] == 0 and kept[-1] == 29 and kept == sorted(set(kept))
    assert found.truncation.text_tokens_lost == 250 and found.truncation.texts_cut == 1
    # by the document's own length alone, and by the seed
    assert made(plan, text(300, 50)).numbers.tolist() == kept
    assert made(plan, text(300, 50), seed=1).numbers.tolist() != kept


def test_what_is_lost_counts_overlaps_once():
    plan = LongDoc("parade-max", window=10, stride=5, passages=2, tokens=100)
    found = made(plan, text(100))  # the first ten and the last ten
    assert found.truncation.text_tokens_lost == 80
    cut = made(LongDoc("cedr-knrm", tokens=60), text(100)).truncation
    assert (cut.texts_cut, cut.text_tokens_lost) == (1, 40)


@pytest.mark.parametrize("kind", ["parade-transformer", "birch", "pcgm"])
def test_the_end_of_a_long_document_is_read(kind):
    """Unless told, it is the windows that are limited: the first, the last and others."""
    found = made(LongDoc(kind), text(5_000, 100))
    (read_,) = passages(found)
    assert len(read_) == 16
    assert read_[0] == text(225, 100) and read_[-1][-1] == 5_099
    assert found.truncation.text_tokens_lost == 5_000 - len({token for each in read_ for token in each})


@pytest.mark.parametrize("kind", ["vanilla", "cedr-knrm", "knrm"])
def test_chunks_are_of_the_whole_document(kind):
    found = made(LongDoc(kind), text(5_000, 100), config=None if kind == "knrm" else CONFIG)
    assert [token for each in passages(found)[0] for token in each] == text(5_000, 100)
    assert found.truncation.texts_cut == 0


@pytest.mark.parametrize("kind", ["parade-max", "cedr-knrm", "knrm"])
@pytest.mark.parametrize("tokens", [8_000, 8_192])
def test_an_endless_document_is_bounded_and_reported(kind, tokens):
    """Counting stops at 8,192 tokens: of what comes after them no more is known than that it is there."""
    config = None if kind == "knrm" else CONFIG
    found = made(LongDoc(kind, tokens=tokens), text(100_000, 100), config=config)
    read_ = [token for each in passages(found)[0] for token in each]
    assert read_[-1] == tokens + 99
    assert found.truncation.texts_cut == 1 and found.truncation.at_least
    assert found.truncation.text_tokens_lost >= 1


def test_maxp_reads_the_first_windows_as_the_stage_does():
    plan = LongDoc("maxp", window=10, stride=10, passages=5)
    assert made(plan, text(300, 50), seed=3).numbers.tolist() == [0, 1, 2, 3, 4]
    assert made(plan, text(30, 50)).numbers.tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", ["parade-max", "birch", "cedr-pacrr", "knrm"])
def test_a_narrative_is_read_whole(kind):
    """A query of a TREC narrative is cut for no text: the text makes room."""
    config = None if kind == "knrm" else CONFIG
    found = made(LongDoc(kind), text(900, 200), query=text(120), config=config)
    assert found.truncation.query_tokens_lost == 0 and found.truncation.text_tokens_lost == 0


def test_ten_thousand_passages():
    found = made(LongDoc("parade-max", window=1, stride=1, tokens=8192, passages=16), text(10_000))
    assert len(passages(found)[0]) == 16


# -- stages

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
            save_long(begin(start, LongDoc(kind, **small | options), seed=1), where)
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
    made_ = begin(start, LongDoc(kind, window=20, stride=15, sequence=48), seed=1)
    save_long(made_, tmp_path / "before")
    scores = stage(str(tmp_path / "before"), device="cpu")(ranking).scores
    scale = 3 / (scores.max() - scores.min())
    with torch.no_grad():
        made_.model.head.score.weight *= scale
        made_.model.head.score.bias.copy_(made_.model.head.score.bias * scale + 8 - scores.min() * scale)
    save_long(made_, tmp_path / "after")
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
    long = load_long(where)
    (ranking,) = rankings(1)
    found = Parade(where, device="cpu")(ranking)
    asked = long.tokenizer.encode([ranking.query.text])
    for hit in found:
        texts = long.tokenizer.encode([ranking.texts.document(hit.id).contents])
        one = read(asked, np.zeros(1, np.int64), texts, long.model.special, long.plan, long.model.config)
        with torch.inference_mode():
            assert hit.score == pytest.approx(long.model(one.inputs).item(), abs=1e-4)


def test_maxp_in_training_is_maxp_in_a_pipeline(folder, start):
    """A dev run reads passages as the stage with the same windows does: of long documents the first."""
    small = {"window": 20, "stride": 10, "passages": 4}
    trained = Parade(folder("maxp", sequence=64, query=64, **small), device="cpu", precision="fp32")
    mono = Mono(str(start.folder), score="logit", device="cpu", precision="fp32")
    stage = MaxP(mono, unit="tokens", **small)
    for one, other in zip(trained(rankings()), stage(rankings()), strict=True):
        assert one.ids == other.ids and one.scores == pytest.approx(other.scores, abs=1e-4)
    assert stage.tally.truncation.texts_cut > 0  # there were more than four windows


def test_it_counts_documents_and_what_was_cut(folder):
    ranker = Parade(folder("parade-max", tokens=30), device="cpu")
    ranker(rankings())
    assert ranker.tally.inferences == 15
    assert ranker.tally.truncation.texts == 15 and ranker.tally.truncation.texts_cut > 0


def test_scores_come_from_the_cache_the_second_time(folder, tmp_path):
    ranker = Parade(folder("parade-max"), device="cpu", cache=tmp_path / "scores")
    first = ranker(rankings())
    second = ranker(rankings())
    assert first == second
    assert (ranker.tally.inferences, ranker.tally.cached) == (15, 15)
    other = Parade(folder("parade-sum"), device="cpu", cache=ranker.cache)
    assert other(rankings()) != first


def test_what_it_is(folder):
    where = folder("parade-max")
    ranker = Parade(where, device="cpu", precision="fp32")
    assert repr(ranker) == f'parade(model="{where}", precision=fp32)'
    assert ranker.fingerprint == Parade(where, device="cpu", precision="fp32").fingerprint
    assert ranker.fingerprint != Parade(folder("parade-sum"), device="cpu", precision="fp32").fingerprint
    assert ranker.description == "torch, processor, fp32"
    assert ranker.inferences(100) == 100


@pytest.mark.parametrize("workers", [None, 1, 2])
def test_it_runs_on_as_many_cores_as_it_is_told(workers, folder, monkeypatch):
    cores = []
    real = LongBackend.margins

    def watched(self, inputs):
        cores.append(torch.get_num_threads())
        return real(self, inputs)

    monkeypatch.setattr(LongBackend, "margins", watched)
    torch.set_num_threads(3)  # the caller's own
    ranker = Parade(folder("parade-max"), device="cpu", workers=workers)
    ranker(rankings())
    assert set(cores) == {workers or 3} and torch.get_num_threads() == 3
    assert ranker.encoder.workers == workers


def test_no_core_is_too_few():
    with pytest.raises(InputError, match="0 processor cores: use at least 1"):
        Cedr("model", workers=0)


def test_models_of_the_other_kind_are_refused(folder):
    with pytest.raises(InputError, match=r"holds a parade-max model: write parade\(model="):
        Cedr(folder("parade-max")).prepare()
    with pytest.raises(InputError, match=r"holds a vanilla model: write cedr\(model="):
        Parade(folder("vanilla")).prepare()


def test_no_model_and_a_model_of_another_kind(start):
    with pytest.raises(InputError, match="no folder cedr: name the folder of a trained model"):
        Cedr()("query")
    with pytest.raises(InputError, match="holds no model of long documents"):
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
    real = LongBackend.margins

    def short_of_memory(self, inputs):
        if len(inputs) > 3:
            raise OutOfMemory
        return real(self, inputs)

    monkeypatch.setattr(LongBackend, "margins", short_of_memory)
    again = Parade(folder("parade-max"), device="cpu")(rankings())
    for one, other in zip(whole, again, strict=True):
        assert one.ids == other.ids and one.scores == pytest.approx(other.scores, abs=1e-4)
