"""A server and a browser for the tests of this folder; both are stopped whatever happens.

Every window collects console errors and requests that leave this machine, and the test fails if there is one.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.harness import app_server, chromium

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
    """The app's address."""
    with app_server() as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for all tests of a file. Under `make test` one that cannot be started is a failure."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    try:
        with chromium() as started:
            yield started
    except sync_api.Error as problem:
        if os.environ.get("NOTHING_MISSING"):
            raise
        pytest.skip(f"no chromium can be started: {str(problem).splitlines()[0]}")


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
