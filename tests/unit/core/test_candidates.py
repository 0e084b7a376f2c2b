"""Candidates as others have them: by key or attribute, in lists, answers of search engines and tables."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections import namedtuple
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tamis import Document, Duo, Fuse, Index, Interpolate, Mono, Normalise, Query, Ranking, ScoreKind, Stage
from tamis.base.errors import InputError, TamisError
from tamis.core.candidates import Candidates, Ranked

A, B = "a fine sieve", "soup of the day"


class Matched(Stage):
    """How many of the query's words are in the text."""

    pointwise = True

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        return [self._matched(ranking) for ranking in rankings]

    def _matched(self, ranking: Ranking) -> Ranking:
        words = set(ranking.query.text.split())
        scores = [len(words & set(each.contents.split())) for each in ranking.documents()]
        return ranking.rescored(np.array(scores, dtype=np.float64), ScoreKind.LOGIT)


class Longest(Stage):
    """By length."""

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        return [
            each.rescored(np.array([len(one.text) for one in each.documents()], float), ScoreKind.LOGIT)
            for each in rankings
        ]


def documents(candidates: Any, **fields: Any) -> list[tuple[str, str, str]]:
    read = Candidates.of(candidates, **fields).documents
    return [(each.id, each.text, each.title) for each in read]


@dataclass
class LangChain:
    page_content: str
    metadata: dict[str, Any] = field(default_factory=dict)
    id: str | None = None


@dataclass
class Haystack:
    content: str | None
    id: str = "x"
    meta: dict[str, Any] = field(default_factory=dict)
    score: float | None = None


class Node:
    def __init__(self, text: str, node_id: str) -> None:
        self._text, self.node_id, self.metadata = text, node_id, {"file_name": "a.txt"}

    def get_content(self) -> str:
        return self._text


class NodeWithScore:
    def __init__(self, node: Node, score: float | None) -> None:
        self.node, self.score = node, score

    @property
    def text(self) -> str:
        raise ValueError("Node must be a TextNode to get text.")


Row = namedtuple("Row", "docno text")
IrDataset = namedtuple("IrDataset", "doc_id abstract headline")


class Default(IrDataset):
    def default_text(self) -> str:
        return f"{self.headline} {self.abstract}"


HIT = {"_index": "i", "_id": "7", "_score": 2.5, "_source": {"title": "T", "text": A, "price": 3}}

KINDS: dict[str, tuple[Any, tuple[str, str, str]]] = {
    "a text": (A, ("0", A, "")),
    "a document": (Document("d", A, "T"), ("d", A, "T")),
    "a dictionary": ({"id": 3, "text": A, "title": "T"}, ("3", A, "T")),
    "a hit": (HIT, ("7", A, "T")),
    "a document of LangChain": (LangChain(A, {"title": "T"}, "l"), ("l", A, "")),
    "one that has its id in its metadata": (LangChain(A, {"doc_id": "m"}), ("m", A, "")),
    "a document of Haystack": (Haystack(A, "h"), ("h", A, "")),
    "a node": (Node(A, "n"), ("n", A, "")),
    "a node with a score": (NodeWithScore(Node(A, "n"), 0.5), ("n", A, "")),
    "a row of PyTerrier": ({"qid": "1", "query": "q", "docno": "p", "text": A}, ("p", A, "")),
    "a named tuple": (Row("r", A), ("r", A, "")),
    "a document of ir_datasets": (Default("i", A, "H"), ("i", f"H {A}", "")),
    "a point of a vector store": (SimpleNamespace(id=9, score=0.1, payload={"text": A}), ("9", A, "")),
    "a row of a database": (SimpleNamespace(id=9, body=A, title=None), ("9", A, "")),
}


@pytest.mark.parametrize(("given", "expected"), KINDS.values(), ids=KINDS)
def test_a_candidate_is_read_by_its_usual_fields(given: Any, expected: tuple[str, str, str]) -> None:
    before = copy.deepcopy(getattr(given, "__dict__", given))
    assert documents([given]) == [expected]
    (ranked,) = Matched().rank("sieve", [given])
    assert (ranked.id, ranked.text, ranked.score) == (expected[0], expected[1], 1.0)
    assert ranked.item is given
    if not isinstance(given, NodeWithScore):  # whose node has no equality
        assert getattr(given, "__dict__", given) == before


