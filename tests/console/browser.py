"""Debian's chromium for the tests of the console, and how a page is checked in it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

CHROMIUM = os.environ.get("KEELOG_CHROMIUM", "/usr/bin/chromium")
SHOTS = os.environ.get("KEELOG_SHOTS", "")
"""A folder for pictures of each page, which people look at."""
AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
_RULES = "{runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa']}"
WIDTHS, COLOURS = (1280, 390), ("light", "dark")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser for all tests of a process. Fails where it is not installed: nobody would notice
    that these tests were left out."""
    assert Path(CHROMIUM).exists(), f"{CHROMIUM} is not there: apt-get install chromium"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        yield found
        found.close()


class Tab:
    """A page in a context of its own. `close` fails the test for whatever the browser complained
    about, violations of the content policy among it."""

    def __init__(self, browser: Browser, base: str, **options: Any) -> None:
        usual: dict[str, Any] = {"viewport": {"width": 1280, "height": 860}}
        self.base = base
        self.context: BrowserContext = browser.new_context(**{**usual, **options})
        self.said: list[str] = []
        self.left: list[str] = []
        self.page = self.new_page()

    def new_page(self) -> Page:
        """One more page in the same context."""
        page = self.context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: self.said.append(f"dialog {dialog.message}"))
        page.on("request", self._note)
        return page

    def _note(self, request: Any) -> None:
        if not request.url.startswith((self.base, "data:", "about:")):
            self.left.append(request.url)

    def goto(self, path: str) -> Page:
        """Opens a page of the console."""
        self.page.goto(f"{self.base}{path}")
        return self.page

    def violations(self) -> list[str]:
        """What axe finds on the page that is open."""
        found = self.page.evaluate(f"{AXE}; axe.run({_RULES})")["violations"]
        return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]

    def close(self) -> None:
        """Ends the context."""
        self.context.close()
        loads = "Failed to load resource: the server responded with a status of 404"
        complaints = [text for text in self.said if not text.startswith(loads)]
        assert complaints == []
        assert self.left == [], "a request left the console's host"
