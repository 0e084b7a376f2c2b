"""The page in a real browser, over a real server. Every test also checks that nothing was asked of another
origin and that the console stayed empty: see the fixture `page`."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import pytest

from tamis.core.defaults import NAMED

keys = pytest.importorskip("selenium.webdriver.common.keys", reason="selenium is not installed").Keys
select = pytest.importorskip("selenium.webdriver.support.ui").Select

QUERY = "film director born in America"


def test_search_shows_what_the_server_found(page):
    page.open()
    assert "401 documents" in page.one("#empty-words").text
    page.one("#query").send_keys(QUERY, keys.ENTER)
    page.until(lambda: page.all("#results .card"))
    page.settle()
    answer = page.ask("/search", {"query": QUERY, "trace": True, "texts": True})
    assert page.texts("#results h3") == [result["title"] for result in answer["results"]]
    assert re.fullmatch(r"10 results in [\d.,]+ m?s", page.one("#status").text)
    assert page.one("#status").get_attribute("aria-live") == "polite"
    first = answer["results"][0]
    marked = [first["text"][start:end] for start, end in first["highlights"]]
    shown = page.texts("#results .card:first-child .text mark")
    assert shown
    assert set(shown) <= set(marked)
    assert page.texts("#latency .name") == ["bm25", "mono", "duo"]
    parts = page.run("return [...document.querySelectorAll('.bar')].map((bar) => bar.offsetWidth)")
    assert len([width for width in parts if width]) >= 3
    assert f"{page.origin}/search" in page.requests()  # the log that the fixture reads does see requests


def test_a_document_is_followed_through_the_stages(page):
    page.open(q=QUERY)
    answer = page.ask("/search", {"query": QUERY, "trace": True})
    third = answer["results"][2]
    ranks = [
        next(place["rank"] for place in stage["ranking"] if place["id"] == third["id"])
        for stage in answer["stages"]
    ]
    page.all("#results .follow")[2].click()
    page.until(lambda: page.state.get("doc") == third["id"])
    assert [card.get_attribute("data-id") for card in page.all(".card.followed")] == [third["id"]]
    line = page.one(".cascade [role=option][aria-selected=true]")
    assert line.get_attribute("data-id") == third["id"]
    words = ", ".join(
        f"{name} rank {rank}" for name, rank in zip(("bm25", "mono", "duo"), ranks, strict=True)
    )
    assert line.get_attribute("aria-label") == f"{third['title']}: {words}"
    assert [int(text) for text in page.texts("#readout .step b")] == ranks
    assert len(page.all(".cascade .line.followed circle")) == 3
    # every candidate has its line, and one that was not kept can be followed as well
    candidates = {place["id"] for stage in answer["stages"] for place in stage["ranking"]}
    assert {line.get_attribute("data-id") for line in page.all(".cascade .line")} == candidates
    page.all("#results .follow")[2].click()
    page.until(lambda: "doc" not in page.state)


def test_lines_can_be_pointed_at(page):
    page.open(q=QUERY)
    place = page.run(
        """const line = document.querySelector(".cascade .line.kept");
        const box = line.querySelector("circle:last-of-type").getBoundingClientRect();
        return [line.dataset.id, box.x + box.width / 2, box.y + box.height / 2]"""
    )
    actions = pytest.importorskip("selenium.webdriver").ActionChains(page.driver, duration=0)
    actions.w3c_actions.pointer_action.move_to_location(round(place[1]), round(place[2]))
    actions.perform()
    page.until(lambda: page.all(".cascade .line.pointed"))
    assert page.one(".cascade .line.pointed").get_attribute("data-id") == place[0]
    actions.click().perform()
    page.until(lambda: page.state.get("doc") == place[0])


def test_sliders_and_choices_rewrite_the_pipeline(page, models):
    page.open(q=QUERY)
    for k, key, wanted in ((0, keys.ARROW_LEFT, r"^bm25 % 30 >> "), (1, keys.ARROW_LEFT, r"\) % 5 >> duo\(")):
        page.one(f"#controls-a [data-k='{k}']").send_keys(key)
        page.until(lambda wanted=wanted: re.search(wanted, page.state.get("a", "")))
        assert page.run("return document.activeElement.dataset.k") == str(k)  # the slider keeps the focus
        page.settle()
    page.until(lambda: "5" in page.one("#cascade-words").text)
    assert page.one("#cascade-words").text == "bm25 30 → mono 5 → duo 5"
    assert len(page.all("#results .card")) == 5
    select(page.one("#count")).select_by_visible_text("5")
    page.until(lambda: page.state.get("k") == "5")
    select(page.one("select[aria-label='Aggregation of pairs']")).select_by_visible_text("binary")
    page.until(lambda: "aggregate=binary" in page.state["a"])
    page.one("[aria-label='Remove duo']").click()
    page.until(lambda: "duo" not in page.state["a"].replace("tiny-duo", ""))
    assert page.state["a"] == f'bm25 % 30 >> mono(model="{models["mono"]}") % 5'
    assert not page.all("select[aria-label='Aggregation of pairs']")
    assert page.one(".expression").get_attribute("value") == page.state["a"]


def test_a_name_is_shown_as_the_stages_that_it_stands_for(page):
    page.open(a="fast")
    assert page.texts("#named option") == [""] * len(NAMED)
    assert page.one(".expression").get_attribute("value") == NAMED["fast"]
    assert page.one(".expression").get_attribute("list") == "named"
    assert page.texts("#controls-a .stage .name") == ["fuse", "mono"]
    page.one(".expression").send_keys(keys.CONTROL + "a" + keys.NULL, "bm25 % 7", keys.TAB)
    page.until(lambda: page.state.get("a") == "bm25 % 7")
    page.one(".expression").send_keys(keys.CONTROL + "a" + keys.NULL, "fast", keys.TAB)
    page.until(lambda: page.state.get("a") == NAMED["fast"])


def test_a_link_restores_everything(page, models):
    pipeline = f'ql % 20 >> mono(model="{models["mono"]}")'
    page.open(q=QUERY, a=pipeline, k="5")
    identity = page.one("#results .card:nth-child(2)").get_attribute("data-id")
    page.all("#results .follow")[1].click()
    page.until(lambda: page.state.get("doc") == identity)
    page.one("#results .card:nth-child(4) .open").click()
    page.until(lambda: page.one("#document").get_attribute("open"))
    title = page.one("#document-title").text

    def shown() -> list[Any]:
        return [
            page.texts("#results h3"),
            page.texts(".cascade .label"),
            page.one(".expression").get_attribute("value"),
        ]

    before = shown()
    assert before[2] == pipeline
    assert page.texts("#latency .name") == ["ql", "mono"]
    page.driver.refresh()
    page.until(lambda: page.one("#document").get_attribute("open"))
    page.until(lambda: page.one("#document-title").text == title)
    assert shown() == before
    assert len(before[0]) == 5
    assert page.one(".card.followed").get_attribute("data-id") == identity
    page.driver.back()
    page.until(lambda: not page.one("#document").get_attribute("open"))
    page.driver.back()
    page.until(lambda: not page.all(".card.followed"))
    page.driver.forward()
    page.until(lambda: page.all(".card.followed"))


def test_the_best_passage_stands_out(page, models):
    pipeline = f'bm25 % 5 >> maxp(mono(model="{models["mono"]}"), window=12, stride=12)'
    page.open(q=QUERY, a=pipeline)
    answer = page.ask("/search", {"query": QUERY, "pipeline": pipeline, "texts": True})
    shown = page.run(
        """return [...document.querySelectorAll("#results .card")].map((card) =>
            [...card.querySelectorAll(".text .best")].map((piece) => piece.textContent).join(""))"""
    )
    for result, passage in zip(answer["results"], shown, strict=True):
        best = max(result["evidence"], key=lambda each: each["score"])
        assert passage == result["text"][best["start"] : best["end"]]


def test_a_document_is_fetched_by_its_id_whatever_that_holds(page, hostile):
    """Its id has slashes and dots, which in a path would lead elsewhere."""
    page.open(q=QUERY, open=hostile.id)
    page.until(lambda: page.texts("#document .whole") == [hostile.text])


def test_markup_in_documents_is_shown_as_text(page, hostile):
    page.open(q="zyzzyva", doc=hostile.id)
    page.until(lambda: page.all("#readout .open"))
    assert page.texts("#results h3") == [hostile.title]
    assert page.texts("#results .text") == [hostile.text]
    assert page.texts("#results .text mark") == ["zyzzyva", "zyzzyva"]  # the second behind an emoji
    assert page.texts("#readout .open") == [hostile.title]
    assert page.texts("#results .id") == [hostile.id]
    page.one("#results .open").click()
    page.until(lambda: page.texts("#document .whole") == [hostile.text])
    assert page.one("#document-title").text == hostile.title
    assert page.texts("#document-body > *")[1:-1] == [hostile.text]  # nothing but facts, text and terms
    page.until(lambda: page.texts("#document tbody th") == ["zyzzyva"])
    page.open(q="<zyzzyva onerror='zyzzyva'>", b="bm25 % 10")
    assert page.texts(".side h3 .open") == [hostile.title] * 2
    assert (
        page.all("main script, main img, main b:not(.step b), dialog script, dialog img, svg[onload]") == []
    )


def test_two_pipelines_side_by_side(page):
    page.open(q=QUERY)
    page.one("#compare-toggle").click()
    page.until(lambda: len(page.all(".side")) == 2)
    assert page.state["b"] == "bm25 % 50"
    answers = [
        page.ask("/search", {"query": QUERY, "pipeline": text, "trace": True}) for text in (None, "bm25 % 50")
    ]
    ids = [[result["id"] for result in answer["results"]] for answer in answers]
    for side, wanted in zip(page.all(".side"), ids, strict=True):
        cards = side.find_elements("css selector", ".card")
        assert [card.get_attribute("data-id") for card in cards] == wanted
    both = set(ids[0]) & set(ids[1])
    joined = page.run(
        "return [...document.querySelectorAll('.joins .line:not(.stub)')].map((line) => line.dataset.id)"
    )
    assert set(joined) == both
    assert page.one("#status").text.startswith(f"{len(both)} of 10 documents are in both lists")
    rank = next(place["rank"] for place in answers[1]["stages"][-1]["ranking"] if place["id"] == ids[0][0])
    assert page.texts(".side .change")[0].startswith(f"{rank} in B")
    page.driver.back()
    page.until(lambda: page.all("#single:not([hidden]) .card"))


def test_everything_is_within_reach_of_the_keyboard(page):
    page.open(q=QUERY)
    page.run("document.activeElement.blur()")
    page.press("/")
    assert page.run("return document.activeElement.id") == "query"
    assert page.one("#query").get_attribute("value") == QUERY
    page.press(keys.ARROW_DOWN, keys.ARROW_DOWN, keys.ARROW_DOWN, keys.ARROW_UP)
    second = page.one("#results .card:nth-child(2)")
    assert page.run("return document.activeElement.closest('.card')") == second
    assert page.one(".cascade .line.pointed").get_attribute("data-id") == second.get_attribute("data-id")
    outline = page.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.press(keys.ENTER)
    page.until(lambda: page.one("#document").get_attribute("open"))
    page.press(keys.ESCAPE)
    page.until(lambda: not page.one("#document").get_attribute("open"))
    page.until(lambda: "open" not in page.state)  # a step back, which the browser takes in its own time
    assert page.run("return document.activeElement.closest('.card')") == second
    page.run("document.querySelector('.cascade svg').focus()")
    page.press(keys.HOME, keys.ARROW_DOWN, keys.ENTER)
    page.until(lambda: page.state.get("doc") == second.get_attribute("data-id"))
    page.run("document.activeElement.blur()")
    page.press(keys.ESCAPE)
    page.until(lambda: "doc" not in page.state)


def test_the_page_says_what_went_wrong(page):
    page.open(q="qqqqq")
    assert page.one(".notice").text.startswith("No document holds a word of this query")
    page.open(q=QUERY, a="bm25 % 10 >> duo(model=absent)")
    page.refused += 1
    assert "absent" in page.one(".notice[role=alert]").text
    assert "absent (not on this server)" in page.texts("#controls-a option")
    page.open(q=QUERY, a="bm25 %")
    page.refused += 1
    assert "expected a whole number of at least 1 after %" in page.one(".notice[role=alert]").text
    page.one(".expression").send_keys(keys.CONTROL, "a", keys.NULL, "bm25 % 7", keys.ENTER)
    page.until(lambda: len(page.all("#results .card")) == 7)
    assert page.run("return document.activeElement.className") == "expression"  # still in use
    assert page.all(".notice") == []


def test_a_new_expression_leaves_the_focus_where_the_keys_take_it(page):
    page.open(q=QUERY, a="bm25 % 9")

    def write(text, *pressed):
        page.one(".expression").send_keys(keys.CONTROL + "a" + keys.NULL, text, *pressed)
        page.until(lambda: len(page.all("#results .card")) == int(text.split()[-1]))
        page.settle()
        return page.run("return document.activeElement.className || document.activeElement.id")

    assert write("bm25 % 8", keys.ENTER) == "expression"
    assert write("bm25 % 7", keys.TAB) == "where"  # what comes after it
    before = write("bm25 % 6", keys.SHIFT + keys.TAB + keys.NULL)  # among what is drawn again
    assert before == "add"
    assert page.run("return document.activeElement.isConnected")
    page.open(a="fast")
    page.one(".expression").send_keys(keys.CONTROL + "a" + keys.NULL, "fast", keys.ENTER)  # as it is shown
    page.until(lambda: page.one(".expression").get_attribute("value") == NAMED["fast"])
    assert page.run("return document.activeElement.className") == "expression"


def test_a_server_in_a_hurry_that_asks_for_a_key(page, serving, index, tiny_checkpoint, tmp_path):
    """The states that depend on how a server was started: the key is asked for, and the time is up."""
    own = page.origin
    duo = tiny_checkpoint(tmp_path / "duo", layers=12, hidden=128, positions=96, segments=3)
    pipeline = f'bm25 % 150 >> duo(model="{duo}", k=150)'  # 22,350 pairs: a minute of work
    options = ("--pipeline", pipeline, "--deadline", "800ms")
    with serving(index, *options, TAMIS_API_KEY="sesame") as page.origin:
        page.until(page.ready)
        page.open(q=QUERY)
        page.refused += 1
        page.one(".key input").send_keys("wrong", keys.ENTER)
        page.until(lambda: page.all(".key input") and not page.one(".key input").get_attribute("value"))
        page.refused += 1
        page.one(".key input").send_keys("sesame", keys.ENTER)
        page.until(lambda: page.all(".notice"))  # the ranking of bm25 has come before it
        assert page.all("#results .card")
        assert page.one(".notice").text.startswith("The time was up after bm25: this is its ranking.")
        assert page.texts("#latency .name") == ["bm25"]
        assert page.texts("#stages > *") == ["bm25", " → ", "duo"]
        assert page.texts("#stages .missed") == ["duo"]
        asked = page.requests()
        assert [url for url in asked if not url.startswith(f"{page.origin}/")] == []
    page.origin = own


@pytest.mark.parametrize("width", [375, 1280])
def test_nothing_is_wider_than_the_screen(page, width):
    page.width(width)
    wider = "return document.documentElement.scrollWidth - innerWidth"
    page.open()
    assert page.run(wider) <= 0
    page.open(q=QUERY)
    page.run("for (const each of document.querySelectorAll('details')) each.open = true")
    assert page.one(".cascade svg").is_displayed()
    assert page.run(wider) <= 0
    page.one("#results .open").click()
    page.until(lambda: page.all("#document .whole"))
    assert page.run(wider) <= 0
    page.open(q=QUERY, b="bm25 % 50 >> normalise")
    assert page.run(wider) <= 0


CONTROLS = {
    "button",
    "textbox",
    "searchbox",
    "combobox",
    "slider",
    "link",
    "listbox",
    "option",
    "DisclosureTriangle",
}


def test_every_control_has_a_name(page):
    for state in ({}, {"q": QUERY}, {"q": QUERY, "b": "bm25 % 20"}, {"q": QUERY, "open": "d0001"}):
        page.open(**state)
        nodes = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        controls = [node for node in nodes if not node["ignored"] and node["role"]["value"] in CONTROLS]
        assert len(controls) > 5 or "open" in state
        assert [node["role"]["value"] for node in controls if not node["name"]["value"].strip()] == []


# every text beside the nearest background behind it: 4.5 to 1, as WCAG's AA asks of small text
CONTRAST = """
const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
  .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