def test_other_fields_can_be_named() -> None:
    assert documents([{"key": 4, "abstract": A, "head": "H"}], text="abstract", id="key", title="head") == [
        ("4", A, "H")
    ]
    hit = {"_id": "7", "_source": {"body_en": A, "sku": "s"}}
    assert documents([hit], text="body_en", id="sku") == [("s", A, "")]
    assert documents([LangChain(B, {"summary": A, "title": "T"})], text="summary", title="title") == [
        ("0", A, "T")
    ]
    assert documents([{"text": B, "parts": [A]}], text=lambda each: each["parts"][0]) == [("0", A, "")]
    assert documents([Document("d", B, metadata={"abstract": A})], text="abstract") == [("d", A, "")]
    assert documents([A], text="abstract", title="head") == [("0", A, "")]  # a text has no fields
    some_have_it = [{"text": A, "head": "H", "nr": 4}, {"text": B}]
    assert documents(some_have_it, title="head", id="nr") == [("4", A, "H"), ("1", B, "")]


def test_the_answer_of_a_search_engine_is_its_hits() -> None:
    hits = [HIT, {"_id": "8", "_score": 1.5, "_source": {"text": B}}]
    answer = {"took": 3, "hits": {"total": {"value": 2}, "max_score": 2.5, "hits": hits}}
    for given in (hits, answer, answer["hits"], SimpleNamespace(body=answer)):  # as the client wraps it
        ranked = Matched().rank("soup", given)
        assert [(each.id, each.position) for each in ranked] == [("8", 1), ("7", 0)]
        assert ranked[0].item is hits[1]
    assert Matched().rank("soup", {"hits": {"hits": []}}) == []


def test_scores_that_descend_count() -> None:
    hits = [{"_score": score, "_source": {"text": A}} for score in (4.0, 3.0, 0.0)]
    scores = [each.score for each in Normalise("minmax").rank("q", hits)]
    assert scores == [1.0, 0.75, 0.0]
    mixed = Interpolate(Matched(), alpha=0.5).rank("q", [Haystack(A, score=2.0), Haystack(B, score=1.0)])
    assert [each.position for each in mixed] == [0, 1]
    for odd in ([1.0, 2.0], [2.0, None], [2.0, float("nan")], [True, False]):
        given = Candidates.of([{"text": A, "score": score} for score in odd])
        assert given.ranking("q").kind is ScoreKind.NONE
    with pytest.raises(TamisError, match="score"):
        Normalise("minmax").rank("q", [A, B])


def test_candidates_keep_their_order_whatever_their_scores() -> None:
    ascending = [{"id": "a", "text": A, "score": 1.0}, {"id": "b", "text": A, "score": 2.0}]
    assert [each.id for each in Matched().rank("sieve", ascending)] == ["a", "b"]


# -- tables


def test_a_frame_of_pandas_ranks_its_rows() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"docno": [11, 12, 13], "text": [B, A, "sieve sieve"], "price": [1.5, None, 2]})
    before = frame.copy(deep=True)
    frame.index = before.index = [5, 5, 7]
    ranked = Matched().rank("fine sieve", frame)
    assert [(each.id, each.position) for each in ranked] == [("12", 1), ("13", 2), ("11", 0)]
    assert ranked[1].item == {"docno": 13, "text": "sieve sieve", "price": 2.0}
    assert frame.iloc[[each.position for each in ranked]]["docno"].tolist() == [12, 13, 11]
    pandas.testing.assert_frame_equal(frame, before)
    rows = [row for _, row in frame.iterrows()]
    for given in (rows, list(frame.itertuples()), frame.to_dict("records")):
        assert [each.id for each in Matched().rank("fine sieve", given)] == ["12", "13", "11"]
    assert Matched().rank("fine sieve", frame["text"])[0].text == A
    with pytest.raises(InputError, match="one candidate where several are wanted"):
        Matched().rank("sieve", rows[0])
    with pytest.raises(InputError, match="candidate 0 has no 'abstract': it has docno, text, price"):
        Matched().rank("sieve", frame, text="abstract")
    gap = pandas.DataFrame({"id": [None, "b"], "text": ["x", pandas.NA]})
    with pytest.raises(InputError, match="the text of candidate 1 is missing: leave it out, or give it one"):
        Matched().rank("sieve", gap)
    assert documents(gap.head(1)) == [("0", "x", "")]


