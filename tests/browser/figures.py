"""Make the pictures of the page in docs/figures: python tests/browser/figures.py http://127.0.0.1:8000

The server serves the demo collection: `tamis demo --keep demo`, then `tamis serve demo/index --deadline 60s`,
because duo on a small machine takes longer than the default deadline.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
QUERY = "film director who was married to an actress"
CASCADE = {"q": QUERY, "a": "bm25 % 100 >> mono % 10 >> duo", "doc": "d1547"}
COMPARED = {"q": QUERY, "a": "bm25 % 30 >> mono", "b": "bm25 % 30", "doc": "d1547"}
#: name: width, height, pixels a pixel, theme, state, and what is done before the picture
PICTURES: dict[str, tuple[int, int, int, str, dict[str, str], str]] = {
    "page-desktop": (1080, 760, 1, "light", CASCADE, ""),
    "page-desktop-dark": (1280, 860, 1, "dark", COMPARED, ""),
    "page-phone": (375, 812, 2, "light", CASCADE, "document.getElementById('cascade-box').open = true"),
    "page-phone-dark": (
        375,
        812,
        2,
        "dark",
        {"q": QUERY, "a": CASCADE["a"], "doc": "d1547", "open": "d0995"},
        "",
    ),
}


def picture(driver: Any, address: str, name: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    width, height, scale, theme, state, before = PICTURES[name]
    size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"prefers-color-scheme": theme, "prefers-reduced-motion": "reduce"}
    features = [{"name": key, "value": value} for key, value in media.items()]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.get(f"{address}/?{urlencode(state)}")
    WebDriverWait(driver, 60, 0.1).until(  # the answer comes in stages: wait for the last
        lambda driver: driver.execute_script(
            "return document.querySelector('.card.followed') && !document.body.innerText.includes('so far')"
        )
    )
    driver.execute_async_script(f"{before}; setTimeout(arguments[0], 500)")  # until all is drawn
    driver.save_screenshot(str(FIGURES / f"{name}.png"))


def main(address: str) -> None:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    with webdriver.Chrome(options=options, service=service) as driver:
        for name in PICTURES:
            picture(driver, address.rstrip("/"), name)


if __name__ == "__main__":
    main(*sys.argv[1:])
