"""What a careless or unlucky user can give, and what becomes of it: a clear error or a sensible result."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import xxhash

from tamis import Document, Index
from tamis.base.errors import CorruptError, InputError, StorageError, TamisError, UnknownDocumentError
from tamis.index.dependence import SDM
from tamis.index.score import BM25, QueryLikelihood, TfIdf
from tamis.index.search import Backend
from tamis.index.writer import create
from tamis.storage.markers import mark

DOCUMENTS = [
    Document("d1", "A tamis is a fine sieve."),
    Document("d2", "Flour goes through a sieve."),
    Document("d3", "Soup of the day."),
]
MODELS = [BM25(), BM25(variant="robertson"), TfIdf(), QueryLikelihood(), QueryLikelihood(variant="exact")]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Two segments and a deleted document; no test changes it."""
    made = Index.build([*DOCUMENTS, Document("gone", "sieve")], tmp_path_factory.mktemp("bad") / "idx")
    made.add([Document("d4", "A coarse sieve for flour.")])
    made.delete(["gone"])
    return made


def search(index: Index, text: str, k: int = 10, backend: Backend = "numpy") -> list[str]:
    return index.search(index.weights(text), BM25(), k, backend=backend)[0]


def assert_one_line(error: pytest.ExceptionInfo[BaseException]) -> None:
    assert isinstance(error.value, TamisError)
    assert "\n" not in str(error.value)


# -- the corpus


def test_an_empty_corpus_is_an_empty_index(tmp_path: Path) -> None:
    index = Index.build([], tmp_path / "idx")
    assert (len(index), list(index), list(index.ids())) == (0, [], [])
    for model in MODELS:
        assert index.search({"sieve": 1.0}, model, 10)[0] == []
    with pytest.raises(UnknownDocumentError):
        index.document("d1")
    index.merge()
    index.add(DOCUMENTS)
    assert len(Index.open(tmp_path / "idx")) == 3


def test_empty_documents_are_kept_and_never_found(tmp_path: Path) -> None:
    index = Index.build(
        [Document("a", ""), Document("b", " \n\t"), Document("c", "the of")], tmp_path / "idx"
    )
    assert len(index) == 3
    assert index.document("b").text == " \n\t"
    for model in MODELS:
        assert index.search({"sieve": 1.0, "": 1.0}, model, 10)[0] == []
    index.add([Document("d", "sieve")])
    index.delete(["a"])
    index.merge()
    assert search(index, "sieve") == ["d"]
    assert list(index.ids()) == ["b", "c", "d"]


def test_a_duplicate_id_in_one_commit_is_an_error_and_nothing_is_indexed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'d1' occurs twice: .*on_duplicate") as error:
        Index.build([*DOCUMENTS, Document("d1", "again")], tmp_path / "idx")
    assert_one_line(error)
    with pytest.raises(InputError, match="holds no index"):
        Index.open(tmp_path / "idx")
    assert len(Index.build(DOCUMENTS, tmp_path / "idx")) == 3  # the folder is as good as empty


def test_a_duplicate_id_across_commits_is_an_error_and_the_old_one_stays(tmp_path: Path) -> None:
    index = Index.build(DOCUMENTS, tmp_path / "idx")
    with pytest.raises(InputError, match="already holds a document 'd2': delete it first, or"):
        index.add([Document("new", "text"), Document("d2", "again")])
    index.refresh()
    assert "new" not in index and index.document("d2") == DOCUMENTS[1]


@pytest.mark.parametrize(("rule", "text"), [("replace", "three"), ("skip", "one")])
@pytest.mark.parametrize("commit_every", [None, 1])
def test_a_duplicate_id_can_be_replaced_or_skipped(
    tmp_path: Path, rule: str, text: str, commit_every: int | None
) -> None:
    copies = [Document("a", "one"), Document("b", "b"), Document("a", "two"), Document("a", "three")]
    index = Index.build(copies, tmp_path / "idx", on_duplicate=rule, commit_every=commit_every)  # type: ignore[arg-type]
    assert len(index) == 2
    assert index.document("a").text == text
    assert [word for word in ("one", "two", "three") if search(index, word)] == [text]


