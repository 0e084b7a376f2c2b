"""What holds for passage scores whatever the documents: order, neighbours, padding, permutation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamis import BM25, AvgP, Document, FirstP, KMaxP, MaxP, Mono, Query, Ranking, ScoreKind, SumP
from tamis.rank.birch import birch
from tamis.rank.given_run import Documents
from tamis.rank.passage import avg_p, first_p, k_max_p, max_p, sum_p

probabilities = st.lists(st.floats(0, 1), min_size=1, max_size=40).map(np.array)
texts = st.lists(st.sampled_from(["river", "castle.", "song", "Wars!", "🙂", "\n\n", "é"]), max_size=30).map(
    " ".join
)
quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(probabilities, st.randoms(use_true_random=False), st.integers(1, 9))
def test_permutations(scores: np.ndarray, random: object, k: int) -> None:
    """All but FirstP are the same to the last bit in any order of the passages."""
    turned = scores.copy()
    random.shuffle(turned)  # type: ignore[attr-defined]
    for formula in (max_p, sum_p, avg_p, lambda s: k_max_p(s, k)):
        assert formula(turned) == formula(scores)
    assert birch(0.3, turned, 0.5, [1, 0.5, 0.1]) == birch(0.3, scores, 0.5, [1, 0.5, 0.1])
    assert first_p(scores) == scores[0]


@given(probabilities, st.integers(1, 9))
def test_order_of_the_aggregates(scores: np.ndarray, k: int) -> None:
    assert avg_p(scores) <= k_max_p(scores, k) + 1e-12
    assert k_max_p(scores, k) <= max_p(scores) + 1e-12
    assert max_p(scores) <= sum_p(scores) + 1e-12
    assert k_max_p(scores, 1) == max_p(scores)
    assert k_max_p(scores, len(scores)) == pytest.approx(avg_p(scores), rel=1e-12)


@given(probabilities, st.floats(0, 1))
def test_a_passage_more(scores: np.ndarray, more: float) -> None:
    longer = np.append(scores, more)
    assert max_p(longer) >= max_p(scores)
    assert sum_p(longer) >= sum_p(scores)
    assert first_p(longer) == first_p(scores)


@pytest.fixture(scope="module")
def stage(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Mono:
    return Mono(str(tiny_checkpoint(tmp_path_factory.mktemp("model"), layers=1, positions=64)), workers=1)


def ranking(documents: list[Document]) -> Ranking:
    ids = tuple(document.id for document in documents)
    scores = -np.arange(len(ids), dtype=np.float64)
    return Ranking(
        Query("q", "castle song"), ids, scores, ScoreKind.RETRIEVAL, Documents(documents, only=ids)
    )


@quick
@given(st.lists(texts, min_size=1, max_size=5), st.sampled_from(["words", "tokens", "sentences", "even"]))
def test_a_score_does_not_depend_on_the_other_documents(stage: Mono, drawn: list[str], unit: str) -> None:
    documents = [Document(f"d{number}", text) for number, text in enumerate(drawn)]
    for kind in (FirstP, MaxP, SumP, AvgP, KMaxP):
        each = kind(stage, window=5, unit=unit)  # type: ignore[arg-type]
        together = {hit.id: hit.score for hit in each(ranking(documents))}
        assert together == {d.id: each(ranking([d])).scores[0] for d in documents}


@quick
@given(st.lists(texts, min_size=1, max_size=5))
def test_one_passage_is_mono(stage: Mono, drawn: list[str]) -> None:
    documents = [Document(f"d{number}", text.strip(), title="King") for number, text in enumerate(drawn)]
    found = ranking(documents)
    plain = stage(found)
    one_each = MaxP(stage)
    best = one_each(found)
    if one_each.tally.inferences == len(documents):
        assert best == plain


@quick
@given(texts, st.sampled_from(["words", "tokens", "sentences", "even"]), st.integers(1, 6))
def test_evidence_lies_in_the_text_and_does_not_overlap(
    stage: Mono, text: str, unit: str, window: int
) -> None:
    each = MaxP(stage, window=window, unit=unit, evidence=99)  # type: ignore[arg-type]
    spans = sorted(each(ranking([Document("d", text)])).evidence["d"])
    assert spans
    assert all(0 <= start <= stop <= len(text) for start, stop, _ in spans)
    assert all(one.stop <= other.start for one, other in itertools.pairwise(spans))


@pytest.fixture(scope="module")
def smaller(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Mono:
    folder = tmp_path_factory.mktemp("smaller")
    return Mono(str(tiny_checkpoint(folder, layers=1, positions=64, seed=3)), workers=1)


@quick
@given(
    st.lists(texts, min_size=1, max_size=4),
    st.sampled_from(["words", "tokens", "sentences", "even"]),
    st.integers(1, 40),
    st.booleans(),
)
def test_choosing(
    stage: Mono, smaller: Mono, drawn: list[str], unit: str, passages: int, by_model: bool
) -> None:
    """Of documents with few passages all are read, and the rest does not score above what all would."""
    documents = [Document(f"d{number}", text, title="King") for number, text in enumerate(drawn)]
    found = ranking(documents)
    cut = {"window": 5, "unit": unit, "evidence": 99}
    plain = MaxP(stage, **cut, passages=41)  # type: ignore[arg-type]
    choosing = MaxP(stage, **cut, choose=smaller if by_model else BM25(), passages=passages, among=41)  # type: ignore[arg-type]
    whole, some = plain(found), choosing(found)
    counts = [len(read.passages) for read in plain.reader.read(found, found.ids)]
    assert choosing.tally.inferences == sum(min(count, passages) for count in counts)
    if passages >= max(counts):
        assert some == whole
        assert some.evidence == whole.evidence
    scores = {hit.id: hit.score for hit in whole}
    assert all(hit.score <= scores[hit.id] for hit in some)
    assert {hit.id: hit.score for hit in some} == {d.id: choosing(ranking([d])).scores[0] for d in documents}
