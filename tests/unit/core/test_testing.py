"""The contract of a stage: all of ours keep to it, and what breaks it is said."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Index, Query, Ranking, ScoreKind
from tamis.core.registry import BUILT_IN, build, role_of
from tamis.core.runtime import Runtime
from tamis.core.stage import Role, Stage, stage
from tamis.testing import check_stage

MODELS = Path(__file__).parents[2] / "assets" / "checkpoints"

#: An example of every stage; a pipeline before `|` finds what it gets.
EXAMPLES = {
    "bm25": "bm25(k1=1.2, variant=robertson)",
    "ql": "ql(mu=100)",
    "tfidf": "tfidf",
    "sdm": "sdm(window=4)",
    "rm3": "bm25 % 5 | rm3(terms=5, docs=3)",
    "mono": "bm25 % 6 | mono(model=MODELS/mono, score=logit, cut=best)",
    "duo": "bm25 % 6 | duo(model=MODELS/duo, k=4, aggregate=binary)",
    "listwise": "bm25 % 6 | listwise(model=MODELS/listwise, k=5)",
    "cascade": "bm25 % 6 | cascade(model=MODELS/cascade, alpha=0.5)",
    "firstp": "bm25 % 6 | firstp(mono(model=MODELS/mono), window=8)",
    "maxp": "bm25 % 6 | maxp(mono(model=MODELS/mono), choose=bm25, window=8, passages=2)",
    "sump": "bm25 % 6 | sump(mono(model=MODELS/mono), window=8)",
    "avgp": "bm25 % 6 | avgp(mono(model=MODELS/mono), window=8, title=false)",
    "kmaxp": "bm25 % 6 | kmaxp(mono(model=MODELS/mono), k=2, window=8)",
    "birch": "bm25 % 6 | birch(mono(model=MODELS/mono), n=2, alpha=0.3)",
    "cedr": "bm25 % 6 | cedr(model=MODELS/vanilla)",
    "parade": "bm25 % 6 | parade(model=MODELS/parade-max)",
    "if_unsure": "bm25 % 6 >> mono(model=MODELS/mono) | if_unsure(duo(model=MODELS/duo), margin=0.2)",
    "interpolate": "bm25 % 6 | interpolate(ql % 9, alpha=0.3)",
    "normalise": "bm25 % 6 | normalise(how=z)",
    "fuse": "bm25 % 6 | fuse(ql % 5, mono(model=MODELS/mono), k=10)",
    "ltr": 'bm25 % 6 | ltr(ql, tfidf, weights="0.5 0.25", score=1, idf=0.1)',
    "groupwise": "bm25 % 6 | groupwise(ql, model=MODELS/groupwise.json)",
}
OF_TORCH = ("cedr", "parade")
QUERIES = ("castle of the king", "the sieve of flour", "king and soup")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    words = ["castle", "king", "sieve", "flour", "soup", "the", "of", "and", "old"]
    generator = np.random.default_rng(0)
    documents = [
        Document(
            f"d{number:02}",
            ". ".join(map(" ".join, generator.choice(words, (4, 5)))),
            title=words[number % 9],
        )
        for number in range(24)
    ]
    return Index.build(documents, tmp_path_factory.mktemp("contract") / "idx", positions=True)


def example(name: str, index: Index) -> tuple[Stage, list[Ranking]]:
    """A stage, and rankings that it might get in a pipeline."""
    text = re.sub(r"MODELS/([\w.-]+)", rf'"{MODELS}/\1"', EXAMPLES[name])
    *before, own = text.split(" | ")
    rankings = [Ranking(Query(f"q{number}", query)) for number, query in enumerate(QUERIES)]
    runtime = Runtime(device="cpu", workers=1)
    if before:
        rankings = build(before[0], index, runtime).apply(rankings)
    return build(own, index, runtime), rankings


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_stage_keeps_to_the_contract(name: str, index: Index) -> None:
    if name in OF_TORCH and find_spec("torch") is None:
        pytest.skip("it needs torch")
    check_stage(*example(name, index), Runtime(device="cpu", workers=1))


class Deaf(Stage):
    """Finds the same two documents, whatever the condition of a query says."""

    name, role = "deaf", Role.FINDS

    def __init__(self, index: Index) -> None:
        self.index = index

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        scores, kind = np.array([2.0, 1.0]), ScoreKind.RETRIEVAL
        return [
            replace(each, ids=("d03", "d01"), scores=scores, kind=kind, texts=self.index).head(depth or 2)
            for each in rankings
        ]


def test_a_search_that_ignores_the_condition_of_a_query(index: Index) -> None:
    with pytest.raises(AssertionError, match="finds 'd03', which the condition of query 'q' excludes"):
        check_stage(Deaf(index), [Ranking(Query("q", "king"))])


def test_a_stage_says_what_it_is_for() -> None:
    roles = {role: [name for name in BUILT_IN if role_of(name) is role] for role in Role}
    assert roles[Role.FINDS] == ["bm25", "ql", "tfidf", "sdm", "rm3"]
    assert roles[Role.MIXES] == ["interpolate", "normalise", "fuse", "ltr", "groupwise"]
    assert roles[Role.WRAPS] == ["if_unsure"]


# -- what breaks it
# ------------------------------------------------------------------------------------------------------------


class Same(Stage):
    """Hands on what it gets."""

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        return [self.one(ranking) for ranking in rankings]

    def one(self, ranking: Ranking) -> Ranking:
        return ranking


class Ascending(Same):
    def one(self, ranking: Ranking) -> Ranking:
        return replace(ranking, scores=-ranking.scores)


class Losing(Same):
    def one(self, ranking: Ranking) -> Ranking:
        return ranking.head(len(ranking) - 1)


class Inventing(Same):
    role = Role.MIXES

    def one(self, ranking: Ranking) -> Ranking:
        return replace(ranking, ids=tuple(f"new {each}" for each in ranking.ids))


class Forgetting(Same):
    def __init__(self, k: int = 3) -> None:
        pass


class Drawing(Same):
    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def one(self, ranking: Ranking) -> Ranking:
        return ranking.rescored(self.generator.random(len(ranking)), ScoreKind.COMBINED)


class OfNeighbours(Same):
    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        return [replace(each, scores=each.scores / len(rankings)) for each in rankings]


class Shallow(Same):
    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        return [each.rescored(-each.scores, each.kind) if depth == 1 else each for each in rankings]


class Cheap(Same):
    role = Role.MIXES

    def cost(self, enter, depth=None):  # type: ignore[no-untyped-def]
        return super().cost(enter // 2, depth)


class Nameless(Same):
    kind = ScoreKind.NONE

    def one(self, ranking: Ranking) -> Ranking:
        return replace(ranking, kind=ScoreKind.NONE)


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (Ascending, "the best candidate comes first"),
        (Losing, "it only orders them"),
        (Inventing, "candidates of query 'q1' that did not come in"),
        (Drawing, "asked again, it ranks query 'q1' otherwise"),
        (OfNeighbours, "with each query by itself, it ranks query 'q1' otherwise: other scores"),
        (Shallow, "with depth=1, it ranks query 'q1' otherwise"),
        (Cheap, "4 candidates leave it, and its cost says 2"),
        (Nameless, "the scores of query 'q1' have no kind"),
    ],
)
def test_what_breaks_the_contract_is_said(broken: Callable[[], Stage], problem: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_stage(broken(), given())
    assert problem in str(caught.value)


def test_a_parameter_that_is_not_kept_is_said() -> None:
    with pytest.raises(
        Exception, match=r"the stage forgetting does not say what its k is: keep it as self\.k"
    ):
        check_stage(Forgetting(), given())


def test_a_stage_that_keeps_to_it_passes() -> None:
    check_stage(Same(), given())
    with pytest.raises(AssertionError, match="give some rankings"):
        check_stage(Same(), [])


def given() -> list[Ranking]:
    ids, scores = ("a", "b", "c", "d"), np.array([4.0, 3.0, 2.0, 1.0])
    return [Ranking(Query(f"q{n}", "sieve"), ids, scores * n, ScoreKind.RETRIEVAL) for n in (1, 2)]


# -- other shapes of stages
# ------------------------------------------------------------------------------------------------------------


class Memory:
    """Texts of one's own."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = {each.id: each for each in documents}

    def document(self, doc_id: str) -> Document:
        return self.documents[doc_id]