def test_an_unknown_rule_for_duplicates(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rule 'ignore' for duplicates: use error, replace or skip"):
        Index.build(DOCUMENTS, tmp_path / "idx", on_duplicate="ignore")  # type: ignore[arg-type]


def test_lone_surrogates_are_an_error_that_names_the_document(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="the text of document 'd9' is not valid Unicode at character 4"
    ) as error:
        Index.build([Document("d9", "caf\udce9")], tmp_path / "idx")
    assert_one_line(error)


def test_a_refused_document_does_not_spoil_the_others(tmp_path: Path) -> None:
    with create(tmp_path / "idx") as writer:
        for document in [DOCUMENTS[0], Document("bad", "\ud800"), Document("", ""), DOCUMENTS[1]]:
            try:
                writer.add(document)
            except InputError:
                continue
        writer.commit()
    index = Index.open(tmp_path / "idx")
    assert list(index) == DOCUMENTS[:2]
    assert search(index, "sieve") == ["d1", "d2"]


def test_a_document_that_breaks_off_half_way_ends_the_writer(tmp_path: Path) -> None:
    class Interrupted(str):
        def encode(self, *_: object) -> bytes:  # type: ignore[override]
            raise KeyboardInterrupt

    with create(tmp_path / "idx") as writer:
        writer.add(DOCUMENTS[0])
        with pytest.raises(KeyboardInterrupt):
            writer.add(Document("d2", Interrupted("sieve")))
        with pytest.raises(TamisError, match="ended or failed"):
            writer.commit()


def test_control_characters_and_nul_bytes_in_texts(tmp_path: Path) -> None:
    text = "sieve\0flour\x00\x01\x1b[31m soup\x7f\ufeff\uffff"
    index = Index.build([Document("a", text, title="\0")], tmp_path / "idx")
    assert index.document("a") == Document("a", text, title="\0")
    assert search(index, "flour") == ["a"]
    assert search(index, "\0") == []


def test_a_token_of_a_megabyte(tmp_path: Path) -> None:
    long = "x" * 1_000_000
    for analyzer in ("english", "whitespace", "keyword"):
        index = Index.build(
            [Document("a", long), Document("b", "sieve")], tmp_path / analyzer, analyzer=analyzer
        )
        index.add([Document("c", long + " sieve")])
        index.merge()
        assert index.document("a").text == long
        assert "a" in search(index, long)
        assert search(index, "sieve") == (["b"] if analyzer == "keyword" else ["b", "c"])


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Το κόσκινο του ΜΆΓΕΙΡΑ", "μάγειρα"),
        ("נפה דקה לקמח", "דקה"),
        ("ตะแกรงร่อนแป้ง", "ตะแกรงร่อนแป้ง"),
        ("細かい篩で粉をふるう", "篩"),
        ("밀가루 체", "체"),
        ("منخل ناعم للطحين", "ناعم"),
        ("छलनी से आटा", "आटा"),
        ("ein Sieb für Straße", "STRASSE sieb"),
        ("dinosaurs 🦕 and 👩‍👩‍👧 families", "🦕"),
        ("cafe\u0301 e\u0301clair", "cafe\u0301"),
        ("\U0001d4d3 mathematical", "\U0001d4d3"),
    ],
)
def test_texts_of_all_scripts_are_found_by_their_words(tmp_path: Path, text: str, query: str) -> None:
    index = Index.build([Document("a", text), *DOCUMENTS], tmp_path / "idx")
    assert index.document("a").text == text
    assert search(index, query) == ["a"]
    assert search(index, text)[0] == "a"


def test_a_document_of_fifty_megabytes(tmp_path: Path) -> None:
    text = f"sieve {'x' * 50} " * 900_000
    index = Index.build([Document("large", text), *DOCUMENTS], tmp_path / "idx", analyzer="whitespace")
    assert len(text) > 50_000_000
    assert index.document("large").text == text
    assert search(index, "sieve")[0] == "large"
    (line,) = index.explain({"sieve": 1.0}, BM25(), "large")
    assert line.tf == 900_000


