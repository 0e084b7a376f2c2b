"""The index: whatever was done to it, it answers as a fresh index of the documents it should hold."""

from __future__ import annotations

import math
import random
import shutil
from concurrent.futures import ProcessPoolExecutor
from copy import copy
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import Document, Index
from tamis.base.errors import InputError, TamisError, UnknownDocumentError
from tamis.index import build, writer
from tamis.index.score import BM25, QueryLikelihood, TfIdf
from tamis.index.verify import verify
from tamis.index.writer import create

WORDS = ["sieve", "flour", "cake", "onion", "soup", "butter", "steel", "cook", "fine", "coarse"]
QUERIES = [*WORDS[:4], "sieve flour", "cake soup cook cook", "fine coarse butter steel onion", "nothing"]


def random_documents(count: int, *, seed: int = 0, prefix: str = "d") -> list[Document]:
    rng = random.Random(seed)
    return [
        Document(f"{prefix}{n}", " ".join(rng.choices(WORDS, k=rng.randint(0, 30)))) for n in range(count)
    ]


def answers(index: Index, *, k: int = 20) -> list[tuple[list[str], list[float]]]:
    found = [
        index.search(index.weights(query), model, k, backend="numpy")
        for query in QUERIES
        for model in (BM25(), BM25(variant="atire"), QueryLikelihood(mu=50))
    ]
    return [(ids, scores.tolist()) for ids, scores in found]


def assert_same(index: Index, documents: list[Document], folder: Path) -> None:
    """`index` holds exactly these documents and ranks as a fresh index of them."""
    fresh = Index.build(documents, folder, positions=index.manifest.positions)
    assert len(index) == len(documents)
    assert sorted(index.ids()) == sorted(fresh.ids())
    assert {d.id: d for d in index} == {d.id: d for d in documents}
    assert index.collection == fresh.collection
    assert [index.df(word) for word in WORDS] == [fresh.df(word) for word in WORDS]
    assert answers(index) == answers(fresh)


# -- adding, replacing, deleting, merging


def test_a_new_index(tmp_path: Path) -> None:
    documents = random_documents(50)
    index = Index.build(documents, tmp_path / "idx")
    assert (len(index), index.manifest.generation, len(index.segments)) == (50, 1, 1)
    assert list(index) == documents
    assert "d7" in index and "d50" not in index
    assert index.document("d7") == documents[7]
    assert list(Index.open(tmp_path / "idx").ids()) == [d.id for d in documents]


def test_add_replace_skip_delete_merge(tmp_path: Path) -> None:
    old, new = random_documents(30), random_documents(20, seed=1)
    index = Index.build(old, tmp_path / "idx")
    index.add(random_documents(10, prefix="e"))
    held = {d.id: d for d in old + random_documents(10, prefix="e")}
    assert_same(index, list(held.values()), tmp_path / "added")

    index.add(new, on_duplicate="replace")
    held |= {d.id: d for d in new}
    assert_same(index, list(held.values()), tmp_path / "replaced")

    index.add(random_documents(35, seed=2), on_duplicate="skip")
    held = {d.id: d for d in random_documents(35, seed=2)} | held
    assert_same(index, list(held.values()), tmp_path / "skipped")

    index.delete(["d3", "e4", "d33"])
    held = {i: d for i, d in held.items() if i not in ("d3", "e4", "d33")}
    assert_same(index, list(held.values()), tmp_path / "deleted")

    generation = index.manifest.generation
    index.merge()
    assert (index.manifest.generation, len(index.segments)) == (generation + 1, 1)
    assert index.segments[0].deleted is None
    assert_same(index, list(held.values()), tmp_path / "merged")
    index.merge()
    assert index.manifest.generation == generation + 1  # nothing to do
    assert verify(tmp_path / "idx") == []


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "replace", "skip", "delete", "merge", "build"]), st.integers(0, 10**6)),
    max_size=8,
)


@settings(max_examples=15, deadline=None)
@given(operations=OPERATIONS, positions=st.booleans())
def test_any_history_ends_as_a_fresh_index(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int]], positions: bool
) -> None:
    folder = tmp_path_factory.mktemp("history")
    index = Index.build([], folder / "idx", positions=positions)
    held: dict[str, Document] = {}
    for step, (what, seed) in enumerate(operations):
        rng = random.Random(seed)
        some = rng.sample(random_documents(40, seed=seed), rng.randint(0, 12))
        if what == "add":
            fresh = [Document(f"{step}.{d.id}", d.text) for d in some]
            index.add(fresh)
            held |= {d.id: d for d in fresh}
        elif what == "replace":
            index.add(some + some[:2], on_duplicate="replace")
            held |= {d.id: d for d in some}
        elif what == "skip":
            index.add(some, on_duplicate="skip")
            held = {d.id: d for d in some} | held
        elif what == "delete":
            gone = rng.sample(sorted(held), rng.randint(0, len(held)))
            index.delete(gone)
            held = {i: d for i, d in held.items() if i not in gone}
        elif what == "merge":
            index.merge()
        else:
            index = Index.build(some, folder / "idx", positions=positions, overwrite=True)
            held = {d.id: d for d in some}
    assert_same(index, list(held.values()), folder / "fresh")


