"""A server and a browser for the tests of this folder; both are stopped whatever happens.

Every window collects console errors and requests that leave this machine, and the test fails if there is one.
"""

import contextlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
         "--disable-component-update", "--no-first-run", "--disable-quic"]  # fmt: skip
KNOWN = ("/_stcore/health", "/_stcore/host-config")
"""Streamlit looks for its base path below a deep link; these two answer 404 and nothing else may."""
PLAYER = """() => {
  for (const host of document.querySelectorAll("*")) {
    const found = host.shadowRoot?.querySelector(".player");
    if (found?.player) return found;
  }
}"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server on a free port; it is stopped whatever happens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port)]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"{address}/_stcore/health", timeout=1)
                break
            assert server.poll() is None, "streamlit ended at once"
            time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for all tests of a file."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        except sync_api.Error as problem:
            pytest.skip(f"no chromium can be started: {str(problem).splitlines()[0]}")
        try:
            yield started
        finally:
            started.close()


class Visit:
    """One person's browser window."""

    def __init__(
        self, browser: Any, url: str, path: str = "/", width: int = 1280, height: int = 900, **options: Any
    ) -> None:
        self.url = url
        self.context = browser.new_context(viewport={"width": width, "height": height}, **options)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("request", self._request)
        self.page.goto(url + path)

    def _console(self, message: Any) -> None:
        known = "404" in message.text and message.location.get("url", "").endswith(KNOWN)
        if message.type == "error" and not known:
            self.wrong.append(f"{message.text} {message.location}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:")):
            self.wrong.append(f"outside: {request.url}")

    def player(self, expression: str, argument: Any = None) -> Any:
        """Evaluate JavaScript with `p` as the player."""
        return self.page.evaluate(f"(argument) => {{ const p = ({PLAYER})().player; return {expression}; }}", argument)

    def drawn(self, other_than: str = "") -> str:
        """Wait for a drawing (another one than before) and give its id."""
        self.page.wait_for_function(f"(old) => {{ const r = ({PLAYER})(); return r && r.dataset.v && r.dataset.v !== old; }}",
                                    arg=other_than, timeout=30_000)  # fmt: skip
        return str(self.player("p.root.dataset.v"))

    def says(self, words: str) -> None:
        """Wait until the page shows these words."""
        self.page.get_by_text(words, exact=False).first.wait_for(timeout=30_000)

    def fits(self) -> bool:
        """Nothing reaches over the right edge."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


@pytest.fixture
def visit(browser: Any, url: str) -> Iterator[Any]:
    """Opens windows; afterwards none of them may have had an error or have asked anything outside."""
    opened: list[Visit] = []

    def open_window(path: str = "/", **options: Any) -> Visit:
        opened.append(Visit(browser, url, path, **options))
        return opened[-1]

    yield open_window
    for each in opened:
        each.context.close()
    assert [wrong for each in opened for wrong in each.wrong] == []
