"""Pictures of the reports' pages in a Chromium: on a phone, a tablet, a desktop and on paper.

`PYTHONPATH=tests python -m kit.pictures` writes those of tests/golden/report, which tests/report/test_pictures.py
compares with what a page looks like; look at each before you commit it. With `docs` it writes those of docs/images,
of a shipped table.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmdb.report import documents, page
from gemmdb.settings import shipped_tables
from kit import report_files
from kit.browser import launched

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "report"
KINDS = ("table", "workload", "comparison")


@dataclass(frozen=True)
class View:
    """How a page is looked at. `width`: CSS pixels of the window; `scale`: pixels of the picture for each."""

    name: str
    width: int
    scheme: str = "light"
    touch: bool = False
    paper: bool = False
    scale: float = 0.4


VIEWS = (
    View("phone", 390, touch=True), View("tablet", 768, "dark", touch=True), View("desktop", 1200),
    View("paper", 700, paper=True),
)  # fmt: skip


def pages(folder: Path) -> dict[str, Path]:
    """Write the page of each kind; their paths."""
    catalog = report_files.catalog(folder)
    sources = (folder / "example.db", report_files.workload(folder), report_files.comparison(folder))
    written = {}
    for kind, source in zip(KINDS, sources, strict=True):
        written[kind] = folder / f"{kind}.html"
        page.write(page.render(documents.document(source, catalog)), written[kind])
    catalog.close()
    return written


def opened(browser: Any, target: Path, view: View) -> Any:
    """A tab with a page, drawn."""
    context = browser.new_context(
        viewport={"width": view.width, "height": 900}, color_scheme=view.scheme, has_touch=view.touch,
        is_mobile=view.touch, device_scale_factor=view.scale,
    )  # fmt: skip
    tab = context.new_page()
    tab.goto(target.as_uri())
    tab.wait_for_selector(".js-plotly-plot .main-svg", state="attached")
    if view.paper:
        tab.emulate_media(media="print")
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    tab.wait_for_timeout(300)
    return tab


def taken(browser: Any, folder: Path) -> Iterator[tuple[str, bytes]]:
    """The name and the picture of each page in each view."""
    for kind, target in pages(folder).items():
        for view in VIEWS:
            tab = opened(browser, target, view)
            yield f"{kind}-{view.name}.jpg", tab.screenshot(full_page=True, type="jpeg", quality=50)
            tab.context.close()


def _of_docs(browser: Any, folder: Path) -> None:
    wide = View("docs", 1320, scale=1.0)
    table, workload = folder / "sm90-nvidia-h200.db", pages(folder)["workload"]
    page.write(
        page.render(documents.document(shipped_tables() / table.name, report_files.catalog(folder))), folder / "t"
    )
    for name, source, height in (("report", folder / "t", 1330), ("report-workload", workload, 1280)):
        tab = opened(browser, source, wide)
        tab.set_viewport_size({"width": wide.width, "height": height})
        tab.wait_for_timeout(300)
        tab.screenshot(path=ROOT / "docs" / "images" / f"{name}.png")


def main() -> None:
    with tempfile.TemporaryDirectory() as made, launched() as browser:
        if sys.argv[1:] == ["docs"]:
            _of_docs(browser, Path(made))
            return
        GOLDEN.mkdir(exist_ok=True)
        for name, picture in taken(browser, Path(made)):
            (GOLDEN / name).write_bytes(picture)


if __name__ == "__main__":
    main()