def test_many_commits_merge_by_themselves(tmp_path: Path) -> None:
    documents = random_documents(60)
    index = Index.build(documents, tmp_path / "idx", commit_every=3)
    assert 1 < len(index.segments) <= writer.SEGMENTS_KEPT
    assert_same(index, documents, tmp_path / "fresh")
    assert {path.name for path in (tmp_path / "idx/segments").iterdir()} == {
        s.info.name for s in index.segments
    }


def test_deleting_every_document_leaves_an_empty_index_to_which_can_be_added(tmp_path: Path) -> None:
    documents = random_documents(10)
    index = Index.build(documents, tmp_path / "idx", commit_every=5)
    index.delete(list(index.ids()))
    assert (len(index), list(index), list(index.ids()), index.segments) == (0, [], [], ())
    assert index.search({"siev": 1.0}, BM25(), 10) == ([], pytest.approx([]))
    index.merge()
    index.add(documents)
    assert_same(index, documents, tmp_path / "fresh")


def test_a_delete_and_an_add_of_the_same_id_in_one_commit(tmp_path: Path) -> None:
    index = Index.build([Document("a", "sieve"), Document("b", "flour")], tmp_path / "idx")
    with index.writer() as changes:
        changes.delete("a")
        changes.add(Document("a", "cake"))
        changes.commit()
    assert_same(index, [Document("a", "cake"), Document("b", "flour")], tmp_path / "fresh")


# -- commits


def test_nothing_is_seen_before_the_commit_and_nothing_happens_without_it(tmp_path: Path) -> None:
    index = Index.build(random_documents(5), tmp_path / "idx")
    with index.writer() as changes:
        changes.add(Document("new", "sieve"))
        changes.delete("d1")
        assert changes.pending == 1
        other = Index.open(tmp_path / "idx")
        assert "new" not in other and "d1" in other
    assert index.manifest.generation == 1
    assert_same(Index.open(tmp_path / "idx"), random_documents(5), tmp_path / "fresh")
    assert len(list((tmp_path / "idx/segments").iterdir())) == 1


def test_an_exception_in_the_block_keeps_what_was_committed(tmp_path: Path) -> None:
    index = Index.build(random_documents(5), tmp_path / "idx")
    with pytest.raises(ZeroDivisionError), index.writer() as changes:
        changes.add(Document("committed", "sieve"))
        changes.commit()
        changes.add(Document("not committed", "sieve"))
        raise ZeroDivisionError
    index.refresh()
    assert "committed" in index and "not committed" not in index


def test_a_commit_of_nothing_is_no_new_generation(tmp_path: Path) -> None:
    index = Index.build(random_documents(5), tmp_path / "idx")
    index.add([])
    index.delete([])
    index.add(random_documents(3), on_duplicate="skip")
    assert index.manifest.generation == 1
    assert not index.refresh()


def test_refresh_follows_the_newest_commit_and_old_readers_keep_theirs(tmp_path: Path) -> None:
    index = Index.build(random_documents(5), tmp_path / "idx")
    reader, old = Index.open(tmp_path / "idx"), Index.open(tmp_path / "idx")
    before = answers(old), old.fingerprint
    index.add([Document("new", "sieve")])
    index.delete(["d0"])
    index.merge()
    assert reader.refresh() and not reader.refresh()
    assert reader.fingerprint == index.fingerprint != old.fingerprint
    assert_same(reader, [*random_documents(5)[1:], Document("new", "sieve")], tmp_path / "fresh")
    assert (answers(old), old.fingerprint) == before
    assert old.document("d0") == random_documents(5)[0]


def test_refresh_opens_only_what_is_new(tmp_path: Path) -> None:
    index = Index.build(random_documents(5), tmp_path / "idx")
    first = index.segments[0]
    index.add([Document("new", "sieve")])
    assert index.segments[0] is first
    index.delete(["d0"])
    assert index.segments[0] is not first


