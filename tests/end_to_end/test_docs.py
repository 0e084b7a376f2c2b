"""README and docs/ are true: their commands and programs are run, page by page, and print what they say.

A page is run from top to bottom in a folder of its own that holds the demo collection as `tamis demo --keep
demo` leaves it (README makes it first). A block with a title (`title="notes.jsonl"`) is that file. A block of
text after a program is what it prints. In expected output `...` stands for anything, and times and sizes may
differ. A block that follows a comment `<!-- not run: why -->` is not run, which the site says above it; it
must parse all the same.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tamis import Document, Index
from tamis.cli import VERBS, main
from tamis.cli.arguments import ArgumentParser
from tamis.core.language import Call, Value
from tamis.core.registry import BUILT_IN, parameters_of

REPOSITORY = Path(__file__).parents[2]
README = REPOSITORY / "README.md"
PAGES = [README, *sorted((REPOSITORY / "docs").rglob("*.md"))]
DEMO = "tamis demo --keep demo"

LANGUAGES = {"python", "console", "text", "toml", "ini", "json", "js", "http", "html", "markdown"}
#: The packages of others that a page uses; without one it is not run.
NEEDS = {
    "docs/how-to/integrations.md": ["langchain_core", "llama_index", "haystack", "pyterrier", "rerankers"],
}

_FENCE = re.compile(
    r"(?:^<!-- not run: (?P<why>[^\n]+) -->\n)?"
    r"^(?P<fence>```+)(?P<language>\w*)(?P<about>[^\n]*)\n(?P<body>.*?)^(?P=fence)$",
    re.DOTALL | re.MULTILINE,
)
_COMMAND = re.compile(r"^\$ (?P<line>(?:.*\\\n)*.*)\n(?P<printed>(?:(?!\$ ).*\n)*)", re.MULTILINE)
_MEASURED = re.compile(r"(?:\d+ min )?[\d.,]+ (?:ms|s|kB|MB|cores?)\b")


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    body: str
    title: str  # of a file
    why: str  # it is not run

    @property
    def commands(self) -> Iterator[tuple[list[str], str]]:
        """The words of each command, and what it should print."""
        for match in _COMMAND.finditer(self.body):
            yield shlex.split(match["line"].replace("\\\n", " "), comments=True), match["printed"]


def name(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def blocks(page: Path) -> list[Block]:
    found = []
    for match in _FENCE.finditer(page.read_text(encoding="utf-8")):
        title = re.search(r'title="([^"]+)"', match["about"])
        found.append(Block(match["language"], match["body"], title[1] if title else "", match["why"] or ""))
    return found


def agree(expected: str, printed: str) -> bool:
    """
    >>> agree("a\\n...\\nin 1.2 ms\\n", "a\\nb\\nc\\nin 3.4 ms\\n"), agree("a\\n", "b\\n")
    (True, False)
    """
    wanted, found = (
        _MEASURED.sub("T", re.sub(r" +", " ", text)).replace(" \n", "\n").strip()
        for text in (expected, printed)
    )
    return bool(re.fullmatch(re.escape(wanted).replace(r"\.\.\.", ".*"), found, re.DOTALL))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo collection, indexed and ranked: once, for it takes half a minute."""
    place = tmp_path_factory.mktemp("demo")
    subprocess.run(
        [sys.executable, "-m", "tamis", "demo", "--keep", "demo"],
        cwd=place,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return place / "demo"


def runs(page: Path) -> bool:
    return any(block.language in ("python", "console") and not block.why for block in blocks(page))


@pytest.mark.parametrize("page", list(filter(runs, PAGES)), ids=name)
def test_blocks_do_what_they_say(
    page: Path,
    demo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for module in NEEDS.get(name(page), []):
        pytest.importorskip(module, reason=f"{module} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest's workers set it
    if page != README:
        shutil.copytree(demo, "demo")
    names: dict[str, object] = {}
    printed = ""
    capsys.readouterr()
    for block in blocks(page):
        if block.title:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.body, encoding="utf-8")
        elif block.why:
            continue
        elif block.language == "python":
            exec(compile(block.body, name(page), "exec", dont_inherit=True), names)
            printed = capsys.readouterr().out
        elif block.language == "text" and printed:
            assert agree(block.body, printed), f"{printed}\nis not\n{block.body}"
            printed = ""
        elif block.language == "console":
            for (program, *arguments), expected in block.commands:
                assert program == "tamis"
                if arguments == DEMO.split()[1:]:
                    shutil.copytree(demo, "demo", dirs_exist_ok=True)
                    continue
                assert main(arguments) == 0, capsys.readouterr().err
                shown = capsys.readouterr().out
                assert agree(expected, shown), f"{arguments}: {shown}\nis not\n{expected}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_what_it_is(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * len(blocks(page))
    assert text.count("<!-- not run: ") == sum(bool(block.why) for block in blocks(page))
    for block in blocks(page):
        assert block.language in LANGUAGES, block.body
        assert block.language != "console" or block.body.startswith("$ "), block.body


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_is_not_run_parses(page: Path) -> None:
    for block in blocks(page):
        if block.language == "toml":
            tomllib.loads(block.body)
        if block.why and block.language == "python":
            compile(block.body, name(page), "exec")
        if block.why and block.language == "console":
            for command, _ in block.commands:
                check_command(command)


def check_command(command: list[str]) -> None:
    """It could be run: a verb with arguments that it takes, a target of make, a program that is there."""
    program, *rest = command
    if program in ("tamis", "torchrun"):
        verb, *arguments = rest[rest.index("tamis") + 1 :] if program == "torchrun" else rest
        assert verb in VERBS
        parser = ArgumentParser()
        import_module(f"tamis.cli.{verb}").add_arguments(parser)
        parser.parse_intermixed_args(arguments)
    elif program == "make":
        targets = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
        assert all(f"\n{target}:" in targets for target in rest)
    elif program == "python":
        assert (REPOSITORY / rest[0]).is_file() or rest[0] == "-m"


def test_pipelines_in_the_text_can_be_built(tmp_path: Path) -> None:
    index = Index.build([Document("d", "a sieve")], tmp_path / "index", positions=True)
    quoted = re.compile(rf"([`'\"])((?:{'|'.join(BUILT_IN)})(?:\(| % | >> ).*?)\1")
    with_holes = re.compile(r"[{}]|\.\.\.| % [k0]|k=0|k2")  # or the error that is shown
    found = {match[2] for page in PAGES for match in quoted.finditer(page.read_text(encoding="utf-8"))}
    found = {each for each in found if not with_holes.search(each)}
    for each in found:
        index.pipeline(each)
    assert len(found) > 30


def test_figures_are_those_that_were_measured() -> None:
    page = (REPOSITORY / "docs" / "performance.md").read_text(encoding="utf-8")
    results = REPOSITORY / "bench" / "results"
    for engine in json.loads((results / "rerank_cpu.json").read_text())["engines"].values():
        median, least, peak = (engine[key] for key in ("median_seconds", "least_seconds", "peak_mib"))
        assert f"| {median:.2f} | {least:.2f} | {peak:,.0f} |" in page
    for model in json.loads((results / "rerank_gpu.json").read_text())["models"].values():
        mono = model["mono, eager"]
        assert f"{mono['pairs_per_s']:,.0f} ({mono['of_ceiling']:.0%})" in page
        assert f" {model['mono, k0 = 1,000']['ms']:.1f} |" in page


def test_what_scaling_is_worked_out_from_was_measured() -> None:
    page, results = REPOSITORY / "docs" / "how-to" / "scale.md", REPOSITORY / "bench" / "results"
    inputs = next(block.body for block in blocks(page) if block.language == "python")
    found: dict[str, Any] = {}
    exec(inputs, found)
    large = json.loads((results / "scale_opensearch.json").read_text())[-1]
    assert found["PASSAGES"] == large["documents"]
    for place, engine in (("ON_DISK", "disk"), ("OPENSEARCH", "opensearch, 1 shard")):
        measured = large["engines"][engine]
        assert found[place] == {
            "GB": round(measured["index_mb"] / 1000, 3),
            "BUILD_CORE_S": round(measured["client_cpu_s"] + measured["cluster_cpu_s"], 1),
            "P50_S": round(measured["p50_ms_k1000"] / 1000, 6),
            "P99_S": round(measured["p99_ms_k1000"] / 1000, 6),
        }
    models = json.loads((results / "rerank_gpu.json").read_text())["models"]
    for model, seconds in found["GPU_S"].items():
        for candidates, value in seconds.items():
            assert value == round(models[model.lower()][f"mono, k0 = {candidates:,}"]["ms"] / 1000, 6)
    alone = json.loads((results / "interactive.json").read_text())["sets"]["passages"]["engines"]
    names = {"mono": "mono alone", "mono-nano": "first reader alone"}
    assert found["CORE_S"] == {name: round(alone[names[name]]["median_seconds"], 4) for name in names}
    texts = (REPOSITORY / "docs" / "index-files.md").read_text(encoding="utf-8")
    sizes = re.search(r"take ([\d.]+) MB on the disk, of which\s+searching reads ([\d.]+) MB", texts)
    assert sizes and found["SEARCHED"] == round(float(sizes[2]) / float(sizes[1]), 3)


def test_the_readme_stays_short() -> None:
    assert README.read_text(encoding="utf-8").count("\n") <= 130


def test_the_table_of_stages_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "tools")
    page = (REPOSITORY / "docs" / "reference" / "pipelines.md").read_text("utf-8")
    assert "<!-- generated: overview of stages -->" in page
    text = import_module("docs_reference").overview()
    found = re.findall(r"^\| \[`(\w+)`\]\(#\1\) \| (?:`([^`]*)`)? ?\| (.*) \|$", text, re.MULTILINE)
    assert all(about for *_, about in found)
    assert {stage: options for stage, options, _ in found if stage in BUILT_IN} == {
        stage: str(Call("x", (), _defaults(stage)))[2:-1] for stage in BUILT_IN
    }


def _defaults(stage: str) -> tuple[tuple[str, Value], ...]:
    known = parameters_of(stage).items()
    return tuple((key, each.default) for key, each in known if not each.required)


def test_every_page_is_in_the_contents() -> None:
    contents = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    listed = sorted(re.findall(r"^ +- (?:.*: )?(\S+\.md)$", contents, re.MULTILINE))
    assert listed == sorted(name(page).removeprefix("docs/") for page in PAGES if page != README)


def test_the_site_is_built_without_a_warning_and_asks_nothing_of_anyone(tmp_path: Path) -> None:
    command = [sys.executable, str(REPOSITORY / "tools" / "docs_site.py"), str(tmp_path / "site")]
    built = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {page: page.read_text(encoding="utf-8") for page in (tmp_path / "site").rglob("*.html")}
    assert len(pages) > len(PAGES)
    asks = re.compile(
        r'<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)="?(?:https?:)?//', re.IGNORECASE
    )
    for page, text in pages.items():
        assert not asks.findall(text), page
        # the builder checks the links of the text, this its own: the contents, the page before and after
        if page.name != "404.html":  # whose links are from the root, wherever that will be
            leads = set(re.findall(r'href="([^":#?]+)["#?]', text))
            assert leads and all((page.parent / each).exists() for each in leads), f"{page}: {leads}"


@pytest.mark.parametrize(
    "module", ["docs_text", "docs_python", "docs_recipes", "docs_reference", "docs_site"]
)
def test_the_generators_do_what_they_say(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "tools")
    result = doctest.testmod(import_module(module))
    assert result.attempted and not result.failed


def test_every_field_of_a_recipe_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "tools")
    module = import_module("docs_recipes")
    for command, kinds in module.RECIPES.items():
        rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.*) \| (.*) \|$", module.recipes(command), re.MULTILINE)
        assert {name for kind in kinds for name in kind.model_fields} <= {name for name, *_ in rows}
        assert all(kind and said for _, kind, _, said in rows)
