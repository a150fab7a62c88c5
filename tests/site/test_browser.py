"""The site in a browser: no error, no request to another server, no page wider than a phone, search that finds."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kit.browser import MARKS, WIDTHS, launched

pytest.importorskip("material", reason="pip install 'gemmdb[docs]'")
pytest.importorskip("playwright", reason="pip install 'gemmdb[dev]'")

pytestmark = [pytest.mark.slow, *MARKS]
PAGES = (
    "index.html",
    "tutorial.html",
    "how-it-works.html",
    "api.html",
    "cli.html",
    "how-to/ci.html",
    "CONTRIBUTING.html",
)


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and prints nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def server(built: Path) -> Iterator[str]:
    """The address of the site."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(built))) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}/"
        http.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as started:
        yield started


@pytest.fixture(params=WIDTHS)
def tab(request: pytest.FixtureRequest, browser: Any, server: str) -> Iterator[Any]:
    """A tab of that width. At the end no page has printed an error or asked another server."""
    wrong: list[str] = []
    context = browser.new_context(viewport={"width": request.param, "height": 900})
    page = context.new_page()
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith((server, "data:")) else wrong.append(asked.url))
    yield page
    context.close()
    assert wrong == []


def test_every_page_fits_and_shows_its_pictures(tab: Any, server: str) -> None:
    for name in PAGES:
        tab.goto(server + name)
        assert tab.locator("h1").first.is_visible()
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
        broken = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
        assert tab.evaluate(broken) == []


def test_the_search_finds_a_page(browser: Any, server: str) -> None:
    from playwright.sync_api import TimeoutError

    page = browser.new_page()
    page.goto(server + "index.html")
    for _ in range(3):
        # The page searches when a key is released, once its scripts are there.
        page.locator("[data-md-component=search-query]").fill("")
        page.locator("[data-md-component=search-query]").press_sequentially("AOTInductor")
        with contextlib.suppress(TimeoutError):
            page.wait_for_selector(".md-search-result__link", timeout=20_000)
            break
    assert "aotinductor" in " ".join(
        link.get_attribute("href") for link in page.locator(".md-search-result__link").all()
    )
    page.close()
