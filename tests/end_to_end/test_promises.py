"""docs/promises.md: each promise links to the tests that hold it, and they exist. Promises that no other
test holds are tested here."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tamis import Document, Index, __version__

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "promises.md"
_LINK = re.compile(r"\[`(test_\w+)`\]\(([^)]+)\)")


def promises() -> dict[str, str]:
    """Each promise by its first words."""
    made = re.split(r"^- ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {promise.split("**")[1]: promise for promise in made}


def test_every_promise_is_read() -> None:
    assert len(promises()) == PAGE.read_text(encoding="utf-8").count("\n- **") >= 9


def test_the_readme_links_to_the_promises() -> None:
    assert "](docs/promises.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("promise", promises())
def test_a_promise_names_tests_that_are_there(promise: str) -> None:
    links = _LINK.findall(promises()[promise])
    assert links, f"no test is named for: {promise}"
    for name, target in links:
        path = (PAGE.parent / target).resolve()
        assert path.is_file() and path.is_relative_to(ROOT / "tests"), target
        functions = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        assert name in {each.name for each in functions if isinstance(each, ast.FunctionDef)}, (
            f"{target}: {name}"
        )


# -- nothing is downloaded
# ------------------------------------------------------------------------------------------------------------

#: Runs commands in a process that may connect to nothing; what connects, and looks up a name, is told.
_CUT_OFF = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        sys.stderr.write(f"network: {event} {arguments[-1]}\\n")
        raise OSError("there is no network here")

sys.addaudithook(refuse)
from tamis.cli import main

for command in COMMANDS:
    if (status := main(command)) != 0:
        sys.exit(status)
"""


def test_nothing_is_asked_of_the_network(tmp_path: Path) -> None:
    """Indexing, searching with the bundled models, ranking and evaluating."""
    (tmp_path / "docs.jsonl").write_text('{"id": "d1", "text": "a sieve"}\n{"id": "d2", "text": "soup"}\n')
    (tmp_path / "queries.tsv").write_text("q1\tsieve\n")
    (tmp_path / "qrels.txt").write_text("q1 0 d1 1\n")
    commands = [
        ["index", "docs.jsonl", "-o", "idx"],
        ["search", "idx", "sieve"],
        ["run", "idx", "queries.tsv", "-o", "a.run", "-p", "bm25 >> mono(model=mono-nano)"],
        ["eval", "qrels.txt", "a.run"],
        ["doctor", "idx"],
    ]
    done = cut_off(tmp_path, commands)
    assert done.returncode == 0, done.stderr
    assert "network: " not in done.stderr
    # and the hook does see what asks: a model by a name of the hub
    done = cut_off(tmp_path, [["search", "idx", "sieve", "-p", 'bm25 >> mono(model="no/such")']])
    assert done.returncode == 2 and "network: " in done.stderr


def cut_off(folder: Path, commands: list[list[str]]) -> subprocess.CompletedProcess[str]:
    program = f"COMMANDS = {commands!r}\n{_CUT_OFF}"
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, env=environment
    )


# -- what a run was made with
# ------------------------------------------------------------------------------------------------------------


def test_beside_a_run_stands_what_it_was_made_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tamis.cli import main

    monkeypatch.chdir(tmp_path)
    Path("queries.tsv").write_text("q1\tsieve\n")
    index = Index.build([Document("d1", "a sieve")], "idx")

    def made(*options: str) -> dict[str, object]:
        assert main(["run", "idx", "queries.tsv", "-o", "a.run", *options]) == 0
        manifest: dict[str, object] = json.loads(Path("a.run.json").read_text())
        return manifest

    first, again = made(), made()
    assert (first["tamis"], first["pipeline"]) == (__version__, "bm25 % 1000")
    same = ("tamis", "pipeline", "fingerprint", "index_commit")
    assert [first[key] for key in same] == [again[key] for key in same]
    other = made("-p", "bm25(k1=1.2) % 5")
    assert other["pipeline"] == "bm25(k1=1.2) % 5" and other["fingerprint"] != first["fingerprint"]
    index.add([Document("d2", "another sieve")])
    assert made()["index_commit"] != first["index_commit"]
