"""Results that arrive stage by stage, in a real browser: see `test_page.py`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

keys = pytest.importorskip("selenium.webdriver.common.keys", reason="selenium is not installed").Keys

QUERY = "film director born in America"
#: Everything that was shown, in order: the line of stages and the ids of the cards. The observer is called
#: between any two rankings, even if they arrive together.
WATCH = """
window.seen = [];
window.moves = 0;
const animate = Element.prototype.animate;
Element.prototype.animate = function (...given) {
  if (this.matches(".card") && given[0][0].transform) window.moves++;
  return animate.apply(this, given);
};
new MutationObserver(() => {
  const [stages, results] = ["stages", "results"].map((id) => document.getElementById(id));
  if (!stages?.textContent) return;
  const ids = [...results.children].map((card) => card.dataset.id);
  const now = JSON.stringify([stages.textContent, ids]);
  if (window.seen.at(-1) !== now) window.seen.push(now);
}).observe(document, { childList: true, subtree: true, characterData: true });
"""


def seen(page: Any) -> list[Any]:
    return page.run("return window.seen.map((each) => JSON.parse(each))")


def motion(page: Any, value: str) -> None:
    features = [{"name": "prefers-reduced-motion", "value": value}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@pytest.mark.parametrize("preference", ["no-preference", "reduce"])
def test_every_ranking_is_shown_and_the_results_move_to_their_places(page, preference):
    motion(page, preference)
    with page.beforehand(WATCH):
        page.open(q=QUERY)
    answer = page.ask("/search", {"query": QUERY, "trace": True})
    rankings = [[place["id"] for place in stage["ranking"]][:10] for stage in answer["stages"]]
    assert seen(page) == [
        ["bm25 → mono … → duo …", rankings[0]],
        ["bm25 → mono → duo …", rankings[1]],
        ["bm25 → mono → duo", rankings[2]],
    ]
    stay = sum(
        before.index(identity) != after.index(identity)
        for before, after in pairwise(rankings)
        for identity in after
        if identity in before
    )
    assert stay > 0
    moves = page.run("return window.moves")
    assert moves == 0 if preference == "reduce" else moves >= stay
    assert page.texts("#stages b") == ["duo"]
    tops = page.run("return [...document.querySelectorAll('#results .card')].map((card) => card.offsetTop)")
    assert tops == sorted(tops)
    assert page.texts("#results .rank") == [str(rank) for rank in range(1, 11)]
    motion(page, "")


def test_the_focus_moves_with_its_result(page):
    """Between two rankings, as often as they come."""
    page.open(q=QUERY)
    page.run(
        """return import("/static/move.js").then(({ redraw }) => {
          const list = document.getElementById("results");
          list.children[3].querySelector(".open").focus();
          window.held = list.children[3].dataset.id;
          const copies = [...list.children].reverse().map((card) => card.cloneNode(true));
          redraw(list, () => list.replaceChildren(...copies));
        })"""
    )
    assert page.run("return document.activeElement.closest('.card').dataset.id === window.held")
    assert page.run("return document.activeElement.className") == "open"


def test_a_browser_that_cannot_stream_asks_once(page):
    with page.beforehand(f"delete window.TextDecoderStream; {WATCH}"):
        page.open(q=QUERY)
    shown = [stages for stages, _ in seen(page)]
    assert shown == ["bm25 → mono → duo"]
    assert len(page.all("#results .card")) == 10


def test_a_new_query_ends_the_work_on_the_old_one(page, serving, index, models):
    own = page.origin
    pipeline = f'bm25 % 150 >> duo(model="{models["duo"]}", k=150)'  # 22,350 pairs: seconds of work
    with serving(index, "--pipeline", pipeline, "--deadline", "60s") as page.origin:
        page.until(lambda: page.ready())
        page.driver.get(f"{page.origin}/?q=film+director+America+born")
        page.until(lambda: page.texts("#stages .coming") == ["duo …"] and page.all("#results .card"))
        assert page.metric("tamis_in_work") == 1
        page.one("#query").send_keys(keys.CONTROL, "a", keys.NULL, "zyzzyva", keys.ENTER)
        page.until(lambda: page.state.get("q") == "zyzzyva" and len(page.all("#results .card")) == 1)
        page.settle()
        page.until(lambda: page.metric('tamis_streams_total{outcome="left"}') == 1)
        page.until(lambda: page.metric("tamis_in_work") == page.metric("tamis_backlog_seconds") == 0)
        assert page.texts("#stages b") == ["duo"]
        asked = page.requests()
        assert [url for url in asked if not url.startswith(f"{page.origin}/")] == []
    page.origin = own


def test_texts_that_were_cut_can_be_ranked_by_passages(page, models):
    page.open(q=QUERY)
    assert "cut to fit" in page.one("#offer").text
    page.one("#offer button").click()
    mono = f'mono(model="{models["mono"]}")'
    duo = f'duo(model="{models["duo"]}")'
    page.until(lambda: page.state.get("a") == f"bm25 % 50 >> maxp({mono}) % 10 >> {duo}")
    page.settle()
    assert page.texts("#latency .name") == ["bm25", "maxp", "duo"]
    assert page.texts("#offer button") == []