def test_refresh_sees_another_index_in_the_same_place(tmp_path: Path) -> None:
    reader = Index.build(random_documents(5), tmp_path / "idx")
    (tmp_path / "idx").rename(tmp_path / "old")
    Index.build([Document("other", "cake")], tmp_path / "idx")  # the same generation
    assert reader.refresh()
    assert list(reader.ids()) == ["other"]


def test_overwriting_keeps_the_old_index_until_the_first_commit(tmp_path: Path) -> None:
    Index.build(random_documents(5), tmp_path / "idx")
    with create(tmp_path / "idx", overwrite=True, analyzer="plain") as changes:
        changes.add(Document("other", "cake"))
        assert len(Index.open(tmp_path / "idx")) == 5
        changes.commit()
        assert list(Index.open(tmp_path / "idx").ids()) == ["other"]
    assert len(list((tmp_path / "idx/segments").iterdir())) == 1


def test_overwriting_with_nothing_leaves_an_empty_index(tmp_path: Path) -> None:
    Index.build(random_documents(5), tmp_path / "idx")
    assert len(Index.build([], tmp_path / "idx", overwrite=True)) == 0


def test_overwriting_that_fails_leaves_the_old_index(tmp_path: Path) -> None:
    Index.build(random_documents(5), tmp_path / "idx")
    with pytest.raises(InputError):
        Index.build([Document("a", "x"), Document("", "no id")], tmp_path / "idx", overwrite=True)
    assert_same(Index.open(tmp_path / "idx"), random_documents(5), tmp_path / "fresh")


def test_a_corrupt_index_can_be_overwritten(tmp_path: Path) -> None:
    Index.build(random_documents(5), tmp_path / "idx")
    manifest = tmp_path / "idx/manifest.json"
    for damaged in (manifest.read_bytes()[:-1] + b"!", b"", bytes(100)):
        manifest.write_bytes(damaged)
        index = Index.build(random_documents(3), tmp_path / "idx", overwrite=True)
        assert_same(index, random_documents(3), tmp_path / "fresh")
        assert len(list((tmp_path / "idx/segments").iterdir())) == 1
        shutil.rmtree(tmp_path / "fresh")


def test_an_existing_index_is_not_overwritten_unasked(tmp_path: Path) -> None:
    Index.build(random_documents(5), tmp_path / "idx")
    with pytest.raises(InputError, match=r"already holds an index: resume it \(--resume\), add to it"):
        Index.build(random_documents(3), tmp_path / "idx")
    assert len(Index.open(tmp_path / "idx")) == 5


def test_a_writer_is_of_no_use_after_its_block(tmp_path: Path) -> None:
    index = Index.build(random_documents(5), tmp_path / "idx")
    with index.writer() as changes:
        pass
    for use in (
        lambda: changes.add(Document("late", "")),
        lambda: changes.delete("d1"),
        changes.commit,
        changes.merge,
    ):
        with pytest.raises(TamisError, match="this writer has ended"):
            use()


def test_a_writer_whose_commit_failed_does_not_pretend_to_commit(tmp_path: Path) -> None:
    index = Index.build(random_documents(5), tmp_path / "idx")
    with index.writer() as changes:
        changes.add(Document("twice", "a"))
        changes.add(Document("twice", "b"))
        with pytest.raises(InputError, match="'twice' occurs twice"):
            changes.commit()
        with pytest.raises(TamisError, match="ended or failed"):
            changes.commit()
    assert_same(index, random_documents(5), tmp_path / "fresh")


def test_a_refused_replacement_keeps_the_old_document(tmp_path: Path) -> None:
    index = Index.build([Document("a", "sieve"), Document("b", "flour")], tmp_path / "idx")
    with index.writer(on_duplicate="replace") as changes:
        with pytest.raises(InputError):
            changes.add(Document("a", "\udc80"))
        changes.add(Document("c", "cake"))
        changes.commit()
    kept = [Document("a", "sieve"), Document("b", "flour"), Document("c", "cake")]
    assert_same(index, kept, tmp_path / "fresh")


@pytest.mark.parametrize("deleted", [[], ["b"]])
def test_a_commit_after_nothing_but_refusals(tmp_path: Path, deleted: list[str]) -> None:
    index = Index.build([Document("a", "sieve"), Document("b", "flour")], tmp_path / "idx")
    with index.writer() as changes:
        with pytest.raises(InputError):
            changes.add(Document("c", "\udc80"))
        for identity in deleted:
            changes.delete(identity)
        changes.commit()
        with pytest.raises(InputError):
            changes.add(Document("c", "\udc80"))
        changes.add(Document("c", "cake"))
        changes.commit()
    kept = [Document("a", "sieve"), Document("b", "flour"), Document("c", "cake")]
    assert_same(index, [each for each in kept if each.id not in deleted], tmp_path / "fresh")
    assert index.manifest.generation == (3 if deleted else 2)
    assert verify(tmp_path / "idx") == []


