"""Make the pictures of the page in docs/figures: python tests/browser/figures.py page http://127.0.0.1:8000

The server serves the demo collection: `tamis demo --keep demo`, then `tamis serve demo/index`. For `files` in
place of `page` it serves documentation as Debian's packages install it: /usr/share/man, and python3-doc,
postgresql-doc, gnuplot-doc, git and nodejs of /usr/share/doc. The pictures are drawn with the font Inter if
it is installed (fonts-inter), and have 128 colours, so that each takes less than 250 kB.
"""

from __future__ import annotations

import shutil
import sys
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
QUERY = "film director who was married to an actress"
CASCADE = {"q": QUERY, "doc": "d1547"}  # by the default pipeline
REAL = "parse command line arguments"
LIBRARY, MANUAL = "python3.11/html/library/argparse.html", "man/getopt.3.gz"
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
        CASCADE | {"open": "d0995"},
        "",
    ),
    "files-desktop": (1280, 860, 1, "light", {"q": REAL, "doc": LIBRARY}, "scrollTo(0, 0)"),
    "files-desktop-dark": (1280, 860, 1, "dark", {"q": REAL, "open": MANUAL}, ""),
    "files-phone": (375, 812, 2, "light", {"q": REAL, "doc": LIBRARY}, "scrollTo(0, 0)"),
    "files-phone-dark": (375, 812, 2, "dark", {"q": REAL, "open": MANUAL}, ""),
}


def picture(driver: Any, address: str, name: str) -> None:
    from PIL import Image
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
            "return document.querySelector('.card') && !document.body.innerText.includes('so far')"
        )
    )
    driver.execute_async_script(f"{before}; setTimeout(arguments[0], 500)")  # until all is drawn
    drawn = Image.open(BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    drawn.quantize(128, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
        FIGURES / f"{name}.png", optimize=True
    )


def main(pictures: str, address: str) -> None:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    with webdriver.Chrome(options=options, service=service) as driver:
        for name in (each for each in PICTURES if each.startswith(f"{pictures}-")):
            picture(driver, address.rstrip("/"), name)


if __name__ == "__main__":
    main(*sys.argv[1:])
