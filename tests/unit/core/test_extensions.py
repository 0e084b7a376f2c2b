"""Stages of other packages: found by their entry points, and what is wrong with one breaks nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tamis import Document, Index
from tamis.base.errors import InputError
from tamis.core import extensions
from tamis.core.language import parse
from tamis.core.registry import brought, build, check_searches, names
from tamis.serve.models import stages_known
from tamis.serve.pipelines import Pipelines

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a package with entry points and a module on the path."""

    def put(package: str, entry_points: str, code: str = "", group: str = "tamis.stages") -> None:
        folder = tmp_path / package
        metadata = folder / f"{package}-2.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.0\n")
        (metadata / "entry_points.txt").write_text(f"[{group}]\n{entry_points}\n")
        (folder / f"{package}_code.py").write_text(_HEAD + code)
        monkeypatch.syspath_prepend(str(folder))
        sys.modules.pop(f"{package}_code", None)  # of a test before
        forget()

    def forget() -> None:
        extensions._installed.cache_clear()
        stages_known.cache_clear()

    yield put
    monkeypatch.undo()
    forget()


_HEAD = """
from __future__ import annotations
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from tamis.core.options import AtMost, PlainText
from tamis.core.stage import Role, Stage, stage
if TYPE_CHECKING:
    from tamis import Index
"""

SIMPLE = """
class Last(Stage):
    def __init__(self, k: int = 3) -> None:
        self.k = k

    def apply(self, rankings, depth=None):
        return [ranking.rescored(-ranking.scores, ranking.kind) for ranking in rankings]
"""


@pytest.fixture
def index(tmp_path: Path) -> Index:
    documents = [Document("d1", "a fine sieve"), Document("d2", "sieve sieve")]
    return Index.build(documents, tmp_path / "idx")


def test_a_stage_of_another_package_is_one_of_the_language(install: Install, index: Index) -> None:
    install("others", "last = others_code:Last", SIMPLE)
    assert names()[-1] == "last"
    stage = build("bm25 % 5 >> last(k=2)", index)
    assert repr(stage) == "bm25 % 5 >> last(k=2)"  # undeclared, its entry point names it
    assert stage("sieve").ids == ("d1", "d2")
    with pytest.raises(
        InputError, match=r"'lst' is not a stage: did you mean last\? Use bm25, .*, groupwise, last, fast"
    ):
        build("lst")
    with pytest.raises(InputError, match="last has no option 'm': it takes k"):
        build("last(m=2)")
    assert {
        "name": "last",
        "role": "orders candidates",
        "options": ["k"],
        "package": "others 2.0",
    } in stages_known()


EVERY = """
class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"

@stage("every", role=Role.ORDERS)
class Every(Stage):
    def __init__(
        self, field: str, count: Annotated[int, AtMost(9)] = 3, share: float = 0.5, on: bool = False,
        how: Literal["a", "b"] = "a", most: int | None = None, colour: Colour = Colour.RED,
        path: Path | None = None, note: PlainText = "", *, index: Index | None = None, workers: int = 4,
    ) -> None:
        self.field, self.count, self.share, self.on, self.how, self.most = field, count, share, on, how, most
        self.colour, self.path, self.note, self.index, self.workers = colour, path, note, index, workers

    def apply(self, rankings, depth=None):
        return list(rankings)
"""


def test_options_of_every_type(install: Install, index: Index) -> None:
    install("typed", "every = typed_code:Every", EVERY)
    text = "every(field=title, count=5, share=1.0, on=true, how=b, most=7, colour=blue, path=a.txt)"
    built = build(text, index)
    assert repr(built) == text
    assert built.colour.value == "blue" and built.path == Path("a.txt")  # type: ignore[attr-defined]
    assert built.index is index and built.workers == 4  # type: ignore[attr-defined]
    assert index.fingerprint in built.resources
    assert build("every(field=title)", index).fingerprint != built.fingerprint
    for wrong, problem in (
        ("every", r"every needs field: write every\(field=...\)"),
        ("every(field=a, colour=green)", "colour of every cannot be 'green': give red or blue"),
        ("every(field=3)", "field of every cannot be 3: give a word"),
        ("every(field=a, workers=2)", "every has no option 'workers'"),
        ("every(bm25, field=a)", "every takes its options as name=value"),
    ):
        with pytest.raises(InputError, match=problem):
            build(wrong, index)


