"""What is long stays on the screen, and what is folded up on a phone is unfolded when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tamis

pytest.importorskip("selenium", reason="selenium is not installed")

UNBROKEN = "W" * 600
DOCUMENTS = [
    tamis.Document("one", "A quokka and its kin.", UNBROKEN, metadata={UNBROKEN: UNBROKEN}),
    tamis.Document(UNBROKEN, f"A quokka. {UNBROKEN}"),
    tamis.Document("three", "Of a quokka.", "W" * 29),
    tamis.Document("four", "Quokkas.", "🦎" * 60),
    tamis.Document("five", "A quokka or two.", "A short one"),
]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory, serving: Any, models: dict[str, Path]) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("wide") / "index"
    tamis.Index.build(DOCUMENTS, folder)
    pipeline = f'bm25 % 10 >> mono(model="{models["mono"]}")'
    with serving(folder, "--pipeline", pipeline, "--deadline", "60s") as address:
        yield address


@pytest.mark.parametrize("width", [375, 1280])
def test_a_long_unbroken_title_does_not_widen_the_page(page, wide, width):
    page.width(width)
    wider = "return document.documentElement.scrollWidth - innerWidth"
    inside = """const box = document.querySelector("dialog");
        return box.scrollWidth - box.clientWidth"""
    with page.at(wide):
        page.open(q="quokka", doc="one")
        page.run("for (const each of document.querySelectorAll('details')) each.open = true")
        page.until(lambda: page.all("#readout .open"))
        assert page.run(wider) <= 0
        page.open(q="quokka", b="bm25 % 10")
        assert page.run(wider) <= 0
        for name in ("one", UNBROKEN):
            page.open(q="quokka", open=name)
            page.until(lambda: page.all("#document mark.current"))
            page.run("for (const each of document.querySelectorAll('dialog details')) each.open = true")
            assert page.run(wider) <= 0
            assert page.run(inside) <= 0
            assert page.one("#document-close").rect["x"] + 30 < width
    page.width(1280)


@pytest.mark.parametrize("width", [375, 1280])
def test_labels_of_the_chart_end_in_an_ellipsis(page, wide, width):
    page.width(width)
    with page.at(wide):
        page.open(q="quokka", doc="three")
        page.run("document.getElementById('cascade-box').open = true")
        page.until(lambda: page.all(".cascade .label"))
        labels = page.run(
            """const right = document.querySelector(".cascade svg").getBoundingClientRect().right;
            return [...document.querySelectorAll(".cascade .label text:not(.place)")].map((text) =>
              [text.firstChild.data, right - text.getBoundingClientRect().right])"""
        )
        titles = [document.title or document.id for document in DOCUMENTS]
        assert len(labels) == len(titles)
        for label, left in labels:
            assert left >= 0
            assert label in titles or label.endswith("…")
            assert any(title.startswith(label.removesuffix("…")) for title in titles)
        shown = [label for label, _ in labels]
        assert "A short one" in shown
        assert sum(label.endswith("…") for label in shown) >= 3
    page.width(1280)


def test_follow_on_a_phone_opens_the_chart(page, wide):
    page.width(375)
    with page.at(wide):
        page.open(q="quokka")
        assert not page.one(".cascade").is_displayed()
        page.run("document.querySelectorAll('#results .follow')[4].scrollIntoView()")
        page.tap("#results .card:nth-child(5) .follow")
        page.until(lambda: page.all(".cascade .line.followed"))
        identity = page.state["doc"]
        assert page.one(".cascade .line.followed").get_attribute("data-id") == identity
        script = """const box = document.querySelector(".cascade").getBoundingClientRect();
            return box.top >= 0 && box.top < innerHeight / 2"""
        page.until(lambda: page.run(script))
        page.tap("#results .card:nth-child(5) .follow")  # and no more
        page.until(lambda: "doc" not in page.state)
        assert page.one(".cascade").is_displayed()
    page.width(1280)
