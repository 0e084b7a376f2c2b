"""What an error quotes of what it was given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tamis.base.errors import InputError, TamisError, quoted
from tamis.core.language import parse
from tamis.formats import read_candidates, read_corpus, read_qrels, read_queries, read_run
from tamis.models.config import read_config
from tamis.models.settings import read_toml
from tamis.train.recipe import read_recipe

LONG = "x" * 1_000_000


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("d1", "'d1'"),
        ("x" * 100, repr("x" * 100)),
        ("x" * 101, "'" + "x" * 99 + "..."),
        (b"\x00" * 1000, repr(b"\x00" * 1000)[:100] + "..."),
        (None, "None"),
    ],
)
def test_what_is_quoted(value: object, text: str) -> None:
    assert quoted(value) == text


def test_what_python_cannot_write_out() -> None:
    assert quoted(16**5000) == "an int of too many digits"
    assert quoted(nested(100_000)) == "a list nested too deeply"


def test_no_message_is_longer_than_a_log_can_hold() -> None:
    error = InputError(LONG, remedy=LONG, path=LONG, line=3)
    assert len(str(error)) < 5_000
    assert ", line 3: xxx" in str(error)


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (read_qrels, f"q1 0 d1 {LONG[:1000]}"),
        (read_qrels, f"q1 0 {LONG[:1000]} 1\nq1 0 {LONG[:1000]} 2"),
        (read_run, f"q1 Q0 d1 1 {LONG[:1000]} t"),
        (read_run, f"q1 Q0 {LONG} 1 1 t\nq1 Q0 {LONG} 1 1 t"),
        (read_queries, f"{LONG}\ta\n{LONG}\tb"),
        (read_candidates, f"{LONG}\td\tq\tt\n{LONG}\td\tq2\tt"),
        (lambda path: list(read_corpus(path, format="jsonl")), f'{{"{LONG}": 1}}'),
        (lambda path: list(read_corpus(path, format="csv")), f"id,text,{LONG},{LONG}\n"),
        (lambda path: list(read_corpus(path, format="tsv")), f"id\t{LONG}\ttext\n"),
        (read_recipe, f'{LONG} = "a"'),
        (read_recipe, f'base = "{LONG}"'),
        (read_toml, f"[{LONG}"),
        (read_config, f'{{"model_type": "{LONG}"}}'),
        (lambda path: parse(path.read_text()), f"bm25 >> {LONG}("),
        (lambda path: parse(path.read_text()), f'bm25(model="{LONG}") >> %'),
        (lambda path: parse(path.read_text()), "9" * 100_000),
    ],
)
def test_long_values_are_cut_in_errors(read: Callable[[Path], object], content: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(TamisError) as caught:
        read(path)
    message = str(caught.value)
    assert len(message) < 700 and "\n" not in message
    assert LONG[:150] not in message


def test_the_place_of_an_error_in_a_long_pipeline_is_quoted() -> None:
    pipeline = " >> ".join(["bm25"] * 100)
    with pytest.raises(TamisError, match=r"column 808 of the pipeline '.*>> bm25 % lots': expected a whole"):
        parse(f"{pipeline} >> bm25 % lots")