def test_what_a_client_may_ask_of_a_stage_follows_from_its_marks(install: Install, index: Index) -> None:
    install("typed", "every = typed_code:Every", EVERY)
    client = Pipelines(index, "bm25")
    with pytest.raises(InputError, match="lets no client choose field of every, here 'title'"):
        client.search("bm25 >> every(field=title)")
    own = Pipelines(index, "bm25 >> every(field=title)")
    assert own.search("bm25 >> every(field=title, note=anything, count=9)")
    with pytest.raises(InputError, match=r"has count=10: this server takes 9 at most"):
        own.search("bm25 >> every(field=title, count=10)")
    with pytest.raises(InputError, match="lets no client choose path of every, here '/etc/passwd'"):
        own.search('bm25 >> every(field=title, path="/etc/passwd")')


@pytest.mark.parametrize(
    ("entry_points", "code", "problem"),
    [
        ("x = bad_code:Missing", "", r"'x' of bad 2.0 \(tamis.stages\) cannot be imported \(AttributeError"),
        (
            "x = bad_code:Last",
            "raise RuntimeError('no\\nluck')",
            r"cannot be imported \(RuntimeError: no luck\)",
        ),
        ("x = no_such_module:Last", "", r"cannot be imported \(ModuleNotFoundError: No module named"),
        ("x = bad_code:Path", "", "is not a class of stages: derive it from tamis.Stage"),
        ("x = bad_code:X", "class X(Stage): ...", "does not define apply: define apply in X"),
        ("x = bad_code:X", f"{SIMPLE}\nX = stage('y', role=Role.ORDERS)(Last)", "declares the name 'y'"),
        (
            "x = bad_code:X",
            f"{SIMPLE}\nclass X(Last):\n    def __init__(self, **more): ...",
            r"takes \*\*more, which are options without names",
        ),
    ],
)
def test_one_that_cannot_be_used_is_an_error_of_a_line(
    install: Install, index: Index, entry_points: str, code: str, problem: str
) -> None:
    install("bad", entry_points, code)
    with pytest.raises(InputError, match=problem) as caught:
        build("x", index)
    assert "\n" not in str(caught.value)
    assert build("bm25 % 3", index)("sieve").ids  # and nothing to whoever does not use it
    assert [each["name"] for each in stages_known()][-1] == "groupwise"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("bm25", "has a name that tamis uses itself"),
        ("fast", "has a name that tamis uses itself"),
        ("true", "has a name that tamis uses itself"),
        ("Big", "is not a valid name"),
        ("a-b", "is not a valid name"),
    ],
)
def test_a_name_that_is_taken_or_not_valid(install: Install, index: Index, name: str, problem: str) -> None:
    install("named", f"{name} = named_code:Last", SIMPLE)
    assert brought()[name].problem == problem
    assert name not in names() or name == "bm25"
    assert build("bm25", index)("sieve").origin is not None
    with pytest.raises(InputError, match=problem):
        brought()[name].load()


def test_two_packages_with_one_name(install: Install, index: Index) -> None:
    install("one", "last = one_code:Last", SIMPLE)
    install("two", "last = two_code:Last", SIMPLE)
    with pytest.raises(InputError, match=r"has the name of one of one 2\.0: uninstall one of the two"):
        build("last", index)


def test_an_error_of_a_stage_of_others_is_one_of_the_pipeline(install: Install) -> None:
    code = SIMPLE.replace("self.k = k", "raise ValueError('k is\\n  odd')")
    install("raising", "last = raising_code:Last", code)
    with pytest.raises(InputError, match=r"in last\(k=5\): k is odd"):
        build("last(k=5)")


def test_an_annotation_for_type_checkers_alone(install: Install, index: Index) -> None:
    code = SIMPLE.replace("k: int = 3", "k: int = 3, other: Index = None").replace(
        "self.k = k", "self.k, self.other = k, other"
    )
    install("lazy", "last = lazy_code:Last", code)
    assert repr(build("last(k=5)")) == "last(k=5)"
    with pytest.raises(InputError, match="other of last is of the type Index, which cannot be found"):
        build("last(other=3)")


def test_a_retriever_of_others_begins_a_pipeline(install: Install, index: Index) -> None:
    code = """
@stage("all", role=Role.FINDS)
class All(Stage):
    def __init__(self, index: Index) -> None:
        self.index = index

    def apply(self, rankings, depth=None):
        ids = list(self.index.ids())
        return [ranking.found(ids, [1.0] * len(ids), self.index, self) for ranking in rankings]
"""
    install("finding", "all = finding_code:All", code)
    check_searches(parse("all % 5 >> normalise"))
    assert build("all", index)("x").ids == ("d1", "d2")
    with pytest.raises(InputError, match="a first stage needs an index"):
        build("all")
    assert Pipelines(index, "all >> normalise").rerank(None).expression == "mono"
