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

from gemmdb.key.problem import Problem
from gemmdb.report import documents, page
from gemmdb.settings import Settings, shipped_tables
from gemmdb.table.catalog import Catalog
from gemmdb.table.reader import Table
from gemmdb.workload.entries import Entry
from kit import report_files
from kit.browser import launched
from kit.devices import H200

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


def _serving(folder: Path) -> Path:
    """A workload of a language model that serves 16 rows, most of them with int8 weights, on an H200."""
    path, layers = folder / "serve.jsonl", {(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)}
    with Table.open(shipped_tables() / "sm90-nvidia-h200.db") as table:
        known = [one for one, _ in table.decided() if one.op in ("mm", "mixed_mm") and one.m in (16, 512)]
    found = [one for one in known if (one.n, one.k) in layers and one.fusion == "none"]
    entries = [
        Entry(one, count=count, calls=count * (1000 if one.m == 16 else 40), device=H200.text)
        for one in found for count in [1 if one.n == 128256 else 32]
    ]  # fmt: skip
    near = [Problem.gemm("addmm", m=77, n=n, k=k) for n, k in ((6144, 1536), (4608, 1536), (1536, 6144))]
    far = [Problem.gemm("int_mm", m=33, n=n, k=k) for n, k in ((4100, 516), (516, 4100))]
    entries += [Entry(one, count=12, calls=12_000, device=H200.text) for one in (*near, *far)]
    path.write_text("\n".join(entry.line for entry in entries))
    return path


def _of_docs(browser: Any, folder: Path) -> None:
    wide = View("docs", 1320, scale=1.0)
    shipped = Catalog.load(Settings((), folder / "none.db", "aten"))
    for name, source, height in (
        ("report", shipped_tables() / "sm90-nvidia-h200.db", 1280), ("report-workload", _serving(folder), 1280),
    ):  # fmt: skip
        target = folder / f"{name}.html"
        page.write(page.render(documents.document(source, shipped)), target)
        tab = opened(browser, target, wide)
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
