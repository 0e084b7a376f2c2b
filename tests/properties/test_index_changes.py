"""However an index came to hold its documents, it answers as one built afresh from them."""

from __future__ import annotations

import os
import random
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tamis import Document, Index
from tamis.base.errors import UnknownDocumentError
from tamis.index.dependence import SDM
from tamis.index.score import BM25, Model, QueryLikelihood, TfIdf
from tamis.index.writer import IndexWriter, OnDuplicate

THOROUGH = os.environ.get("TAMIS_HYPOTHESIS") == "thorough"
WORDS = ["ash", "birch", "cedar", "elm", "fir", "oak"]
QUERIES = ["ash", "birch cedar", "cedar birch ash ash", "oak fir elm cedar unknown"]
MODELS: list[Model] = [
    BM25(),
    BM25(k1=1.5, b=1.0, variant="robertson"),
    BM25(variant="bm25+"),
    TfIdf(),
    QueryLikelihood(),
    QueryLikelihood(mu=20.0, variant="exact"),
]

identities = st.sampled_from([f"{letter}{n}" for letter in "dé" for n in range(8)])
words = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
# more tokens than a byte counts, and a text beyond one frame of the store
texts = words | st.sampled_from(["ash " * 260 + "elm", "fir oak " * 3000])
documents = st.builds(
    Document,
    identities,
    texts,
    st.just("") | words,
    st.just({}) | st.fixed_dictionaries({"year": st.integers(1900, 2000)}),
)


def check_like_fresh(index: Index, expected: dict[str, Document]) -> None:
    """Same statistics, same documents, same hits with the same scores to the bit, and explanations that add
    up."""
    with tempfile.TemporaryDirectory() as folder:
        positions = index.manifest.positions
        fresh = Index.build(
            expected.values(), Path(folder, "idx"), analyzer="whitespace", positions=positions
        )
        assert index.collection == fresh.collection
        assert [index.df(word) for word in WORDS] == [fresh.df(word) for word in WORDS]
        assert len(index) == len(expected)
        assert {document.id: document for document in index} == expected
        assert sorted(index.ids()) == sorted(expected)
        for identity, document in expected.items():
            assert identity in index
            assert index.document(identity) == document
        for query in QUERIES:
            weights = index.weights(query)
            for model in MODELS:
                for backend, k in (("numba", 4), ("numpy", 1000)):
                    ids, scores = index.search(weights, model, k, backend=backend)
                    fresh_ids, fresh_scores = fresh.search(weights, model, k, backend=backend)
                    assert ids == fresh_ids
                    assert scores.tolist() == fresh_scores.tolist()
                check_explanations(index, weights, model, ids, scores.tolist())
            if positions:
                ours, theirs = SDM(index)(query), SDM(fresh)(query)
                assert ours.ids == theirs.ids
                assert ours.scores.tolist() == theirs.scores.tolist()


def check_explanations(
    index: Index, weights: dict[str, float], model: Model, ids: list[str], scores: list[float]
) -> None:
    if isinstance(model, QueryLikelihood) and model.variant == "exact":
        return  # a part of its score comes from no term
    for identity, score in zip(ids, scores, strict=True):
        lines = index.explain(weights, model, identity)
        assert np.float32(sum(line.contribution for line in lines)) == np.float32(score)
        held = index.document_terms(identity)
        assert {line.term: line.tf for line in lines} == {t: held[t] for t in weights if t in held}


class Changes(RuleBasedStateMachine):
    """An index under change, beside a dictionary that says what it must hold."""

    @initialize(positions=st.booleans())
    def build(self, positions: bool) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name, "idx")
        self.index = Index.build([], self.path, analyzer="whitespace", positions=positions)
        self.committed: dict[str, Document] = {}
        self.checked = True
        self.context: AbstractContextManager[IndexWriter] | None = None

    @precondition(lambda self: self.context is None)
    @rule(duplicates=st.sampled_from(["replace", "skip"]))
    def open_writer(self, duplicates: OnDuplicate) -> None:
        self.duplicates = duplicates
        self.context = self.index.writer(on_duplicate=duplicates)
        self.writer = self.context.__enter__()
        self.pending: dict[str, Document] = {}
        self.gone: set[str] = set()  # committed, and deleted or replaced since

    @precondition(lambda self: self.context is not None)
    @rule(added=st.lists(documents, min_size=1, max_size=6))
    def add(self, added: list[Document]) -> None:
        for document in added:
            self.writer.add(document)
            known = document.id in self.committed and document.id not in self.gone
            if known and self.duplicates == "skip":
                continue
            if known:
                self.gone.add(document.id)
            if self.duplicates == "replace" or document.id not in self.pending:
                self.pending[document.id] = document

    @precondition(lambda self: self.context is not None)
    @rule(identity=identities)
    def delete(self, identity: str) -> None:
        if identity in self.committed and identity not in self.gone:
            self.writer.delete(identity)
            self.gone.add(identity)
        else:
            with pytest.raises(UnknownDocumentError):
                self.writer.delete(identity)

    @precondition(lambda self: self.context is not None)
    @rule(merge=st.booleans())
    def commit(self, merge: bool) -> None:
        if merge:
            self.writer.merge()
        else:
            self.writer.commit()
        self.committed = {i: d for i, d in self.committed.items() if i not in self.gone} | self.pending
        self.pending, self.gone, self.checked = {}, set(), False

    @precondition(lambda self: self.context is not None)
    @rule()
    def close_writer(self) -> None:
        """What was not committed is forgotten."""
        assert self.context is not None
        self.context.__exit__(None, None, None)
        self.context = None

    @rule(again=st.booleans())
    def read(self, again: bool) -> None:
        if again:
            self.index = Index.open(self.path)
        else:
            self.index.refresh()
        if not self.checked:
            check_like_fresh(self.index, self.committed)
            self.checked = True

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            if self.context is not None:
                self.close_writer()
            self.read(again=True)
            self.folder.cleanup()


Changes.TestCase.settings = settings(
    max_examples=200 if THOROUGH else 15,
    stateful_step_count=60 if THOROUGH else 30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestChanges = Changes.TestCase


@pytest.mark.parametrize("seed", range(20 if THOROUGH else 2))
def test_many_commits_in_a_row(tmp_path: Path, seed: int) -> None:
    """So many that segments are merged without being asked."""
    generator = random.Random(seed)
    index = Index.build([], tmp_path / "idx", analyzer="whitespace", positions=seed % 2 == 0)
    expected: dict[str, Document] = {}
    most = 0
    for _ in range(25):
        with index.writer(on_duplicate="replace") as writer:
            for identity in generator.sample(sorted(expected), min(len(expected), generator.randrange(4))):
                writer.delete(identity)
                del expected[identity]
            for _ in range(generator.randrange(1, 8)):
                text = " ".join(generator.choices(WORDS, k=generator.randrange(15)))
                document = Document(f"d{generator.randrange(60)}", text)
                writer.add(document)
                expected[document.id] = document
            writer.commit()
        most = max(most, len(index.segments))
    check_like_fresh(index, expected)
    assert 4 < most <= 8
    index.merge()
    assert len(index.segments) == 1
    check_like_fresh(index, expected)
