"""The README is true: its commands and programs are run, in order and in one folder, and print what it says.

A block that follows a comment `<!-- not run: why -->` is not run. In expected output `...` stands for
anything, and times and sizes may differ.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tamis.cli import VERBS, main
from tamis.expression import Call, Value
from tamis.stages import STAGES, parameters_of

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
_BLOCK = re.compile(
    r"(?P<mark><!-- not run: [^\n]+-->\n)?```(?P<language>\w+)\n(?P<body>.*?)```\n", re.DOTALL
)
_MEASURED = re.compile(r"[\d.,]+ (?:ms|s|kB|MB)\b")


def blocks() -> list[tuple[str, str]]:
    return [(match["language"], match["body"]) for match in _BLOCK.finditer(README) if not match["mark"]]


def agree(expected: str, printed: str) -> bool:
    """
    >>> agree("a\\n...\\nin 1.2 ms\\n", "a\\nb\\nc\\nin 3.4 ms\\n"), agree("a\\n", "b\\n")
    (True, False)
    """
    wanted, found = (
        _MEASURED.sub("T", re.sub(r"[ ]+\n", "\n", text)).rstrip("\n") for text in (expected, printed)
    )
    return bool(re.fullmatch(re.escape(wanted).replace(r"\.\.\.", ".*"), found, re.DOTALL))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


def test_every_block_says_what_it_is() -> None:
    assert README.count("```") == 2 * len(list(_BLOCK.finditer(README)))
    assert {language for language, _ in blocks()} == {"python", "console", "text"}


def test_blocks_do_what_they_say(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest's workers set it
    names: dict[str, object] = {}
    printed = ""
    for language, body in blocks():
        if language == "python":
            exec(compile(body, "README.md", "exec"), names)
            printed = capsys.readouterr().out
        elif language == "text":
            assert agree(body, printed), f"{printed}\nis not\n{body}"
        else:
            for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", body, re.MULTILINE):
                program, *arguments = shlex.split(command, comments=True)
                assert program == "tamis"
                assert main(arguments) == 0, capsys.readouterr().err
                printed = capsys.readouterr().out
                assert agree(expected, printed), f"{command}: {printed}\nis not\n{expected}"


def test_commands_that_are_not_run_parse() -> None:
    from importlib import import_module

    from tamis.cli.arguments import ArgumentParser

    commands = [
        shlex.split(line[2:], comments=True)
        for match in _BLOCK.finditer(README)
        if match["mark"]
        for line in match["body"].splitlines()
    ]
    for _, verb, *arguments in (command for command in commands if command[0] == "tamis"):
        parser = ArgumentParser()
        import_module(f"tamis.cli.{verb}").add_arguments(parser)
        parser.parse_intermixed_args(arguments)
    assert {command[1] for command in commands if command[0] == "tamis"} <= set(VERBS)


def test_the_table_of_stages_is_complete() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`)? ?\|", README, re.MULTILINE))
    assert rows == {name: str(Call("x", (), _defaults(name)))[2:-1] for name in STAGES}


def _defaults(stage: str) -> tuple[tuple[str, Value], ...]:
    known = parameters_of(stage).items()
    return tuple((name, each.default) for name, each in known if each.default is not each.empty)
