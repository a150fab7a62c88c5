"""The pages of files in a browser."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.browser import launched

from gemmdb.report import documents, page
from gemmdb.settings import Settings, shipped_tables
from gemmdb.table.catalog import Catalog


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as started:
        yield started


def rendered(path: Path, settings: Settings | None) -> str:
    """The page of a file."""
    catalog = Catalog.load(settings) if settings else Catalog(())
    text = page.render(documents.document(path, catalog))
    catalog.close()
    return text


@functools.cache
def of_shipped(path: Path) -> str:
    """The page of a table that ships: it takes seconds, and no test changes such a table."""
    return rendered(path, None)


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens the page of a file at a width: `visit(path, width, scheme)`. At the end nothing has gone wrong in it."""
    wrong: list[str] = []
    contexts = []

    def opened(
        path: Path, width: int = 768, scheme: str = "light", settings: Settings | None = None, **more: bool
    ) -> Any:
        target = tmp_path / "page.html"
        ships = path.parent == shipped_tables() and settings is None
        page.write(of_shipped(path) if ships else rendered(path, settings), target)
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: wrong.append(message.text))
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("request", lambda request: None if request.url == target.as_uri() else wrong.append(request.url))
        tab.on("dialog", lambda dialog: wrong.append(dialog.message))
        tab.goto(target.as_uri())
        tab.wait_for_selector(".js-plotly-plot .main-svg", state="attached")
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert [text for text in wrong if not text.startswith(("data:", "blob:"))] == []
