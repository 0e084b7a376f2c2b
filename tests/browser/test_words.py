"""What the page says to somebody new: the words of the field, the examples, why nothing was found."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

keys = pytest.importorskip("selenium.webdriver.common.keys", reason="selenium is not installed").Keys

QUERY = "film director born in America"


def tip(page: Any) -> str:
    """The explanation that is shown, if one is."""
    script = (
        "const tip = document.getElementById('tip'); return tip.matches(':popover-open') ? tip.innerText : ''"
    )
    return str(page.run(script))


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        ("#controls-a [data-term=k0]", "How many candidates this stage keeps"),
        ("#controls-a [data-term=ql]", "Query likelihood."),
        ("#controls-a [data-term=mono]", "one candidate at a time"),
        ("#controls-a [data-term=duo]", "two candidates at a time"),
        ("#latency [data-term=cut]", "Of a longer text it reads the beginning"),
        ("#latency [data-term=inference]", "One reading of a text by the model"),
        ("#results .trail [data-term=duo]", "two candidates at a time"),
    ],
)
def test_a_word_is_explained_on_hover_touch_and_focus(page, models, selector, words):
    page.open(q=QUERY, a=f'ql % 20 >> mono(model="{models["mono"]}") % 5 >> duo(model="{models["duo"]}")')
    assert tip(page) == ""
    page.hover(selector)
    page.until(lambda: words in tip(page))
    assert "\n" not in tip(page)
    assert page.one(selector).get_attribute("aria-describedby") == "tip"
    page.hover(".brand")
    page.until(lambda: tip(page) == "")
    page.tap(selector)
    page.until(lambda: words in tip(page))
    page.tap("#status")
    page.until(lambda: tip(page) == "")
    if page.one(selector).tag_name == "button":
        page.run("document.activeElement.blur()")
        page.run("arguments[0].focus({ focusVisible: true })", page.one(selector))
        page.until(lambda: words in tip(page))
        page.press(keys.ESCAPE)
        page.until(lambda: tip(page) == "")


def test_an_explanation_stays_on_the_screen(page):
    page.width(375)
    page.open(q=QUERY)
    page.run("for (const each of document.querySelectorAll('details')) each.open = true")
    page.settle()
    for place in range(len(page.all("#latency .term"))):
        page.run("document.querySelectorAll('#latency .term')[arguments[0]].click()", place)
        box = page.run("return document.getElementById('tip').getBoundingClientRect().toJSON()")
        assert box["left"] >= 0
        assert box["right"] <= 375
        assert box["top"] >= 0
    page.width(1280)


def test_the_search_box_has_the_focus(page):
    page.open()
    assert page.run("return document.activeElement.id") == "query"
    page.press(*"film", keys.ENTER)
    page.until(lambda: page.state.get("q") == "film")
    page.settle()
    page.driver.back()
    page.until(lambda: page.one("#empty").is_displayed())
    assert page.one("#query").get_attribute("value") == ""


def test_examples_are_labelled(page, serving, index, tmp_path):
    path = tmp_path / "queries.jsonl"
    path.write_text('{"_id": "1", "text": "who directed it"}\n', encoding="utf-8")
    page.open()
    assert not page.one("#examples-title").is_displayed()  # there are none
    assert page.run("return document.getElementById('examples').offsetHeight") == 0  # nor a rule
    with serving(index, "--pipeline", "bm25", "--examples", str(path)) as address, page.at(address):
        page.open()
        assert page.one("#examples-title").text == "Examples"
        assert page.one("#examples").get_attribute("aria-labelledby") == "examples-title"
        assert page.texts("#examples button") == ["who directed it"]


def test_a_query_of_stop_words_is_answered_as_on_the_command_line(page, index):
    page.open(q="the of and")
    command = [sys.executable, "-m", "tamis", "search", str(index), "the of and"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    (words,) = [line for line in said if "has no terms" in line]
    assert page.one(".notice").text == f"{words[0].upper()}{words[1:]}."


def test_a_misspelt_query_links_to_the_one_that_is_suggested(page, index):
    page.open(q="film directed in Amercia", k="20", doc="d0001")
    assert page.one(".suggestion").text == "Did you mean film directed in America?"
    assert page.all("#results .card")  # of the query as it is
    link = page.one(".suggestion a")
    assert "q=film+directed+in+America" in link.get_attribute("href")
    link.click()
    page.until(lambda: page.state == {"q": "film directed in America", "k": "20"})
    page.settle()
    assert page.one("#query").get_attribute("value") == "film directed in America"
    assert not page.all(".suggestion")
    page.driver.back()
    page.until(lambda: page.all(".suggestion"))
    assert page.state["q"] == "film directed in Amercia"


def test_a_suggestion_where_nothing_was_found(page):
    page.open(q="Amercia")
    page.until(lambda: page.all(".suggestion"))
    assert page.one(".notice").text.startswith("No document holds a word of this query")
    assert page.one(".suggestion").text == "Did you mean America?"
    page.width(375)
    assert page.run("return document.documentElement.scrollWidth") <= 375
