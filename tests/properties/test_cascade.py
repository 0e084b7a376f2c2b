"""Cascades: what a query's ranking may and may not depend on, whatever the candidates and the rule."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import Cascade, Document, Query, Ranking
from tamis.models.architectures.cascade import Cascade as Architecture
from tamis.models.architectures.cascade import (
    CascadeSettings,
    cost,
    entropies,
    exit_layers,
    kept,
    layers_run,
    live_at,
)
from tamis.models.checkpoint import load_checkpoint, save_checkpoint
from tamis.rank.cascade import cascaded, exited, inferred, keeping, unsure, walked
from tamis.rank.given_run import Documents

ALPHAS = st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9]) | st.floats(0, 0.999)
WORDS = ["river", "castle", "song", "war", "music", "bridge", "film", "singer", "city", "battle"]
RNG = np.random.default_rng(0)
DOCUMENTS = [Document(f"d{n:02}", " ".join(RNG.choice(WORDS, RNG.integers(1, 30)))) for n in range(24)]
TEXTS = Documents(DOCUMENTS, only=[document.id for document in DOCUMENTS])


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("cascade")
    plain = load_checkpoint(tiny_checkpoint(place / "plain", layers=4, hidden=16, heads=2, positions=48))
    kind = Architecture(CascadeSettings(exits=(1, 2), heads="trained"))
    save_checkpoint(kind.begin(plain), place / "model")
    return str(place / "model")


def ranking(query: str, places: list[int]) -> Ranking:
    ids = tuple(DOCUMENTS[place].id for place in places)
    return Ranking(Query(query, query), ids, -np.arange(len(ids), dtype=np.float64), texts=TEXTS)


some_places = st.lists(st.integers(0, len(DOCUMENTS) - 1), unique=True, max_size=12)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(WORDS), some_places), min_size=1, max_size=4), st.randoms(), ALPHAS)
def test_a_ranking_depends_on_its_own_query_alone(
    model: str, asked: list[tuple[str, list[int]]], random: object, alpha: float
) -> None:
    stage = Cascade(model, alpha=alpha, device="cpu")
    given_ = [ranking(*each) for each in asked]
    together = stage.apply(given_)
    order = list(range(len(given_)))
    random.shuffle(order)  # type: ignore[attr-defined]
    for place, found in zip(order, stage.apply([given_[place] for place in order]), strict=True):
        assert found == together[place] == stage(given_[place])
        assert set(found.ids) == set(given_[place].ids)


@given(st.integers(0, 300), st.integers(2, 24), st.data(), ALPHAS)
def test_ever_fewer_and_never_none(candidates: int, layers: int, data: st.DataObject, alpha: float) -> None:
    exits = exit_layers(layers, data.draw(st.integers(1, layers - 1)), data.draw(st.integers(1, layers)))
    counts = live_at(candidates, len(exits), alpha)
    assert counts == sorted(counts, reverse=True) and (counts[-1] > 0) == (candidates > 0)
    run = layers_run(candidates, exits, alpha)
    assert exits[0] * candidates <= run <= layers * candidates
    assert (run == layers * candidates) or alpha > 0
    # each exit rounds by half a candidate, and what it rounds goes on through all layers above
    assert abs(run - cost(exits, alpha) * layers * candidates) <= len(exits) * layers


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=40), st.integers(2, 5), st.data(), ALPHAS)
def test_nobody_who_leaves_stands_above_one_who_goes_on(
    first: list[float], exits: int, data: st.DataObject, alpha: float
) -> None:
    rows = [data.draw(st.permutations(first)) for _ in range(exits)]
    margins = np.array(rows, np.float32).T
    ids = [f"d{n:02}" for n in range(len(first))]
    reached = walked(margins, keeping(ids, alpha))
    assert reached is not None
    last = np.count_nonzero(~np.isnan(reached), axis=1) - 1
    found = cascaded(Ranking(Query("q", ""), tuple(ids), np.zeros(len(ids))), reached, alpha)
    places = [int(identity[1:]) for identity in found.ids]
    assert [last[n] for n in places] == sorted(last, reverse=True)
    for one, two in pairwise(places):
        if last[one] == last[two]:
            assert (-margins[one, last[one]], ids[one]) < (-margins[two, last[two]], ids[two])
    for number in range(exits - 1):
        live = np.flatnonzero(last >= number)
        going = np.flatnonzero(last > number)
        assert len(going) == kept(len(live), alpha)
        if len(going) < len(live):
            left = np.setdiff1d(live, going)
            assert margins[going, number].min() >= margins[left, number].max()


ENTROPIES = st.sampled_from([0.0, 0.1, 0.5, 0.6931471805599453, 0.7]) | st.floats(0, 0.7)


@given(
    st.integers(1, 5).flatmap(
        lambda exits: st.lists(
            st.lists(st.floats(-50, 50, width=32), min_size=exits, max_size=exits), min_size=1, max_size=30
        )
    ),
    st.data(),
    ENTROPIES,
)
def test_with_entropy_what_becomes_of_a_candidate_depends_on_it_alone(
    rows: list[list[float]], data: st.DataObject, entropy: float
) -> None:
    margins = np.array(rows, np.float32)
    keep = unsure(entropy)
    reached = walked(margins, keep)
    some = data.draw(st.lists(st.integers(0, len(rows) - 1), unique=True))
    alone = walked(margins[some], keep)
    assert reached is not None and alone is not None
    assert alone.tobytes() == reached[some].tobytes()
    ids = [f"d{n:02}" for n in range(len(rows))]
    everyone = exited(Ranking(Query("q", ""), tuple(ids), np.zeros(len(ids))), reached)
    fewer = exited(Ranking(Query("q", ""), tuple(ids[n] for n in some), np.zeros(len(some))), alone)
    assert [identity for identity in everyone.ids if identity in fewer.ids] == list(fewer.ids)
    layers = range(2, 2 + margins.shape[1])
    assert -(-2 * len(rows) // layers[-1]) <= inferred(reached, layers) <= len(rows)
    # a lower threshold lets nobody leave earlier
    lower = walked(margins, unsure(data.draw(st.floats(0, entropy))))
    assert lower is not None and (np.isnan(lower) <= np.isnan(reached)).all()


@settings(max_examples=40)
@given(st.sampled_from(WORDS), some_places, st.randoms(), st.integers(0, 2 * len(DOCUMENTS)))
def test_with_entropy_a_score_does_not_depend_on_the_other_candidates(
    model: str, query: str, places: list[int], random: object, rank: int
) -> None:
    whole = ranking(query, list(range(len(DOCUMENTS))))
    reader = Cascade(model, device="cpu")
    (inputs,) = reader.build_inputs([whole]).inputs
    everywhere = entropies(reader.scorer.walk(inputs, unsure(0.0))[:, :-1]).ravel()
    below, above = np.sort([0.0, *everywhere, 0.7])[[rank, rank + 1]]
    stage = Cascade(model, entropy=(below + above) / 2, device="cpu")
    scores = {hit.id: hit.score for hit in stage(whole).head(len(DOCUMENTS))}
    random.shuffle(places)  # type: ignore[attr-defined]
    for hit in stage(ranking(query, places)).head(len(places)):
        assert hit.score == scores[hit.id], "to the last bit"
