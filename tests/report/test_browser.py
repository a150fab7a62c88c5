"""The page in a browser: no error, no request, nothing owned, filters that work, text that can be read."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import hostile
from kit.browser import MARKS, WIDTHS, launched
from kit.devices import H200

from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.report import documents, page
from gemmdb.settings import Settings, shipped_tables
from gemmdb.table.catalog import Catalog
from gemmdb.table.reader import Table
from gemmdb.workload.entries import Entry

MISSING = [name for name in ("plotly", "playwright") if importlib.util.find_spec(name) is None]
pytestmark = [
    *MARKS,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}; pip install 'gemmdb[dev]'"),
]
KNOWN = 60
CONTRAST = Path(__file__).with_name("contrast.js").read_text().partition("\n")[2]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as started:
        yield started


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens the page of a file at a width: `visit(path, width, scheme)`. At the end nothing has gone wrong in it."""
    wrong: list[str] = []
    contexts = []

    def opened(path: Path, width: int = 820, scheme: str = "light", settings: Settings | None = None) -> Any:
        catalog = Catalog.load(settings) if settings else Catalog(())
        target = tmp_path / "page.html"
        page.write(page.render(documents.document(path, catalog)), target)
        catalog.close()
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
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


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """KNOWN problems of the shipped H200 table, and as many near them or unknown to it."""
    path = tmp_path_factory.mktemp("workload") / "workload.jsonl"
    with Table.open(shipped_tables() / "sm90-nvidia-h200.db") as table:
        known = [problem for problem, _ in table.decided()][: 30 * KNOWN : 30]
    asked = [one for problem in known for one in (problem, problem.resized(problem.m + 3, problem.n + 1, problem.k))]
    path.write_text("\n".join(Entry(one, calls=7, device=H200.text).line for one in asked))
    return path


def shown(tab: Any) -> int:
    """How many problems fit the filters, as the page says."""
    return int(tab.text_content("#count").split(" of ")[0].replace(",", ""))


def until(tab: Any, holds: Callable[[], bool]) -> None:
    """Wait until something holds: the page's policy forbids playwright's own way of waiting."""
    for _ in range(100):
        if holds():
            return
        tab.wait_for_timeout(50)
    raise AssertionError("it does not become so")


def readable(tab: Any) -> None:
    """The page is no wider than the window, and each text is large enough and stands out from its ground."""
    assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert tab.evaluate(CONTRAST) == []
    assert (
        tab.evaluate(
            "[...document.querySelectorAll('.chart')].filter((one) => one.scrollWidth > one.clientWidth).length"
        )
        == 0
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_the_shipped_table(visit: Callable[..., Any], width: int) -> None:
    tab = visit(shipped_tables() / "sm90-nvidia-h200.db", width, "dark" if width == 820 else "light")
    everything = shown(tab)
    assert everything > 4000
    assert tab.locator(".js-plotly-plot").count() == 5
    readable(tab)
    tab.select_option("#filter-op", "bmm")
    until(tab, lambda: shown(tab) != everything)
    assert 0 < shown(tab) < 1000
    assert all(name.startswith("bmm") for name in tab.locator("#problems td.name").all_text_contents())
    tab.fill("#filter-search", "no such problem")
    until(tab, lambda: shown(tab) == 0)
    assert tab.locator("#problems tbody tr").count() == 0
    assert tab.locator(".chart.empty").count() == 5
    tab.click("#filter-reset")
    assert shown(tab) == everything
    tab.click("#theme")
    assert tab.get_attribute("html", "data-theme") == ("light" if width == 820 else "dark")
    readable(tab)


def test_the_list_sorts_turns_pages_and_opens(visit: Callable[..., Any]) -> None:
    tab = visit(shipped_tables() / "sm90-nvidia-h200.db")

    def column() -> list[float]:
        return [float(text.rstrip("x")) for text in tab.locator("#problems tr.row td:nth-child(2)").all_text_contents()]

    assert column() == sorted(column(), reverse=True)
    best = column()[0]
    tab.click("#problems th:nth-child(2) button")
    assert column() == sorted(column())
    assert column()[0] < best
    first = tab.text_content("#problems tr.row")
    tab.click("text=Next")
    assert tab.text_content("#problems tr.row") != first
    tab.click("#problems tr.row >> nth=0")
    text = tab.text_content("#problems tr.detail dd >> nth=0")
    assert Problem.parse(text).text == text


@pytest.mark.parametrize("width", WIDTHS)
def test_a_workload(visit: Callable[..., Any], workload: Path, tmp_path: Path, width: int) -> None:
    settings = Settings((), tmp_path / "user.db", "aten", False, "")
    tab = visit(workload, width, "light" if width == 820 else "dark", settings)
    assert shown(tab) == 2 * KNOWN
    assert tab.locator(".treemaplayer .slice").count() > 20
    readable(tab)
    tab.select_option("#filter-rung", "miss")
    until(tab, lambda: shown(tab) != 2 * KNOWN)
    assert set(tab.locator("#products tr.row td:nth-child(4)").all_text_contents()) == {"miss"}
    assert tab.locator("#misses tbody tr").count() > 0


def test_a_build_is_not_expected_to_change_what_only_aten_can_serve(visit: Callable[..., Any], tmp_path: Path) -> None:
    path, device = tmp_path / "workload.jsonl", Device("cpu", "cpu", "Example CPU", 2, isa="avx2").text
    plain = Problem.gemm("mm", m=8, n=64, k=64, dtype="fp32")
    packed = Problem.gemm("mm", m=8, n=128, k=64, dtype="fp32", constant_weight=True)
    only = "1 GEMM that no build changes: ATen is the only kernel for it: the C++ template packs the weight"
    path.write_text(Entry(plain, calls=9, device=device).line)
    assert visit(path, 390).text_content("#missed").startswith(only)
    path.write_text("\n".join(Entry(one, calls=9, device=device).line for one in (plain, packed)))
    tab = visit(path)
    assert tab.locator("#misses tbody tr").count() == 1
    assert only in tab.text_content("#missed")
    assert "gemmdb build --arch native" in tab.text_content("#missed")
    readable(tab)


@pytest.mark.parametrize("make", [hostile.table, hostile.workload, hostile.comparison])
def test_a_hostile_file_is_text(visit: Callable[..., Any], tmp_path: Path, make: Callable[[Path], Path]) -> None:
    tab = visit(make(tmp_path), 390)
    for row in tab.locator("tr.row").all():
        row.click()
    for box in tab.locator(".js-plotly-plot .main-svg >> nth=0").all():
        box.hover()
    tab.wait_for_timeout(300)
    assert tab.evaluate("window.owned") is None
    assert tab.locator("main img, main a[href], main iframe, main script, header img").count() == 0
    assert tab.get_by_text("onerror").count() > 0, "the attack is shown as it is"
    readable(tab)
    tab.emulate_media(media="print")
    assert not tab.locator(".filters").first.is_visible()