const behind = (node) => {
  for (; node; node = node.parentElement) {
    const colour = numbers(getComputedStyle(node).backgroundColor);
    if (colour[3] !== 0) return colour;
  }
};
const weak = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || !node.checkVisibility() || node.closest("noscript")) continue;
  const style = getComputedStyle(node);
  const [one, other] = [numbers(node.closest("svg") ? style.fill : style.color), behind(node)].map(light);
  const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  if (ratio < 4.5) weak.push([walker.currentNode.data, ratio]);
}
return weak;
"""


def test_both_themes_can_be_read_and_the_choice_is_remembered(page):
    def theme() -> str:
        return page.run("return getComputedStyle(document.body).backgroundColor")

    emulate = {"features": [{"name": "prefers-color-scheme", "value": "light"}]}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", emulate)
    page.open(q=QUERY)
    page.all("#results .follow")[0].click()
    page.until(lambda: page.all(".card.followed"))
    first = theme()
    assert page.run(CONTRAST) == []
    page.one("#theme").click()
    assert page.one("#theme").get_attribute("aria-pressed") == "true"
    second = theme()
    assert second != first
    page.open(q=QUERY, b="bm25 % 50")
    assert theme() == second
    assert page.run(CONTRAST) == []
    page.one("#theme").click()
    assert theme() == first
    page.run("localStorage.clear()")


def test_a_document_with_a_strange_id_can_be_linked_to(page, hostile):
    page.open(open=hostile.id)
    page.until(lambda: page.texts("#document .whole") == [hostile.text])
    assert quote(hostile.id, safe="") in page.driver.current_url.replace("%2f", "%2F")
