"""One Chromium (Debian's, with its driver: selenium itself fetches nothing), one server, the page in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

import tamis
from tamis.formats import read_corpus

PACKAGES = ("chromium", "chromium-driver")
DEMO = Path(tamis.__file__).parent / "demo_data" / "corpus.jsonl.gz"
HOSTILE = tamis.Document(
    "<svg/onload=window.hacked=1>/../é",
    "<script>window.hacked = 1</script> zyzzyva <img src=x onerror=hacked=1> 🦎 <b>zyzzyva</b> &amp; done",
    title='<img src="x" onerror="window.hacked=1">',
)


def _programs() -> tuple[str, str] | None:
    found = shutil.which("chromium"), shutil.which("chromedriver")
    return (found[0], found[1]) if found[0] and found[1] else None


def _install() -> None:
    if os.name != "posix" or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES]
    for command in (install, ["apt-get", "update"], install):  # a list of packages may be missing or old
        try:
            done = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
        except subprocess.TimeoutExpired:  # a mirror that does not answer
            return
        if command is install and done.returncode == 0:
            return


@pytest.fixture(scope="session")
def chromium() -> tuple[str, str]:
    """The browser and its driver."""
    if _programs() is None:
        _install()
    programs = _programs()
    if programs is None:
        pytest.skip(f"no browser: install {' and '.join(PACKAGES)} (as root the tests do it themselves)")
    return programs


@pytest.fixture(scope="session")
def driver(chromium: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless session that keeps a log of the console and of every request."""
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = selenium.ChromeOptions()
    options.binary_location = chromium[0]
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    profile = tmp_path_factory.mktemp("chromium")
    for argument in (
        "--headless=new",
        "--no-sandbox",  # there is none for root in a container
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--no-proxy-server",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1,localhost")
        patch.setenv("no_proxy", "127.0.0.1,localhost")
        session = selenium.Chrome(options=options, service=selenium.ChromeService(chromium[1]))
        session.set_script_timeout(60)
        yield session
        session.quit()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Callable[..., Path]) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "mono": tiny_checkpoint(folder / "tiny-mono", layers=1, positions=64, seed=1),
        "duo": tiny_checkpoint(folder / "tiny-duo", layers=1, positions=96, segments=3, seed=2),
    }


@pytest.fixture(scope="session")
def hostile() -> tamis.Document:
    """A document that means harm: its id, its title and its text are markup."""
    return HOSTILE


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 passages, and one that means harm."""
    folder = tmp_path_factory.mktemp("served") / "index"
    tamis.Index.build([*islice(read_corpus(DEMO), 400), HOSTILE], folder)
    return folder


@pytest.fixture(scope="session")
def serving() -> Callable[..., AbstractContextManager[str]]:
    """The function that starts a server: see `serve`."""
    return serve


@contextmanager
def serve(index: Path, *options: str, **environment: str) -> Iterator[str]:
    """A server on a port of its own: its address."""
    command = [sys.executable, "-m", "tamis", "serve", str(index), "--port", "0", "--no-tokens", *options]
    everything = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=everything) as server:
        assert server.stderr is not None
        try:
            said = ""
            while not (found := re.search(r"http://127\.0\.0\.1:\d+", said)):
                line = server.stderr.readline()
                assert line, f"the server did not start: {said}"
                said += line
            yield found[0]
        finally:
            server.terminate()
            server.stderr.read()
            server.wait(60)


@pytest.fixture(scope="session")
def origin(index: Path, models: dict[str, Path]) -> Iterator[str]:
    """A server of bm25 and two rerankers, with models of no worth that are fast."""
    pipeline = f'bm25 % 50 >> mono(model="{models["mono"]}") % 10 >> duo(model="{models["duo"]}")'
    with serve(index, "--pipeline", pipeline, "--deadline", "60s") as address:
        yield address


class Page:
    """The page as a person has it: what is on it, and what can be done to it."""

    def __init__(self, driver: Any, origin: str) -> None:
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.ui import WebDriverWait

        self.driver, self.origin = driver, origin
        # the page may draw anew between the moments when an element is found and when it is looked at
        self.wait = WebDriverWait(driver, 60, 0.05, [StaleElementReferenceException])
        self.refused = 0  # answers with an error status that a test asked for: the browser logs each

    def open(self, **state: str) -> None:
        self.driver.get(f"{self.origin}/?{urlencode(state)}" if state else f"{self.origin}/")
        self.settle()

    def settle(self) -> None:
        """Wait until an answer, or that there is nothing to ask, is on the page, and nothing moves."""
        ready = """return document.getElementById("progress").hidden &&
            !document.getAnimations().some((each) => each.playState === "running") &&
            document.querySelector(":is(#empty, #single, #double):not([hidden]), .notice")"""
        self.wait.until(lambda driver: driver.execute_script(ready))

    def until(self, condition: Callable[[], Any]) -> Any:
        return self.wait.until(lambda _: condition())

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)"
        return list(self.driver.execute_script(script, selector))

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def press(self, *pressed: str) -> None:
        for key in pressed:
            self.driver.switch_to.active_element.send_keys(key)

    @property
    def state(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.driver.current_url).query).items()}

    @contextmanager
    def at(self, address: str) -> Iterator[None]:
        """At another server, which alone is asked while this lasts."""
        own, self.origin = self.origin, address
        self.requests()
        yield
        assert [url for url in self.requests() if not url.startswith((f"{address}/", "data:"))] == []
        self.origin = own

    def hover(self, selector: str) -> None:
        """With a mouse."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver, duration=0).move_to_element(self.one(selector)).perform()

    def tap(self, selector: str) -> None:
        """With a finger."""
        script = """arguments[0].scrollIntoView({ block: "center" });
            const box = arguments[0].getBoundingClientRect();
            return [box.x + Math.min(box.width / 2, 20), box.y + box.height / 2]"""
        x, y = self.run(script, self.one(selector))
        self.driver.execute_cdp_cmd(
            "Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]}
        )
        self.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    def width(self, pixels: int) -> None:
        size = {"width": pixels, "height": 800, "deviceScaleFactor": 1, "mobile": pixels < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """What the server says to a program."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.origin + path, data, {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            return json.load(answer)

    def metric(self, name: str) -> float:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.origin}/metrics", timeout=60) as answer:
            found = re.search(rf"(?m)^{re.escape(name)} (.+)$", answer.read().decode())
        return float(found[1]) if found else 0.0

    @contextmanager
    def beforehand(self, script: str) -> Iterator[None]:
        """Run a script in every new document before the page's own."""
        added = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)

    def ready(self) -> bool:
        try:
            self.ask("/readyz")
        except urllib.error.HTTPError:
            return False
        return True

    def requests(self) -> list[str]:
        """The addresses that the browser asked for since the last look."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [each["params"] for each in messages if each["method"] == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in sent]


@pytest.fixture
def page(driver: Any, origin: str) -> Iterator[Page]:
    page = Page(driver, origin)
    page.width(1280)
    driver.get_log("browser")
    page.requests()
    yield page
    assert page.run("return window.hacked") is None
    elsewhere = [url for url in page.requests() if not url.startswith((f"{origin}/", "data:", "about:"))]
    assert elsewhere == []
    console = [entry["message"] for entry in driver.get_log("browser")]
    assert len([line for line in console if "Failed to load resource" in line]) == page.refused
    assert [line for line in console if "Failed to load resource" not in line] == []