def test_a_frame_of_polars_ranks_its_rows() -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = polars.DataFrame({"id": ["a", "b"], "text": [B, A]})
    ranked = Matched().rank("sieve", frame)
    assert [(each.id, each.item) for each in ranked] == [
        ("b", {"id": "b", "text": A}),
        ("a", {"id": "a", "text": B}),
    ]
    assert [each.text for each in Matched().rank("sieve", frame["text"])] == [A, B]
    with pytest.raises(InputError, match=r"a lazy frame has no rows yet: give frame.collect\(\)"):
        Matched().rank("sieve", frame.lazy())


def test_other_tables_rank_their_rows() -> None:
    """By what tables of polars and Arrow offer, where these are not installed."""
    rows = [{"id": "a", "text": B}, {"id": "b", "text": A}]
    polars = SimpleNamespace(columns=["id", "text"], iter_rows=lambda named: iter(rows))
    arrow = SimpleNamespace(column_names=["id", "text"], to_pylist=lambda: rows)
    for table in (polars, arrow):
        assert [each.id for each in Matched().rank("sieve", table)] == ["b", "a"]


# -- what cannot be read

WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no text": (
        [A, {"id": "x", "headline": B}],
        {},
        "candidate 1 has no text, but id, headline: say which of these is its text, as in text='headline'",
    ),
    "no text in a hit": (
        [{"_id": "7", "_source": {"title": "T", "abstract_en": A}}],
        {},
        "candidate 0 has no text, but _id, title, abstract_en: say which of these is its text, "
        "as in text='abstract_en'",
    ),
    "no text in an object": (
        [SimpleNamespace(id=1, summary=A)],
        {},
        "candidate 0 has no text, but id, summary: say which of these is its text, as in text='summary'",
    ),
    "nothing": ([{}], {}, "candidate 0 has no text: give it a 'text' that is a str"),
    "an empty text": (
        [{"id": "x", "text": None}],
        {},
        "the text of candidate 0 is missing: leave it out, or give it one",
    ),
    "a picture": ([Haystack(None)], {}, "the text of candidate 0 is missing: leave it out, or give it one"),
    "a number": (
        [A, 3],
        {},
        "candidate 1 is int: give a str, a Document, or a dict or an object with a text",
    ),
    "a pair": (
        [("d1", A)],
        {},
        "candidate 0 is tuple: give a str, a Document, or a dict or an object with a text",
    ),
    "a text that is none": ([{"text": 3}], {}, "the text of candidate 0 is int: give a str"),
    "a text of bytes": ([{"text": b"x"}], {}, "the text of candidate 0 is bytes: give a str"),
    "another name": (
        [{"id": "x", "text": A}],
        {"text": "txt"},
        "candidate 0 has no 'txt': it has id, text",
    ),
    "one text": (A, {}, "one candidate where several are wanted: give a list"),
    "one document": (Document("d", A), {}, "one candidate where several are wanted: give a list"),
    "one object": (LangChain(A), {}, "one candidate where several are wanted: give a list"),
    "texts by id": ({"d1": A}, {}, "one candidate where several are wanted: give a list"),
    "none": (None, {}, "candidates that are NoneType: give a list"),
    "a ranking": (
        Ranking(Query("q", "sieve")),
        {},
        "a Ranking is not a list of candidates: call the stage: stage(ranking)",
    ),
}


