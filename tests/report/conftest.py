"""The pages of files in a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.browser import launched

from gemmdb.report import documents, page
from gemmdb.settings import Settings
from gemmdb.table.catalog import Catalog


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as started:
        yield started


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens the page of a file at a width: `visit(path, width, scheme)`. At the end nothing has gone wrong in it."""
    wrong: list[str] = []
    contexts = []

    def opened(
        path: Path, width: int = 768, scheme: str = "light", settings: Settings | None = None, **more: bool
    ) -> Any:
        catalog = Catalog.load(settings) if settings else Catalog(())
        target = tmp_path / "page.html"
        page.write(page.render(documents.document(path, catalog)), target)
        catalog.close()
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
