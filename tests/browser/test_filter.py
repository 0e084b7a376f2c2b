"""On the page, results are filtered by a condition, and queries may have operators."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

import tamis
from tamis.formats import read_corpus

keys = pytest.importorskip("selenium.webdriver.common.keys", reason="selenium is not installed").Keys

DEMO = Path(tamis.__file__).parent / "demo_data" / "corpus.jsonl.gz"
QUERY = "film director born in America"


@pytest.fixture(scope="module")
def origin(tmp_path_factory, serving):
    """A server of documents with metadata."""
    documents = [
        tamis.Document(
            document.id,
            document.text,
            document.title,
            {
                "year": 1990 + place % 30,
                "lang": ("en", "fr")[place % 2],
                "tags": ["a", {"<b>": 1}, "<i>c</i>"],
                "url": "https://example.org/",
                "none": None,
                "note": "x" * 100,
            },
        )
        for place, document in enumerate(islice(read_corpus(DEMO), 400))
    ]
    folder = tmp_path_factory.mktemp("filtered") / "index"
    tamis.Index.build(documents, folder)
    with serving(folder, "--pipeline", "bm25 % 50", "--deadline", "60s") as address:
        yield address


def filter_by(page, condition):
    field = page.one("#where")
    field.send_keys(keys.CONTROL + "a" + keys.NULL, condition, keys.ENTER)


def test_a_condition_is_part_of_the_address(page):
    page.open(q=QUERY)
    assert "lang, note, tags" in page.one("#where").get_attribute("placeholder")
    everything = page.texts("#results h3")
    filter_by(page, "year >= 2010 and lang = en")
    page.until(lambda: page.state.get("where") == "year >= 2010 and lang = en")
    page.settle()
    page.until(lambda: page.texts("#results h3") != everything)
    shown = [card.get_attribute("data-id") for card in page.all("#results .card")]
    wanted = page.ask("/search", {"query": QUERY, "where": "year >= 2010 and lang = en"})["results"]
    assert shown == [result["id"] for result in wanted]
    years = [result["metadata"]["year"] for result in wanted]
    assert page.texts("#results .known > span:first-child b") == list(map(str, years))
    # a link to this state shows it, and "back" leaves it
    page.open(q=QUERY, where="lang = fr")
    assert page.one("#where").get_attribute("value") == "lang = fr"
    assert set(page.texts("#results .known > span:nth-child(2)")) == {"lang fr"}
    filter_by(page, "year = 1990")
    page.until(lambda: set(page.texts("#results .known > span:first-child")) == {"year 1990"})
    page.driver.back()
    page.until(lambda: set(page.texts("#results .known > span:nth-child(2)")) == {"lang fr"})
    assert page.one("#where").get_attribute("value") == "lang = fr"


def test_metadata_is_text_in_one_line(page):
    page.open(q=QUERY)
    facts = page.texts("#results .card:first-child .known > span")
    assert [fact.split()[0] for fact in facts] == ["year", "lang", "tags", "note"]
    assert facts[2] == "tags a, <i>c</i>"
    assert facts[3] == f"note {'x' * 40}…"


def test_a_condition_that_cannot_be_read_is_told(page):
    page.open(q=QUERY)
    filter_by(page, "yaer > 3")
    page.until(lambda: page.all(".notice.error"))
    assert page.one(".notice.error").text.startswith(
        "no document has a value in the field yaer: did you mean year?"
    )
    page.refused += 1
    filter_by(page, keys.DELETE)
    page.until(lambda: "where" not in page.state)
    page.settle()
    assert len(page.all("#results .card")) == 10
    assert page.all(".notice") == []


def test_operators_are_read_if_asked_for(page):
    query = '+film "New York" -director'
    page.open(q=query)
    many = page.texts("#results h3")
    page.one("#syntax").click()
    page.until(lambda: page.state.get("syntax") == "simple")
    page.until(lambda: page.texts("#results h3") != many)
    wanted = page.ask("/search", {"query": query, "syntax": "simple"})
    assert wanted["results"]
    assert page.texts("#results h3") == [result["title"] for result in wanted["results"]]
    assert "director" not in [word.lower() for word in page.texts("#results mark")]
    # a document is explained with what the search looked for
    page.one("#results .open").click()
    page.until(lambda: page.all("#document-terms tbody tr"))
    assert set(page.texts("#document-terms tbody th")) == {"film", "new", "york"}
    page.press(keys.ESCAPE)
    page.one("#syntax").click()
    page.until(lambda: "syntax" not in page.state)


def test_both_sides_of_a_comparison_are_filtered(page):
    page.open(q=QUERY, b="ql % 50", where="lang = fr", k="5")
    for side in ("A", "B"):
        ids = [card.get_attribute("data-id") for card in page.all(f"[aria-label='Pipeline {side}'] .card")]
        assert len(ids) == 5
        for each in ids:
            assert page.ask(f"/documents/{each}")["metadata"]["lang"] == "fr"


def test_where_the_field_is_folded_the_condition_is_told(page):
    page.width(375)
    page.open(q=QUERY, where="lang = fr")
    assert not page.one("#where").is_displayed()
    assert page.one("#filtered").text == "where lang = fr"
    page.one("#pipelines summary").click()
    assert page.one("#where").is_displayed()
    assert not page.one("#filtered").is_displayed()
    assert page.run("return document.documentElement.scrollWidth - innerWidth") <= 0