@pytest.mark.parametrize(("given", "fields", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_read_is_said_in_one_line(given: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as raised:
        Matched().rank("sieve", given, **fields)
    assert str(raised.value) == message


def test_a_function_that_finds_nothing_is_named() -> None:
    def summary(candidate: Any) -> Any:
        return candidate.get("summary")

    with pytest.raises(InputError, match="summary finds no text in candidate 0: let it give a str"):
        Matched().rank("sieve", [{"text": A}], text=summary)


# -- stages and pipelines


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return Index.build([Document("d", A), Document("e", B)], tmp_path_factory.mktemp("index") / "idx")


def test_any_pipeline_of_rerankers_ranks_candidates() -> None:
    texts = ["sieve", "a sieve", "a fine sieve", "soup"]
    pipeline = Matched() % 3 >> Longest() % 2
    assert [each.position for each in pipeline.rank("a sieve", texts)] == [2, 1]
    assert [each.position for each in pipeline.rank("a sieve", texts, top_k=1)] == [2]
    fused = Fuse(Matched(), Longest()).rank("a sieve", texts)
    assert sorted(each.position for each in fused) == [0, 1, 2, 3]
    again = Longest().rank("a sieve", pipeline.rank("a sieve", [{"id": 7, "title": "T", "text": A}]))
    assert (again[0].id, again[0].text) == ("7", A) and isinstance(again[0].item, Ranked)
    assert pickle.loads(pickle.dumps(fused)) == fused


def test_what_another_stage_has_ranked_keeps_its_title() -> None:
    ranked = Longest().rank("x", [{"id": 7, "title": "sieve", "text": B}])
    assert Matched().rank("sieve", ranked)[0].score == 1.0


def test_a_pipeline_that_searches_is_refused(index: Index) -> None:
    for pipeline in (index.bm25(), index.bm25() % 10 >> Matched(), Fuse(index.bm25(), Matched())):
        with pytest.raises(InputError) as raised:
            pipeline.rank("sieve", [A])
        assert str(raised.value) == (
            f"{pipeline} searches, by bm25, and cannot rank given candidates: call it with the query alone, "
            "or give a pipeline of rerankers"
        )


def test_a_query_may_have_an_id() -> None:
    assert Matched().rank(Query("q1", "sieve"), [A])[0].score == 1.0


# -- threads and event loops


def test_many_at_once_rank_as_one_does(index: Index) -> None:
    pipeline, search = Matched() % 3 >> Longest(), index.bm25() >> Matched()
    asked = [(f"a sieve {number}", [f"{A} {number}", B, f"sieve {number}"]) for number in range(60)]
    alone = [pipeline.rank(*each) for each in asked]

    async def every() -> tuple[list[list[Ranked]], list[Ranking]]:
        ranked = await asyncio.gather(*(pipeline.arank(*each) for each in asked))
        found = await asyncio.gather(*(search.aquery(query) for query, _ in asked))
        return ranked, found

    ranked, found = asyncio.run(every())
    assert ranked == alone
    assert found == [search(query) for query, _ in asked]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda each: pipeline.rank(*each), asked)) == alone


def test_models_are_shared_by_threads_and_tasks(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    mono = Mono(str(tiny_checkpoint(tmp_path / "mono", labels=1)))
    pipeline = mono % 3 >> Duo(str(tiny_checkpoint(tmp_path / "duo", segments=3, labels=2)))
    asked = [(f"a sieve {number}", [f"{A} {number}", B, f"soup {number}", A * 3]) for number in range(24)]
    alone = [pipeline.rank(*each) for each in asked]

    async def every() -> list[list[Ranked]]:
        return await asyncio.gather(*(pipeline.arank(*each) for each in asked))

    assert asyncio.run(every()) == alone
    assert mono.tally.inferences == 2 * 4 * len(asked)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda each: pipeline.rank(*each), asked)) == alone


def test_an_event_loop_goes_on_meanwhile() -> None:
    """A stage that waits for what only the loop can do."""

    async def meet() -> list[Ranked]:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()

        class Waits(Matched):
            def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
                asyncio.run_coroutine_threadsafe(ready.wait(), loop).result(60)
                return super().apply(rankings, depth)

        waiting = asyncio.create_task(Waits().arank("head", [{"headline": "head"}], text="headline", top_k=1))
        await asyncio.sleep(0)
        ready.set()
        return await waiting

    assert asyncio.run(meet())[0].text == "head"


def test_errors_reach_the_event_loop() -> None:
    with pytest.raises(InputError, match="candidate 0 is int"):
        asyncio.run(Matched().arank("q", [3]))


def test_what_is_known_about_a_candidate_comes_back() -> None:
    class Node:
        text, metadata = "a sieve", {"year": 4}

    candidates = [
        "a sieve",
        Document("d", "a sieve", metadata={"year": 1}),
        {"text": "a sieve", "metadata": {"year": 2}},
        {"_id": "7", "_source": {"text": "a sieve", "meta": {"year": 3}}},
        Node(),
        {"text": "a sieve", "metadata": "2021"},
    ]
    ranked = Matched().rank("sieve", candidates)
    by_place = {each.position: each.metadata for each in ranked}
    known = [{}, {"year": 1}, {"year": 2}, {"year": 3}, {"year": 4}, {}]
    assert [by_place[place] for place in range(6)] == known
    assert [each.metadata for each in Matched().rank("sieve", ranked)] == [
        by_place[each.position] for each in ranked
    ]