# -- postings at their limits


def test_term_frequencies_at_and_beyond_a_byte(tmp_path: Path) -> None:
    frequencies = [1, 254, 255, 256, 300, 70_000]
    documents = [Document(str(tf), "sieve " * tf + "flour") for tf in frequencies]
    index = Index.build(documents, tmp_path / "one")
    several = Index.build(documents, tmp_path / "several", commit_every=2)
    several.merge()
    for each in (index, several):
        entry = each.segments[0].term("siev")
        assert entry is not None and (entry.df, entry.cf) == (len(frequencies), sum(frequencies))
        numbers, tfs = each.segments[0].decode(entry)
        assert dict(zip(each.segments[0].store.ids(numbers), tfs.tolist(), strict=True)) == {
            str(tf): tf for tf in frequencies
        }
    assert answers(index) == answers(several)
    for model in (BM25(), BM25(b=0.0), TfIdf(), QueryLikelihood()):
        ids, scores = index.search({"siev": 1.0}, model, 10, backend="numpy")
        for identity, score in zip(ids, scores.tolist(), strict=True):
            (line,) = index.explain({"siev": 1.0}, model, identity)
            assert (line.tf, line.contribution) == (int(identity), pytest.approx(score))
    # tf / (tf + k1) of the idf, where length does not count
    idf = math.log(1 + 0.5 / 6.5)
    ids, scores = index.search({"siev": 1.0}, BM25(k1=0.9, b=0.0), 10)
    assert ids == [str(tf) for tf in sorted(frequencies, reverse=True)]
    assert scores.tolist() == pytest.approx([idf * tf / (tf + 0.9) for tf in map(int, ids)], rel=1e-5)


def test_documents_spread_wider_than_sixteen_bits(tmp_path: Path) -> None:
    count, rare = 70_000, {0, 5, 65_535, 65_536, 69_999}
    texts = (f"common {'rare' if n in rare else ''} {'late' if n >= 65_600 else ''}" for n in range(count))
    documents = [Document(f"{n:05}", text) for n, text in enumerate(texts)]
    index = Index.build(documents, tmp_path / "idx", analyzer="whitespace", positions=True)
    for again in range(2):
        found = {}
        for term in ("common", "rare", "late"):
            entry = index.segments[0].term(term)
            assert entry is not None
            found[term], tfs = index.segments[0].decode(entry)
            assert tfs.tolist() == [1] * len(tfs)
        removed = 1 if again else 0
        assert found["common"].tolist() == list(range(count - removed))
        assert found["rare"].tolist() == sorted(n - removed for n in rare if n or not again)
        assert found["late"].tolist() == list(range(65_600 - removed, count - removed))
        if not again:
            index.delete(["00000"])
            index.merge()
    ids, _ = index.search({"rare": 1.0}, BM25(), 10, backend="numpy")
    assert ids == ["00005", "65535", "65536", "69999"]  # the longer one last
    assert index.search({"late": 1.0}, BM25(), 3, backend="numpy")[0] == ["65600", "65601", "65602"]


@pytest.mark.parametrize("count", [127, 128, 129, 256, 257, 1000])
def test_lists_of_full_and_of_begun_blocks(tmp_path: Path, count: int) -> None:
    documents = random_documents(count)
    index = Index.build(documents, tmp_path / "idx", positions=True)
    for word in WORDS:
        stem = index.analyzer.tokens(word)[0]
        entry = index.segments[0].term(stem)
        assert entry is not None
        numbers, tfs = index.segments[0].decode(entry)
        expected = {n: d.text.split().count(word) for n, d in enumerate(documents) if word in d.text.split()}
        assert dict(zip(numbers.tolist(), tfs.tolist(), strict=True)) == expected
        places = np.split(index.segments[0].positions(entry), np.cumsum(tfs)[:-1])
        for number, place in zip(numbers.tolist(), places, strict=True):
            words = documents[number].text.split()
            assert place.tolist() == [at for at, other in enumerate(words) if other == word]