@pytest.mark.parametrize(
    "identity",
    [
        "with space",
        " ",
        "a/b\\c",
        "../../etc/passwd",
        "id\twith\ttabs",
        "два",
        "🦕",
        "\n",
        "0",
        "x" * 100_000,
    ],
)
def test_ids_may_hold_anything_but_nul(tmp_path: Path, identity: str) -> None:
    index = Index.build([*DOCUMENTS, Document(identity, "unique")], tmp_path / "idx")
    assert identity in index
    assert search(index, "unique") == [identity]
    assert index.document(identity).text == "unique"
    index.add([Document(identity, "replaced")], on_duplicate="replace")
    index.merge()
    assert search(index, "replaced") == [identity]
    index.delete([identity])
    assert identity not in index and len(index) == 3


@pytest.mark.parametrize("identity", ["", "\0", "a\0"])
def test_empty_ids_and_nul_are_refused(tmp_path: Path, identity: str) -> None:
    with pytest.raises(InputError, match="is empty or holds a NUL: give it an id") as error:
        Index.build([Document(identity, "text")], tmp_path / "idx")
    assert_one_line(error)


def test_an_error_about_a_very_long_id_is_short(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        Index.build([Document("x" * 100_000, "\ud800")], tmp_path / "idx")
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("commit_every", [0, -1])
def test_a_commit_every_no_document(tmp_path: Path, commit_every: int) -> None:
    with pytest.raises(InputError, match=f"cannot commit every {commit_every} documents"):
        Index.build(DOCUMENTS, tmp_path / "idx", commit_every=commit_every)


# -- ids to look up


@pytest.mark.parametrize("identity", ["unknown", "", "gone", "D1", "\udc80", "d" * 100_000, "d1\0"])
def test_an_unknown_id(index: Index, identity: str) -> None:
    assert identity not in index
    with pytest.raises(UnknownDocumentError, match="the index holds no document"):
        index.document(identity)
    with pytest.raises(UnknownDocumentError):
        index.explain({"siev": 1.0}, BM25(), identity)
    generation = index.manifest.generation
    with pytest.raises(UnknownDocumentError):
        index.delete(["d1", identity])
    assert Index.open(index.path).manifest.generation == generation  # d1 is still there


def test_the_error_for_an_unknown_id_is_a_key_error_too(index: Index) -> None:
    with pytest.raises(KeyError):
        index.document("unknown")


def test_an_id_that_is_no_text(index: Index) -> None:
    with pytest.raises(InputError, match="the id 7 is int, not str"):
        index.document(7)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the id 7 is int, not str"):
        index.add([Document(7, "text")])  # type: ignore[arg-type]


def test_one_id_where_several_are_wanted(index: Index) -> None:
    with pytest.raises(
        InputError, match=r"'d1' is a single id, and a list is expected: give a list: \['d1'\]"
    ):
        index.delete("d1")
    for options in ({"only": "d1"}, {"without": "d1"}):
        with pytest.raises(InputError, match="'d1' is a single id"):
            index.search({"siev": 1.0}, BM25(), 10, **options)


# -- queries


@pytest.mark.parametrize("query", ["", " ", "\n", "?!", "the of and", "unknownword", "\0", "\udc80", "🦕"])
@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_a_query_that_matches_nothing_finds_nothing(index: Index, query: str, backend: Backend) -> None:
    for model in MODELS:
        ids, scores = index.search(index.weights(query), model, 10, backend=backend)
        assert (ids, scores.tolist()) == ([], [])


def test_a_query_of_a_megabyte(index: Index) -> None:
    assert search(index, "sieve " * 170_000) == search(index, "sieve")


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_k_zero_finds_nothing_and_k_may_be_larger_than_the_index(index: Index, backend: Backend) -> None:
    assert search(index, "sieve", 0, backend) == []
    assert search(index, "sieve", 1, backend) == search(index, "sieve")[:1]
    for k in (3, 10**6, 10**18, 1 << 70):
        assert sorted(search(index, "sieve", k, backend)) == ["d1", "d2", "d4"]


@pytest.mark.parametrize("k", [-1, -(10**18)])
@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_a_negative_k_is_an_error(index: Index, k: int, backend: Backend) -> None:
    with pytest.raises(InputError, match=f"cannot find {k} documents: use a k of 0 or more"):
        search(index, "sieve", k, backend)


@pytest.mark.parametrize("k", [0, -3, True, 2.5, "10"])
def test_a_pipeline_keeps_at_least_one(index: Index, k: int) -> None:
    with pytest.raises(InputError, match="cannot keep"):
        index.bm25() % k
    assert repr(index.bm25() % np.int64(3)) == "bm25 % 3"  # type: ignore[operator]


@pytest.mark.parametrize("given", ["a text", ["d9", "a text"], ("d9", "a text"), None])
def test_what_is_no_document_and_no_query(tmp_path: Path, given: object) -> None:
    kind = type(given).__name__
    made = Index.build(DOCUMENTS, tmp_path / "idx")
    problem = f"a {kind} is not a document: give a tamis.Document"
    with pytest.raises(InputError, match=problem):
        Index.build([given], tmp_path / "new")  # type: ignore[list-item]
    with pytest.raises(InputError, match=problem):
        made.add([Document("d9", "a text"), given])  # type: ignore[list-item]
    assert repr(made) == f"<Index of {len(DOCUMENTS)} documents: {tmp_path / 'idx'}>"
    assert "d9" not in made
    with pytest.raises(InputError, match=f"a {kind} is not a query: give a tamis.Query"):
        made.bm25().run([given])  # type: ignore[list-item]


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_a_term_of_weight_zero_is_as_good_as_absent(index: Index, model: BM25, backend: Backend) -> None:
    with_zero = index.search({"siev": 1.0, "flour": 0.0, "soup": -0.0}, model, 10, backend=backend)
    without = index.search({"siev": 1.0}, model, 10, backend=backend)
    assert with_zero[0] == without[0] and with_zero[1].tolist() == without[1].tolist()
    assert index.search({"siev": 0.0}, model, 10, backend=backend)[0] == []


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_a_negative_weight_pushes_documents_down(index: Index, backend: Backend) -> None:
    ids, scores = index.search({"siev": 1.0, "flour": -1.0}, BM25(), 10, backend=backend)
    assert (ids[0], sorted(ids[1:])) == ("d1", ["d2", "d4"])
    assert scores[0] > 0 > scores[1]


@pytest.mark.parametrize("weight", [math.nan, math.inf, -math.inf, 1e31, -1e300])
@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_a_weight_that_is_no_number_or_too_large_is_an_error(
    index: Index, weight: float, backend: Backend
) -> None:
    with pytest.raises(InputError, match="the weight of 'siev' is") as error:
        index.search({"siev": weight}, BM25(), 10, backend=backend)
    assert_one_line(error)


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_the_largest_weights_still_give_finite_scores(index: Index, model: BM25, backend: Backend) -> None:
    _, scores = index.search({"siev": 1e30, "flour": -1e30, "fine": 1e29}, model, 10, backend=backend)
    assert len(scores) == 3
    assert all(map(math.isfinite, scores.tolist()))


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_filters_with_unknown_ids_and_with_none(index: Index, backend: Backend) -> None:
    def found(**options: list[str]) -> list[str]:
        return sorted(index.search({"siev": 1.0}, BM25(), 10, backend=backend, **options)[0])

    assert found(only=[]) == []
    assert found(without=[]) == ["d1", "d2", "d4"]
    assert found(only=["unknown", "gone"]) == []
    assert found(only=["d4", "unknown", "d4", "d3"]) == ["d4"]
    assert found(without=["unknown", "d4"]) == ["d1", "d2"]
    assert found(only=["d1", "d4"], without=["d4"]) == ["d1"]


@pytest.mark.parametrize("filters", [{"only": "d1"}, {"without": "d1"}])
def test_one_id_is_no_filter(tmp_path: Path, filters: dict[str, str]) -> None:
    """It would be the ids "d" and "1"."""
    index = Index.build([Document("d1", "sieve"), Document("d2", "sieve")], tmp_path / "idx", positions=True)
    said = r"'d1' is a single id, and a list is expected: give a list: \['d1'\]"
    with pytest.raises(InputError, match=said):
        index.bm25(**filters)
    with pytest.raises(InputError, match=said):
        index.search({"siev": 1.0}, BM25(), 10, **filters)
    if "only" in filters:
        with pytest.raises(InputError, match=said):
            SDM(index, only="d1")


def test_an_unknown_backend(index: Index) -> None:
    with pytest.raises(InputError, match="no backend 'jax': use auto, numba or numpy"):
        search(index, "sieve", backend="jax")  # type: ignore[arg-type]


# -- the folder


def test_a_folder_that_is_no_index(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("precious")
    with pytest.raises(InputError, match="holds no index: make one with `tamis index") as error:
        Index.open(tmp_path)
    assert_one_line(error)
    with pytest.raises(InputError, match=r"is not empty, and notes\.txt in it is not part of an index"):
        Index.build(DOCUMENTS, tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_path_where_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no index"):
        Index.open(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


def test_a_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(InputError, match="holds no index"):
        Index.open(tmp_path / "file")
    with pytest.raises(InputError, match="file is a file: choose another name"):
        Index.build(DOCUMENTS, tmp_path / "file", overwrite=True)
    with pytest.raises(StorageError, match=r"cannot write .*Not a directory"):
        Index.build(DOCUMENTS, tmp_path / "file" / "idx")
    assert (tmp_path / "file").read_text() == "precious"


def test_an_interrupted_build_is_no_index_and_can_be_built_again(tmp_path: Path) -> None:
    """What a process killed while it wrote its first manifest leaves behind."""
    folder = tmp_path / "idx"
    (folder / "segments/00000001-abcdef01").mkdir(parents=True)
    mark(folder / "segments/00000001-abcdef01")
    (folder / "segments/00000001-abcdef01/store.frames").write_bytes(b"half")
    (folder / "lock").touch()
    (folder / ".tamis-0123456789abcdef.tmp").write_text(f'{"0" * 32}\n{{\n "format": 1,\n "iden')
    with pytest.raises(InputError, match="holds no index"):
        Index.open(folder)
    index = Index.build(DOCUMENTS, folder)
    assert len(index) == 3
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "manifest.json", "segments"]
    assert len(list((folder / "segments").iterdir())) == 1


def write_manifest(folder: Path, **changes: object) -> None:
    """Change a manifest as another version of tamis would have written it: with a right checksum."""
    path = folder / "manifest.json"
    body = json.loads(path.read_text().split("\n", 1)[1]) | changes
    text = json.dumps(body, indent=1)
    path.write_text(f"{xxhash.xxh3_128_hexdigest(text.encode())}\n{text}\n")


def test_an_index_of_a_future_format(tmp_path: Path) -> None:
    index = Index.build(DOCUMENTS, tmp_path / "idx")
    write_manifest(tmp_path / "idx", format=2, segments="in another form")
    for use in (lambda: Index.open(tmp_path / "idx"), index.refresh, index.merge):
        with pytest.raises(InputError, match="has index format 2, this tamis reads 1: build the index again"):
            use()
    assert list((tmp_path / "idx/segments").iterdir())  # and nothing of it was removed
    assert len(Index.build(DOCUMENTS[:1], tmp_path / "idx", overwrite=True)) == 1


def test_an_index_with_an_analyzer_that_this_version_does_not_know(tmp_path: Path) -> None:
    Index.build(DOCUMENTS, tmp_path / "idx")
    write_manifest(tmp_path / "idx", analyzer="klingon")
    with pytest.raises(InputError, match="'klingon' is not an analyzer"):
        Index.open(tmp_path / "idx")


def test_an_unknown_analyzer_fails_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'klingon' is not an analyzer: choose from english"):
        Index.build(DOCUMENTS, tmp_path / "idx", analyzer="klingon")
    assert not (tmp_path / "idx").exists()


@pytest.mark.parametrize("content", [b"", b"\n", b"{}", b"\xff\xfe\0", b"0" * 32 + b"\n{}\n"])
def test_a_manifest_that_is_none(tmp_path: Path, content: bytes) -> None:
    index = Index.build(DOCUMENTS, tmp_path / "idx")
    (tmp_path / "idx/manifest.json").write_bytes(content)
    said = r"manifest\.json is corrupt: restore it from a copy, or build"
    for use in (lambda: Index.open(tmp_path / "idx"), index.refresh, index.merge):
        with pytest.raises(CorruptError, match=said):
            use()
    assert list((tmp_path / "idx/segments").iterdir())


def test_a_manifest_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(StorageError, match=r"cannot read .*manifest\.json \(Is a directory"):
        Index.open(tmp_path)


def test_positions_that_the_index_does_not_have(index: Index) -> None:
    with pytest.raises(TamisError, match="sdm needs positions: build the index with positions"):
        index.sdm()
