"""The report of `tamis tradeoff` on a phone, in the dark and without a mouse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tamis import Document, Index, Query
from tamis.evaluate.candidates import candidates
from tamis.evaluate.report import html
from tamis.evaluate.tradeoff import trade_off

keys = pytest.importorskip("selenium.webdriver.common.keys", reason="selenium is not installed").Keys


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    documents = [Document(f"d{n}", "sieve " * (n + 1) + "flour " * (20 - n)) for n in range(20)]
    index = Index.build(documents, folder / "idx")
    grid = {"k1": [0.4, 0.9, 1.2], "b": [0.0, 0.4, 1.0]}
    found = trade_off(
        candidates("bm25(k1={k1}, b={b})", grid, index), [Query("q", "sieve")], {"q": {"d7": 1}}, timed=2
    )
    (folder / "report.html").write_text(html(found, pipeline="bm25(k1={k1}, b={b})"), encoding="utf-8")
    return Path(folder, "report.html").as_uri()


@pytest.fixture
def shown(driver: Any, report: str) -> Iterator[Any]:
    """The report on a phone at night."""
    size = {"width": 360, "height": 700, "deviceScaleFactor": 2, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    night = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", night)
    driver.get(report)
    yield driver
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    driver.get("about:blank")


def test_a_phone_shows_whole_plots_in_letters_that_can_be_read(shown: Any) -> None:
    assert shown.execute_script("return document.documentElement.scrollWidth") <= 360
    right = (
        "return Math.max(...[...document.querySelectorAll('svg')].map(e => e.getBoundingClientRect().right))"
    )
    assert shown.execute_script(right) <= 360
    heights = """
        const texts = [...document.querySelectorAll('svg text')].filter(e => e.textContent);
        return texts.map(e => e.getBoundingClientRect().height);
    """
    assert min(shown.execute_script(heights)) >= 8


def test_in_the_dark_nothing_is_dark_on_dark(shown: Any) -> None:
    light = """
        const light = colour => Math.max(...colour.match(/\\d+/g).slice(0, 3).map(Number));
        const drawn = 'svg text, svg polyline, svg a :not([fill="transparent"], title)';
        return [...document.querySelectorAll(drawn)].map(e => getComputedStyle(e)).map(s =>
            Math.max(...[s.fill, s.stroke].filter(c => c.startsWith('rgb(')).map(light)));
    """
    found = shown.execute_script(light)
    assert found and min(found) > 120
    ground = "return getComputedStyle(document.querySelector('svg > rect')).fill"
    assert shown.execute_script(ground) == "rgb(18, 18, 18)"


def test_the_keyboard_reads_a_mark(shown: Any) -> None:
    focused = "return (document.activeElement.getAttribute('aria-label') || '')"
    body = shown.find_element("tag name", "body")
    body.send_keys(keys.TAB)
    name = shown.execute_script(focused)
    assert "nDCG@10" in name
    shown.switch_to.active_element.send_keys(keys.ENTER)
    row = shown.find_element("css selector", "tr:target")
    k1, b = (cell.text for cell in row.find_elements("css selector", "td")[:2])
    assert name.startswith(f"k1={k1}, b={b}: ")
    top = shown.execute_script("return arguments[0].getBoundingClientRect().top", row)
    assert 0 <= top <= 700
