"""The page before a server with keys: a key without the role, one with it, and one that asks too often."""

from __future__ import annotations

import re
import urllib.request

import pytest

keys = pytest.importorskip("selenium.webdriver.common.keys", reason="selenium is not installed").Keys

KEYS = """
[[key]]
name = "prometheus"
key = "metrics-0123456789"
roles = ["metrics"]

[[key]]
name = "reader"
key = "reader-0123456789"
roles = ["search"]
rate = 0.9
burst = 2
"""


def test_a_key_without_the_role_and_one_that_has_it(page, index, serving, tmp_path):
    own = page.origin
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)
    with serving(index, "--pipeline", "bm25", "--deadline", "60s", "--keys", str(path)) as page.origin:
        page.open(q="film")
        page.refused += 1  # without a key
        page.one(".key input").send_keys("metrics-0123456789", keys.ENTER)
        page.until(lambda: "the role search" in page.one(".notice").text)
        page.refused += 1  # it may ask what the server is, and not search
        page.one(".key input").send_keys("reader-0123456789", keys.ENTER)
        page.until(lambda: page.all("#results .card"))
        # the two that may come at once are spent: the page waits as long as it is told, and asks again
        page.one("#query").send_keys(keys.CONTROL, "a", keys.NULL, "zyzzyva", keys.ENTER)
        page.until(lambda: len(page.all("#results .card")) == 1)
        page.refused += limited(page.origin)  # none on a machine so slow that a new token came first
        asked = page.requests()
        assert [url for url in asked if not url.startswith(f"{page.origin}/")] == []
    page.origin = own


def limited(origin: str) -> int:
    """How many requests came too often, by what the server says."""
    request = urllib.request.Request(f"{origin}/metrics", headers={"x-api-key": "metrics-0123456789"})
    with urllib.request.urlopen(request) as answer:
        found = re.search(r"^tamis_rate_limited_total (\d+)\.0$", answer.read().decode(), re.MULTILINE)
    assert found
    return int(found[1])
