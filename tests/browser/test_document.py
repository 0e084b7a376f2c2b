"""Reading a document on the page: where it opens, its matches, what it has beside its text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tamis

keys = pytest.importorskip("selenium.webdriver.common.keys", reason="selenium is not installed").Keys

FILLER = "A plain sentence 🦎 that says nothing of it. "
#: Matches in the first, the third and the fifth part, one of them across the end of its part.
LONG = "".join(
    (
        FILLER * 1_000,  # 44,000 characters
        "Here the quokka sleeps. ",
        "x" * (59_997 - 44_000 - 24),
        " quokka ",  # from 59,998 to 60,004
        FILLER * 700,
        "The last quokka leaves.",
    )
)
DOCUMENTS = [
    tamis.Document(
        "long",
        LONG,
        "A long walk",
        metadata={"url": "https://example.org/walks/long?a=1", "year": 2019, "tags": ["a", "b"]},
    ),
    tamis.Document(
        "harm",
        "A wallaby that means harm.",
        metadata={"url": "javascript:window.hacked=1", "note": "<img src=x onerror='window.hacked=1'>"},
    ),
    tamis.Document("short", "One bilby, and another bilby."),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, serving: Any, models: dict[str, Path]) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("library") / "index"
    tamis.Index.build(DOCUMENTS, folder)
    pipeline = f'bm25 % 10 >> mono(model="{models["mono"]}")'
    with serving(folder, "--pipeline", pipeline, "--deadline", "60s") as address:
        yield address


def shown(page: Any) -> str:
    """The match that the reader is at, once it is there."""
    page.until(lambda: page.all("#document mark.current"))
    return str(page.one("#document-match").text)


def visible(page: Any, selector: str) -> bool:
    script = """const [box, frame] = [document.querySelector(arguments[0]), document.querySelector("dialog")]
        .map((each) => each.getBoundingClientRect());
      return box.top >= frame.top && box.bottom <= frame.bottom;"""
    return bool(page.run(script, selector))


def characters(page: Any) -> str:
    return str(page.run("return document.querySelector('#document .whole').textContent"))


def test_a_long_document_opens_at_its_first_match_however_deep(page, library):
    with page.at(library):
        page.open(q="quokka")
        page.one("#results .open").click()
        assert shown(page) == "1 of 3"
        assert visible(page, "#document mark.current")
        assert page.one("#document mark.current").text == "quokka"
        assert characters(page) == LONG[40_000:60_000]
        buttons = page.texts("#document .more-text")
        total = f"{len(LONG):,}"
        assert buttons == [
            f"Earlier text: characters 20,001 to 40,000 of {total}",
            f"More text: characters 60,001 to 80,000 of {total}",
        ]


def test_next_and_previous_go_through_all_matches(page, library):
    with page.at(library):
        page.open(q="quokka", open="long")
        assert shown(page) == "1 of 3"
        page.one("#document-next").click()
        page.until(lambda: page.one("#document-match").text == "2 of 3")
        assert page.one("#document mark.current").text == "qu"  # the rest of it is in the next part
        page.press("n")  # and by the keyboard
        page.until(lambda: page.one("#document-match").text == "3 of 3")
        assert visible(page, "#document mark.current")
        assert characters(page) == LONG[80_000:100_000]
        page.press("n")
        page.until(lambda: page.one("#document-match").text == "1 of 3")
        page.one("#document-previous").click()
        page.until(lambda: page.one("#document-match").text == "3 of 3")
        page.press("p")
        page.until(lambda: page.one("#document-match").text == "2 of 3")
        assert page.one("#document-match").get_attribute("role") == "status"


def top(page) -> float:
    """Where the present match stands on the screen, once it stands still."""
    script = "return document.querySelector('mark.current').getBoundingClientRect().top"
    places = [page.run(script)]
    page.until(lambda: places.append(page.run(script)) or places[-1] == places[-2])
    return places[-1]


def test_the_parts_of_a_document_are_read_on_from_one_another(page, library):
    with page.at(library):
        page.open(q="quokka", open="long")
        shown(page)
        before = top(page)
        page.run("document.querySelectorAll('.more-text')[0].click()")
        page.until(lambda: characters(page) == LONG[20_000:60_000])
        page.until(lambda: abs(top(page) - before) < 60)  # what was read has stayed where it was
        page.run("document.querySelectorAll('.more-text')[1].click()")
        page.until(lambda: characters(page) == LONG[20_000:80_000])
        assert page.texts("#document mark") == ["quokka", "qu", "okka"]
        page.run("document.querySelectorAll('.more-text')[0].click()")
        page.until(lambda: characters(page) == LONG[:80_000])
        assert page.run("return document.querySelector('.more-text').hidden")


def test_a_short_document_has_its_matches_too(page, library):
    with page.at(library):
        page.open(q="bilby", open="short")
        assert shown(page) == "1 of 2"
        assert not any(button.is_displayed() for button in page.all("#document .more-text"))
        page.open(open="short")  # not found by a search: nothing to go through
        page.until(lambda: page.all("#document .whole"))
        assert not page.one("#document-matches").is_displayed()


def test_a_document_has_its_metadata_and_a_link_to_its_url(page, library):
    with page.at(library):
        page.open(q="quokka", open="long")
        shown(page)
        link = page.one("#document a")
        assert link.get_attribute("href") == "https://example.org/walks/long?a=1"
        assert link.get_attribute("rel") == "noopener noreferrer"
        assert link.get_attribute("target") == "_blank"
        assert page.texts("#document .metadata dt") == ["year", "tags"]
        assert page.texts("#document .metadata dd") == ["2019", '["a","b"]']


def test_an_address_that_is_not_of_the_web_is_no_link(page, library):
    with page.at(library):
        page.open(q="wallaby", open="harm")
        shown(page)
        assert page.all("#document a, #document img") == []
        assert page.texts("#document .metadata dd") == [
            "javascript:window.hacked=1",
            "<img src=x onerror='window.hacked=1'>",
        ]


@pytest.mark.parametrize("how", ["escape", "button"])
def test_back_does_not_reopen_a_closed_document(page, library, how):
    with page.at(library):
        page.open()
        page.one("#query").send_keys("quokka", keys.ENTER)
        page.until(lambda: page.all("#results .card"))
        page.settle()
        page.one("#results .open").click()
        shown(page)
        if how == "escape":
            page.press(keys.ESCAPE)
        else:
            page.one("#document-close").click()
        page.until(lambda: "open" not in page.state)
        assert not page.one("#document").get_attribute("open")
        page.driver.back()
        page.until(lambda: "q" not in page.state)
        assert not page.one("#document").get_attribute("open")
        page.until(lambda: page.one("#empty").is_displayed())
        assert page.one("#query").get_attribute("value") == ""


def test_back_closes_an_open_document_and_a_linked_one_closes_in_place(page, library):
    with page.at(library):
        page.open(q="quokka")
        page.one("#results .open").click()
        shown(page)
        page.driver.back()
        page.until(lambda: not page.one("#document").get_attribute("open"))
        assert page.state == {"q": "quokka"}
        page.open(q="quokka", open="long")  # from a link: there is no step to take back
        shown(page)
        before = page.run("return history.length")
        page.one("#document-close").click()
        page.until(lambda: page.state == {"q": "quokka"})
        assert page.run("return history.length") == before
        assert page.all("#results .card")


def test_the_snippet_is_from_what_the_model_read_or_says_otherwise(page, library):
    with page.at(library):
        page.open(q="quokka")
        answer = page.ask("/search", {"query": "quokka"})
        (result,) = answer["results"]
        assert result["snippet"]["source"] == "unread"
        read = result["read"]["characters"]
        assert 0 < read < 44_000
        assert "quokka" in page.one("#results .text").text
        assert page.texts("#results .text mark") == ["quokka"]
        assert page.one("#results .note.unread").text == (
            f"mono did not read this: it stopped at character {read:,} of {len(LONG):,}"
        )
        assert "first 1% read" in page.one("#results .facts").text
        # what it has read comes first, though the words of the query stand closer together elsewhere
        page.open(q="plain quokka")
        start = page.ask("/search", {"query": "plain quokka"})["results"][0]["snippet"]
        assert start["source"] == "read"
        assert start["start"] + len(start["text"]) <= read
        assert page.all("#results .note.unread") == []
        # without a model there is nothing to say
        page.open(q="quokka", a="bm25")
        assert page.texts("#results .text mark") == ["quokka"]
        assert page.all("#results .note") == []


def test_the_best_passage_is_shown_and_found_however_deep_it_is(page, library, models):
    with page.at(library):
        page.open(q="quokka", a=f'bm25 % 5 >> maxp(mono(model="{models["mono"]}"))')
        (result,) = page.ask("/search", {"query": "quokka", "pipeline": page.state["a"]})["results"]
        best = max(result["evidence"], key=lambda each: each["score"])
        assert result["snippet"]["source"] == "passage"
        assert result["snippet"]["start"] <= best["start"]
        page.one("#results .open").click()
        shown(page)
        page.one("#document-best").click()
        page.until(lambda: visible(page, "#document .best"))
        text = "".join(page.texts("#document .whole .best"))
        assert text
        assert LONG[best["start"] : best["end"]].startswith(text)