@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("parcel", [1, 500, 9000])
def test_many_runs_equal_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, positions: bool, parcel: int
) -> None:
    documents = random_documents(300)
    one = Index.build(documents, tmp_path / "one", positions=positions)
    monkeypatch.setattr(build, "PARCEL", parcel)
    many = Index.build(documents, tmp_path / "many", positions=positions)
    columns, others = one.segments[0].info.columns, many.segments[0].info.columns
    assert columns.keys() == others.keys()
    # to the byte: each has the digest of its checksums; but where a parcel ends a frame of texts ends
    differ = {name for name in columns if columns[name] != others[name]}
    assert differ == {"store.frames", "store.frame_ends", "store.frame_firsts"}
    assert answers(one) == answers(many)
    assert not list((tmp_path / "many").rglob("run-*"))


def test_batches_of_terms_equal_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = random_documents(300)
    one = Index.build(documents, tmp_path / "one", positions=True)
    monkeypatch.setattr("tamis.index.postings.BATCH", 100)
    many = Index.build(documents, tmp_path / "many", positions=True)
    assert one.segments[0].info.columns == many.segments[0].info.columns


def test_positions_survive_deletes_and_merges(tmp_path: Path) -> None:
    documents = random_documents(300)
    index = Index.build(documents, tmp_path / "idx", positions=True, commit_every=100)
    gone = [d.id for d in documents[::3]]
    index.delete(gone)
    index.merge()
    fresh = Index.build([d for d in documents if d.id not in gone], tmp_path / "fresh", positions=True)
    for word in WORDS:
        term = index.analyzer.tokens(word)[0]
        mine, theirs = index.segments[0].term(term), fresh.segments[0].term(term)
        assert mine is not None and theirs is not None
        np.testing.assert_array_equal(index.segments[0].positions(mine), fresh.segments[0].positions(theirs))
    for query in QUERIES:
        assert index.sdm()(query) == fresh.sdm()(query)


# -- explanations


@pytest.mark.parametrize(
    "model", [BM25(), BM25(1.2, 0.75, "robertson"), BM25(variant="bm25+"), TfIdf(), QueryLikelihood()]
)
def test_an_explanation_adds_up_to_the_score(tmp_path: Path, model: BM25) -> None:
    index = Index.build(random_documents(60), tmp_path / "idx", commit_every=25)
    index.delete(["d1", "d2"])
    weights = {"siev": 1.0, "flour": 2.5, "cake": -0.5, "unknown": 3.0}
    ids, scores = index.search(weights, model, 100, backend="numpy")
    assert len(ids) > 30
    for identity, score in zip(ids, scores.tolist(), strict=True):
        lines = index.explain(weights, model, identity)
        assert sum(line.contribution for line in lines) == pytest.approx(score, rel=1e-5, abs=1e-6)
        words = index.document_terms(identity)
        assert {line.term: line.tf for line in lines} == {t: words[t] for t in weights if t in words}
        assert all(line.df == index.df(line.term) and line.weight == weights[line.term] for line in lines)
        assert lines == sorted(lines, key=lambda line: -line.contribution)


def test_a_document_without_a_query_term_has_an_empty_explanation(tmp_path: Path) -> None:
    index = Index.build([Document("a", "sieve"), Document("b", "")], tmp_path / "idx")
    assert index.explain({"siev": 1.0}, BM25(), "b") == []
    with pytest.raises(UnknownDocumentError, match="holds no document 'c'"):
        index.explain({"siev": 1.0}, BM25(), "c")


def test_an_index_its_pipelines_and_rankings_go_to_other_processes(tmp_path: Path) -> None:
    index = Index.build([Document("a", "a sieve"), Document("b", "flour")], tmp_path / "idx")
    pipeline = index.bm25() % 5
    ranking = pipeline("sieve")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        (found,) = pool.map(pipeline, ["sieve"])
        assert pool.submit(len, index).result() == 2
    assert found == ranking and found.documents()[0].text == "a sieve"


def test_a_copy_stays_at_its_commit_until_it_is_refreshed(tmp_path: Path) -> None:
    index = Index.build([Document("a", "a sieve")], tmp_path / "idx")
    Index.open(tmp_path / "idx").add([Document("b", "flour")])
    newest = copy(index)
    assert len(newest) == 1
    assert newest.refresh() and (len(newest), len(index)) == (2, 1)


def test_a_document_deleted_twice(tmp_path: Path) -> None:
    index = Index.build([Document("a", "sieve"), Document("b", "flour")], tmp_path / "idx")
    index.delete(["b", "b"])  # named twice, as on the command line: it is one
    with pytest.raises(UnknownDocumentError):
        index.delete(["b"])
    assert list(Index.open(tmp_path / "idx")) == [Document("a", "sieve")]
