"""Mono and Duo over tiny models: whatever scores these give, the bookkeeping around them must be right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Duo, Index, Mono, Query, Ranking, ScoreKind
from tamis.base.arrays import Array
from tamis.base.errors import InputError, TamisError, UnknownDocumentError
from tamis.infer.onnx_backend import OnnxBackend
from tamis.infer.scorer import Tally
from tamis.infer.tokens import build_tokens
from tamis.models.checkpoint import load_checkpoint
from tamis.models.templates import Inputs
from tamis.rank.aggregate import probability
from tamis.rank.passage import SumP

WORDS = [
    "river",
    "castle",
    "song",
    "war",
    "music",
    "bridge",
    "film",
    "singer",
    "city",
    "battle",
    "king",
    "novel",
]


def texts_of(count: int, seed: int = 0) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, generator.integers(3, 30))) for _ in range(count)]


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_checkpoint(folder / "mono", labels=1)
    tiny_checkpoint(folder / "mono2", labels=2)
    tiny_checkpoint(folder / "duo", segments=3, labels=2, seed=3)
    tiny_checkpoint(folder / "roberta", "roberta", segments=1)
    tiny_checkpoint(folder / "short", positions=48)
    return folder


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    documents = [Document(f"d{number:03}", text) for number, text in enumerate(texts_of(120))]
    return Index.build(documents, tmp_path_factory.mktemp("index") / "idx")


def mono(models: Path, name: str = "mono", **options: object) -> Mono:
    return Mono(str(models / name), **options)  # type: ignore[arg-type]


def duo(models: Path, **options: object) -> Duo:
    return Duo(str(models / "duo"), **options)  # type: ignore[arg-type]


# -- Mono


def test_mono_scores_the_papers_input(models: Path) -> None:
    """[CLS] q [SEP] d [SEP], written out here and scored by the backend itself."""
    stage = mono(models, precision="fp32")
    tokenizer = stage.scorer.tokenizer
    query, text = (tokenizer.encode([each]).ids.tolist() for each in ("castle song", "river music war"))
    special = tokenizer.special
    ids = [special.cls, *query, special.sep, *text, special.sep]
    segments = [0] * (len(query) + 2) + [1] * (len(text) + 1)
    inputs = Inputs(np.array(ids, np.int32), np.array(segments, np.uint8), np.array([0, len(ids)]))
    (margin,) = OnnxBackend(load_checkpoint(models / "mono"), "fp32").margins(inputs)
    (ranked,) = stage.rank("castle song", ["river music war"])
    assert ranked.score == pytest.approx(1 / (1 + np.exp(-float(margin))), rel=1e-12)


def test_mono_ignores_incoming_scores_and_order(index: Index, models: Path) -> None:
    stage = mono(models)
    found = (index.bm25() % 40)("castle song")
    turned = Ranking(found.query, found.ids[::-1], np.zeros(len(found)), ScoreKind.RETRIEVAL, index)
    assert stage(found) == stage(turned)
    assert stage(found).kind == ScoreKind.PROBABILITY
    assert set(stage(found).ids) == set(found.ids)


@pytest.mark.parametrize("name", ["mono", "mono2"])
def test_the_order_does_not_depend_on_the_form_shown(index: Index, models: Path, name: str) -> None:
    found = (index.bm25() % 60)("castle song river")
    shown = [mono(models, name, score=form)(found) for form in ("probability", "logit", "log-probability")]
    assert shown[0].ids == shown[1].ids == shown[2].ids
    assert [ranking.kind for ranking in shown] == ["probability", "logit", "log-probability"]
    logits = shown[1].scores
    assert np.allclose(shown[0].scores, probability(logits), rtol=1e-12)
    assert np.allclose(shown[2].scores, np.log(probability(logits)), rtol=1e-9)


def test_saturated_probabilities_keep_the_order_of_the_logits(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = mono(models)
    margins = np.array([50.0, 60.0, 55.0, -800.0, -790.0], np.float32)
    monkeypatch.setattr(type(stage.scorer), "margins", lambda self, inputs, progress=None: margins)
    assert [ranked.position for ranked in stage.rank("q", ["a", "b", "c", "d", "e"])] == [1, 2, 0, 4, 3]


def test_queries_ranked_together_rank_as_alone(index: Index, models: Path) -> None:
    pipeline = index.bm25() % 30 >> mono(models)
    queries = ["castle", "song of the river", "war film", "nothing matches zzz", ""]
    together = pipeline(queries)
    assert [ranking.ids for ranking in together] == [pipeline(query).ids for query in queries]
    assert all(
        np.array_equal(one.scores, pipeline(query).scores)
        for one, query in zip(together, queries, strict=True)
    )
    assert len(together[3]) == 0


def test_tokens_kept_beside_the_index_change_nothing(models: Path, tmp_path: Path) -> None:
    documents = [Document(f"d{number:03}", text) for number, text in enumerate(texts_of(50, seed=4))]
    index = Index.build(documents, tmp_path / "idx")
    stage = mono(models)
    before = (index.bm25() % 30 >> stage)("castle song")
    build_tokens(index, stage.scorer.tokenizer)
    opened = Index.open(tmp_path / "idx")
    assert (opened.bm25() % 30 >> mono(models))("castle song") == before


def test_the_tally_counts_inferences_and_what_was_cut(models: Path) -> None:
    stage = mono(models, "short")
    stage.rank("castle song", ["river " * 100, "war", "castle " * 60])
    assert stage.tally.inferences == 3
    assert (stage.tally.truncation.texts, stage.tally.truncation.texts_cut) == (3, 2)
    assert stage.tally.truncation.text_tokens_lost > 50
    stage.rank("castle song", ["war"])
    assert stage.tally.inferences == 4


def test_a_model_with_room_for_it_reads_more_than_512_tokens(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    tiny_checkpoint(tmp_path / "long", positions=1024)
    document = Document("d", "a " * 900 + "b")
    index = Index.build([document], tmp_path / "idx")
    for limit, lost in ((512, 901 - (512 - 3 - 1)), (1024, 0)):
        stage = mono(tmp_path, "long", limit=limit)
        stage.rank("b", [document])
        (index.bm25() >> stage)("b")
        assert stage.tally.truncation.text_tokens_lost == 2 * lost
        build_tokens(index, stage.scorer.tokenizer)  # the first 512, which are too few for the next
    passages = SumP(stage, window=901, stride=901, passages=None)
    passages.rank("b", [document])
    assert (passages.tally.inferences, passages.tally.truncation.text_tokens_lost) == (1, 0)


def test_a_long_query_is_cut_to_its_budget(models: Path) -> None:
    stage = mono(models)
    stage.rank("castle " * 200, ["river"])
    assert stage.tally.truncation.queries_cut == 1
    long, cut = (stage.rank("castle " * count, ["river"])[0].score for count in (200, 300))
    assert long == cut


def test_no_index_texts_is_an_error(models: Path) -> None:
    bare = Ranking(Query("q", "castle"), ("d1",), np.array([1.0]), ScoreKind.RETRIEVAL)
    with pytest.raises(TamisError, match="query '0' has no candidates: begin with a stage that searches"):
        mono(models)("castle")
    with pytest.raises(TamisError, match="the candidates of query 'q' have no texts: give the corpus"):
        mono(models)(bare)


def test_an_id_that_the_index_lacks_is_an_error(index: Index, models: Path) -> None:
    wrong = Ranking(Query("q", "castle"), ("d000", "gone"), np.array([2.0, 1.0]), ScoreKind.RETRIEVAL, index)
    with pytest.raises(UnknownDocumentError, match="'gone'"):
        mono(models)(wrong)


# -- candidates from elsewhere


def test_rank_keeps_ids_metadata_and_the_callers_objects(models: Path) -> None:
    items = [
        {"id": "x", "text": "river castle", "price": 3},
        "song",
        Document("z", "war music", title="film"),
        {"_id": 7, "contents": "bridge"},
    ]
    before = [dict(item) if isinstance(item, dict) else item for item in items]
    ranked = mono(models).rank("castle", items)
    assert items == before
    assert sorted(one.id for one in ranked) == ["1", "7", "x", "z"]
    assert all(one.item is items[one.position] for one in ranked)
    assert [one.rank for one in ranked] == [1, 2, 3, 4]
    assert [one.score for one in ranked] == sorted((one.score for one in ranked), reverse=True)
    assert mono(models).rank("castle", items, top_k=2) == ranked[:2]
    assert mono(models).rank("castle", items, top_k=0) == []


def test_candidates_may_be_any_iterable(models: Path) -> None:
    texts = {3: "river castle", 0: "song", 1: "war music"}

    class Table:
        """Its rows have names, as those of a data frame that was sorted have."""

        def __iter__(self) -> Iterator[str]:
            return iter(texts.values())

        def __getitem__(self, name: int) -> str:
            return texts[name]

    rows = list(texts.values())
    ranked = mono(models).rank("castle", rows)
    for candidates in (iter(rows), texts.values(), np.array(rows), Table()):
        assert mono(models).rank("castle", candidates) == ranked


def test_fields_that_are_none_are_not_there(models: Path) -> None:
    (one,) = mono(models).rank(
        "castle", [{"id": None, "_id": "x", "title": None, "text": None, "body": "war"}]
    )
    assert (one.id, one.text) == ("x", "war")
    (one,) = mono(models).rank("castle", [{"id": None, "text": "war"}])
    assert one.id == "0"
    with pytest.raises(InputError, match="the title of candidate 0 is int: give a str, or none"):
        mono(models).rank("castle", [{"title": 1984, "text": "war"}])


def test_equal_texts_keep_their_order_and_equal_ids_do_not_clash(models: Path) -> None:
    same = [{"id": "a", "text": "river"}, {"id": "a", "text": "river"}, {"id": "a", "text": "castle"}]
    ranked = mono(models).rank("q", same)
    places = [one.position for one in ranked]
    assert sorted(places) == [0, 1, 2]
    assert places.index(0) < places.index(1)


def test_more_than_ten_candidates_tie_in_their_order(models: Path) -> None:
    assert [one.position for one in mono(models).rank("q", ["river"] * 12)] == list(range(12))


@pytest.mark.parametrize(
    "text", ["", " ", "\x00\x01\x02", "🙂🙂🙂", "\ud800 half", "a" * 3000, "né \u200f עברית"]
)
def test_odd_texts_and_queries_are_scored(models: Path, text: str) -> None:
    for stage in (mono(models), mono(models, "roberta")):
        (one,) = stage.rank("castle", [text])
        (other,) = stage.rank(text, ["castle"])
        assert 0 <= one.score <= 1 and 0 <= other.score <= 1


def test_a_document_of_five_megabytes(models: Path) -> None:
    stage = mono(models)
    ranked = stage.rank("castle", ["river castle " * 400_000, "song"])
    assert len(ranked) == 2
    assert stage.tally.truncation.texts_cut == 1
    assert stage.tally.truncation.at_least


def test_no_candidates(models: Path) -> None:
    assert mono(models).rank("castle", []) == []
    assert duo(models).rank("castle", []) == []


def test_candidates_that_are_none(models: Path) -> None:
    stage = mono(models)
    with pytest.raises(InputError, match="one candidate where several are wanted: give a list"):
        stage.rank("q", "a text")
    with pytest.raises(InputError, match="candidate 1 has no text: give it a 'text'"):
        stage.rank("q", ["a", {"id": "x"}])
    with pytest.raises(InputError, match="candidate 0 is int"):
        stage.rank("q", [3])  # type: ignore[list-item]


# -- Duo


def scored_alone(stage: Duo, query: str, one: str, other: str) -> float:
    """P(one beats the other), from an input written out here."""
    tokenizer = stage.scorer.tokenizer
    special = tokenizer.special
    parts = [tokenizer.encode([text]).ids.tolist() for text in (query, one, other)]
    ids = [special.cls]
    segments = [0]
    for number, part in enumerate(parts):
        ids += [*part, special.sep]
        segments += [number] * (len(part) + 1)
    inputs = Inputs(np.array(ids, np.int32), np.array(segments, np.uint8), np.array([0, len(ids)]))
    return float(probability(stage.scorer.margins(inputs))[0])


def test_duo_sums_what_its_opponents_concede(models: Path) -> None:
    texts = ["river castle", "song", "war music film"]
    stage = duo(models)
    p = [[scored_alone(stage, "castle", a, b) if a != b else 0.0 for b in texts] for a in texts]
    found = {one.position: one.score for one in stage.rank("castle", texts)}
    assert found == pytest.approx({i: sum(p[i]) for i in range(3)}, abs=1e-12)
    assert len({round(score, 6) for score in found.values()}) == 3


@pytest.mark.parametrize("aggregate", ["sum", "binary", "min", "max", "sample"])
def test_duo_permuted_candidates_rank_alike(index: Index, models: Path, aggregate: str) -> None:
    options: dict[str, object] = {"m": 100} if aggregate == "sample" else {}
    stage = duo(models, aggregate=aggregate, **options)
    found = (index.bm25() % 8)("castle song")
    order = np.random.default_rng(0).permutation(len(found))
    turned = Ranking(
        found.query,
        tuple(found.ids[i] for i in order.tolist()),
        -np.arange(8, dtype=np.float64),
        ScoreKind.RETRIEVAL,
        index,
    )
    one, other = stage(found), stage(turned)
    assert dict(zip(one.ids, one.scores.tolist(), strict=True)) == dict(
        zip(other.ids, other.scores.tolist(), strict=True)
    )


def test_every_ordered_pair_is_scored_once(index: Index, models: Path) -> None:
    stage = duo(models)
    (index.bm25() % 7 >> stage)("castle song")
    assert stage.tally.inferences == stage.inferences(7) == 42
    sampled = duo(models, aggregate="sample", m=2)
    (index.bm25() % 7 >> sampled)("castle song")
    assert sampled.tally.inferences == sampled.inferences(7) == 14


def test_candidates_beyond_k_stay_below_in_their_order(index: Index, models: Path) -> None:
    found = (index.bm25() % 20)("castle song")
    settled = duo(models, k=5)(found)
    assert set(settled.ids[:5]) == set(found.ids[:5])
    assert settled.ids[5:] == tuple(found.ids[5:])
    assert (np.diff(settled.scores) <= 0).all()
    assert settled.scores[4] >= 0 > settled.scores[5]
    one = (index.bm25() % 1 >> duo(models))("castle song")
    assert len(one) == 1


def test_duo_needs_three_segments(models: Path) -> None:
    with pytest.raises(InputError, match="duo needs three segment types where the model has 2"):
        Duo(str(models / "mono")).rank("q", ["a", "b"])


def test_a_model_that_does_not_take_the_inputs_is_found_before_there_are_any(models: Path) -> None:
    with pytest.raises(InputError, match="no room for a text and a query: raise the limit"):
        mono(models, "roberta", limit=5).prepare()
    with pytest.raises(InputError, match="duo needs three segment types where the model has 2"):
        Duo(str(models / "mono")).prepare()
    for stage in (mono(models, limit=5), duo(models)):
        stage.prepare()
        assert stage.tally == Tally()


# -- what a stage is


def test_expressions_round_trip(models: Path, index: Index) -> None:
    for text in (
        f'bm25 % 100 >> mono(model="{models}/mono", score=logit, limit=128) % 5',
        f'mono(model="{models}/mono", form=swapped, precision=fp32)',
        f'duo(model="{models}/duo", aggregate=sample, m=3, seed=1, k=10)',
    ):
        assert repr(index.pipeline(text)) == text


def test_fingerprints_say_what_scores_depend_on(models: Path) -> None:
    stages = [
        mono(models),
        mono(models, "mono2"),
        mono(models, precision="fp32"),
        mono(models, form="swapped"),
        mono(models, form="no-positions"),
        mono(models, score="logit"),
        mono(models, limit=100),
        duo(models),
        duo(models, aggregate="min"),
    ]
    assert len({stage.fingerprint for stage in stages}) == len(stages)
    assert mono(models).fingerprint == mono(models, workers=1).fingerprint


def test_the_forms_of_the_input_matter(models: Path) -> None:
    texts = texts_of(6, seed=9)
    seen: dict[str, Array] = {}
    for form in ("default", "no-positions", "no-segments", "swapped", "markers"):
        ranked = mono(models, form=form, precision="fp32").rank("castle song", texts)
        seen[form] = np.array([one.score for one in sorted(ranked, key=lambda one: one.position)])
    values = list(seen.values())
    assert all(not np.allclose(values[i], values[j]) for i in range(5) for j in range(i))


def test_without_positions_the_order_of_words_does_not_matter(models: Path) -> None:
    stage = mono(models, form="no-positions", precision="fp32")
    one, other = (stage.rank("castle", [text])[0].score for text in ("river song war", "war river song"))
    assert one == pytest.approx(other, abs=1e-6)
    plain = mono(models, precision="fp32")
    one, other = (plain.rank("castle", [text])[0].score for text in ("river song war", "war river song"))
    assert one != pytest.approx(other, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "percent"}, "no score 'percent': use probability"),
        ({"device": "tpu"}, "no device 'tpu': use auto, cpu, cuda, mps"),
        ({"precision": "int4"}, "no precision 'int4'"),
        ({"form": "odd"}, "no form 'odd'"),
        ({"query_limit": 0}, "a query_limit of 0 tokens: use 1 or more"),
        ({"limit": -1}, "a limit of -1 tokens: use 1 or more"),
    ],
)
def test_unknown_options(models: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        mono(models, **options)


def test_duo_reads_as_much_as_it_is_told(models: Path) -> None:
    """As a model that was trained with other limits wants it."""
    stage, whole = duo(models, query_limit=3, limit=27), duo(models)
    assert str(stage).endswith("query_limit=3, limit=27)")
    query, texts = "a b c d e", ["f " * 40, "g h " * 40]  # letters are a token each
    # [CLS] query [SEP] text [SEP] text [SEP]: 23 without those, 3 of them for the query
    short = [" ".join(text.split()[:10]) for text in texts]
    cut = stage.rank(query, texts)
    assert [each.score for each in cut] == [each.score for each in whole.rank("a b c", short)]
    assert [each.score for each in cut] != [each.score for each in whole.rank(query, texts)]
    for options in ({"query_limit": 0}, {"limit": 0}):
        with pytest.raises(InputError, match="of 0 tokens: use 1 or more"):
            duo(models, **options)


# -- the cache


def test_with_a_cache_the_ranking_is_the_same_and_the_model_rests(
    index: Index, models: Path, tmp_path: Path
) -> None:
    file = tmp_path / "scores.db"
    plain = index.bm25() % 40 >> mono(models) % 6 >> duo(models)
    queries = ["castle song", "river", "war film"]
    wanted = plain(queries)
    for expected in (3 * 40 + 3 * 30, 0):
        first, second = mono(models, cache=file), duo(models, cache=file)
        assert (index.bm25() % 40 >> first % 6 >> second)(queries) == wanted
        assert first.tally.inferences + second.tally.inferences == expected
        assert first.tally.cached + second.tally.cached == 210 - expected
    deeper = mono(models, cache=file)
    assert (index.bm25() % 60 >> deeper)("river") == (index.bm25() % 60 >> mono(models))("river")
    assert deeper.tally.cached == 40


def test_a_changed_text_model_or_form_is_not_found_in_the_cache(models: Path, tmp_path: Path) -> None:
    file = tmp_path / "scores.db"
    mono(models, cache=file).rank("castle", ["river song"])
    for stage, query, text in (
        (mono(models, cache=file), "castle", "river songs"),
        (mono(models, cache=file), "castles", "river song"),
        (mono(models, "mono2", cache=file), "castle", "river song"),
        (mono(models, precision="fp32", cache=file), "castle", "river song"),
        (mono(models, form="swapped", cache=file), "castle", "river song"),
        (mono(models, form="no-segments", cache=file), "castle", "river song"),
    ):
        stage.rank(query, [text])
        assert (stage.tally.inferences, stage.tally.cached) == (1, 0)
    again = mono(models, cache=file)
    again.rank("castle", ["river song"])
    assert (again.tally.inferences, again.tally.cached) == (0, 1)