@stage("notes", role=Role.FINDS)
class Notes(Stage):
    """A retriever without an index, which has its documents itself."""

    def __init__(self, word: str = "note", most: int | None = None, boost: float = 1.0) -> None:
        self.word, self.most, self.boost = word, most, boost
        self.texts = Memory([Document(f"n{n}", f"{word} " * n) for n in (1, 2, 3)])

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        ids = list(self.texts.documents)[: self.most]
        scores = [self.boost * len(each.text) for each in map(self.texts.document, ids)]
        return [each.found(ids, scores, self.texts, self) for each in rankings]


@stage("twice", role=Role.WRAPS)
class Twice(Stage):
    """A stage with a stage inside, and a function that only Python can give."""

    def __init__(self, stage: Stage, *, when: Callable[[Ranking], bool] | None = None) -> None:
        self.stage, self.when = stage, when

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        found = self.stage.apply(rankings)
        return [
            replace(each, scores=2 * each.scores) if self.when is None or self.when(each) else each
            for each in found
        ]


def test_stages_of_other_shapes(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILT_IN, "notes", Notes)
    monkeypatch.setitem(BUILT_IN, "twice", Twice)
    bare = [Ranking(Query(f"q{n}", "sieve")) for n in (1, 2)]
    check_stage(Notes(word="a b", boost=2), bare)
    assert repr(Notes(boost=2, most=2)) == "notes(most=2, boost=2.0)"
    ((notes, *_),) = [build("notes >> twice(normalise)").stages]  # type: ignore[attr-defined]
    assert notes.attach(Ranking(Query("q", ""))).texts is notes.texts
    check_stage(build("twice(interpolate(normalise))"), given())
    assert build("bm25 % 5 >> twice(normalise)", index)("king").ids


class Bare(Stage):
    """A retriever that does not say where the texts are."""

    role = Role.FINDS

    def __init__(self, index: Index) -> None:
        self.index = index

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        return [replace(each, ids=("d00", "d01"), scores=np.array([2.0, 1.0])) for each in rankings]


def test_a_search_that_does_not_say_where_its_texts_are_has_them_attached(index: Index) -> None:
    for each in (Bare(index), Bare(index) % 1, Bare(index) % 1 >> Same()):
        assert each("king").documents()[0] == index.document("d00")
        (ranking,) = each.run([Query("q", "king")]).values()
        assert ranking.texts is index


def test_a_function_is_printed_and_tells_stages_apart() -> None:
    from tamis.rank.combine import Normalise

    def short(ranking: Ranking) -> bool:
        return len(ranking) < 10

    def long(ranking: Ranking) -> bool:
        return len(ranking) > 10

    one, other = Twice(Normalise(), when=short), Twice(Normalise(), when=long)
    assert repr(one) == "twice(normalise, when=short)"
    assert one.fingerprint == Twice(Normalise(), when=short).fingerprint != other.fingerprint
    check_stage(one, given())
