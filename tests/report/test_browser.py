"""The page in a browser: no error, no request, nothing owned, filters that work, text that can be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit import hostile, report_files
from kit.browser import MARKS
from kit.devices import H200
from kit.report_pages import PHONE, WIDTHS, shown, until

from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.settings import Settings, shipped_tables
from gemmdb.table.reader import Table
from gemmdb.workload.entries import Entry

pytestmark = [pytest.mark.slow, *MARKS]
KNOWN = 60
CONTRAST = Path(__file__).with_name("contrast.js").read_text().partition("\n")[2]


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """KNOWN problems of the shipped H200 table, and as many near them or unknown to it."""
    path = tmp_path_factory.mktemp("workload") / "workload.jsonl"
    with Table.open(shipped_tables() / "sm90-nvidia-h200.db") as table:
        known = [problem for problem, _ in table.decided()][: 30 * KNOWN : 30]
    asked = [one for problem in known for one in (problem, problem.resized(problem.m + 3, problem.n + 1, problem.k))]
    path.write_text("\n".join(Entry(one, calls=7, device=H200.text).line for one in asked))
    return path


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
    tab = visit(shipped_tables() / "sm90-nvidia-h200.db", width, "dark" if width == 768 else "light")
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
    assert tab.get_attribute("html", "data-theme") == ("light" if width == 768 else "dark")
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
    settings = Settings((), tmp_path / "user.db", "aten")
    tab = visit(workload, width, "light" if width == 768 else "dark", settings)
    assert shown(tab) == 2 * KNOWN
    assert tab.locator(".treemaplayer .slice").count() > 20
    readable(tab)
    tab.select_option("#filter-outcome", "ATen (nothing known)")
    until(tab, lambda: shown(tab) != 2 * KNOWN)
    assert set(tab.locator("#products tr.row td:nth-child(4)").all_text_contents()) == {"ATen (nothing known)"}
    assert tab.locator("#misses tbody tr").count() > 0


def test_a_build_is_not_expected_to_change_what_only_aten_can_serve(visit: Callable[..., Any], tmp_path: Path) -> None:
    path, device = tmp_path / "workload.jsonl", Device("cpu", "cpu", "Example CPU", 2, isa="avx2").text
    plain = Problem.gemm("mm", m=8, n=64, k=64, dtype="fp32")
    packed = Problem.gemm("mm", m=8, n=128, k=64, dtype="fp32", constant_weight=True)
    only = "ATen runs 1 GEMM, 100% of the time: gemmdb's CPU kernels need constant weights"
    path.write_text(Entry(plain, calls=9, device=device).line)
    tab = visit(path, 390)
    assert tab.text_content("#refused").startswith(only)
    assert tab.text_content("#missed") == "A build changes none of these GEMMs."
    assert tab.text_content(".tile >> nth=0") == "nonegain over ATen, which runs every GEMM"
    path.write_text("\n".join(Entry(one, calls=9, device=device).line for one in (plain, packed)))
    tab = visit(path)
    assert tab.locator("#misses tbody tr").count() == 1
    assert tab.text_content("#refused").startswith("ATen runs 1 GEMM")
    assert tab.get_by_text("gemmdb build --arch native --shapes workload.jsonl").is_visible()
    readable(tab)


def test_the_head_counts_what_the_list_holds(visit: Callable[..., Any], tmp_path: Path) -> None:
    tab = visit(shipped_tables() / "sm90-nvidia-h200.db")
    lead, problems = tab.text_content(".lead"), tab.evaluate("DATA.problems")
    assert problems > shown(tab)
    assert f"NVIDIA H200: {problems:,} GEMMs, " in lead
    assert f" This page shows {shown(tab):,} results, a random part of the table." in lead
    assert tab.locator("#runs tbody tr").count() < 10, "runs of a day stand together"
    assert tab.locator(".card:last-child details").count() == 1
    tab = visit(shipped_tables() / "sm90-nvidia-h100-80gb-hbm3.db")
    lead, rest = tab.text_content(".lead"), tab.evaluate("DATA.problems") - shown(tab)
    assert f"H100 80GB HBM3: {shown(tab):,} GEMMs, " in lead
    assert f" {rest} GEMM more has timings, but no result." in lead
    tab = visit(report_files.table(tmp_path))
    assert "8 results rest on a busy machine's times, marked *." in tab.text_content(".lead")
    tab.fill("#filter-search", tab.evaluate("verdicts().find((row) => row.busy).problem"))
    until(tab, lambda: shown(tab) < 10)
    assert "*" in tab.text_content("#problems tr.row td:nth-child(4)")


@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_row_shows_all_its_cells(visit: Callable[..., Any], tmp_path: Path, width: int) -> None:
    """None is hidden behind a scroll bar; on a narrow screen each has its column's title."""
    tab = visit(report_files.table(tmp_path), width)
    for name in ("#problems", "#slowest", "#runs"):
        wide = f"document.querySelector('{name}').parentElement"
        assert tab.evaluate(f"{wide}.scrollWidth - {wide}.clientWidth") <= 0
    one = visit(report_files.workload(tmp_path), width)
    wide = "document.querySelector('#products').parentElement"
    assert one.evaluate(f"{wide}.scrollWidth - {wide}.clientWidth") <= 0
    titled = "getComputedStyle(document.querySelector('#problems tr.row td.right'), '::before').content"
    assert (tab.evaluate(titled) == '"gain"') == (width < 640)


@pytest.mark.parametrize("width", WIDTHS)
def test_all_kernels_of_a_split_range_are_shown(visit: Callable[..., Any], tmp_path: Path, width: int) -> None:
    """A build of what no table answers is asked for on the GPU of the recording."""
    path, settings = tmp_path / "workload.jsonl", Settings((), tmp_path / "user.db", "aten", False, "")
    asked = [Problem.gemm("mm", m=16, n=n, k=4096) for n in (4096, 128256)]
    asked += [Problem.gemm("mixed_mm", m=16, n=n, k=4096) for n in (4096, 128256)]
    unknown = Problem.gemm("int_mm", m=33, n=4100, k=516)
    entries = [Entry(one, device=H200.text, ranges=(("m", 1, 64),)) for one in asked]
    path.write_text("\n".join(one.line for one in (*entries, Entry(unknown, device=H200.text))))
    tab = visit(path, width, settings=settings)
    readable(tab)
    assert tab.locator("#products tr.row td:last-child", has_text=" / ").count() == len(asked)
    wide = "document.querySelector('#products').parentElement"
    assert tab.evaluate(f"{wide}.scrollWidth - {wide}.clientWidth") <= 0
    assert tab.text_content("#missed").endswith("To measure them, on NVIDIA H200:")


def test_on_a_phone_controls_are_large_and_a_tap_tells(visit: Callable[..., Any], tmp_path: Path) -> None:
    tab = visit(report_files.comparison(tmp_path), 390, **PHONE)
    for control in tab.locator("button:visible, select:visible, input:visible").all():
        assert control.bounding_box()["height"] >= 44
    bar = tab.locator("#program .point >> nth=0")
    bar.scroll_into_view_if_needed()
    box = bar.bounding_box()
    tab.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    until(tab, lambda: tab.locator("#program .hovertext").count() > 0)


def test_paper_gets_more_rows_and_the_screen_its_own_look_back(visit: Callable[..., Any], tmp_path: Path) -> None:
    tab = visit(report_files.table(tmp_path), 390, "dark")
    tab.emulate_media(media="print")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.get_attribute("html", "data-theme") == "light"
    assert tab.locator("#problems tr.row").count() == 100
    assert tab.text_content(".card:has(#problems) .pager span") == "1 to 100 of 756"
    assert {one.bounding_box()["width"] for one in tab.locator(".main-svg").all()} >= {660}
    assert not tab.locator("details, .filters, .toggle").first.is_visible()
    tab.emulate_media(media="screen")
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.get_attribute("html", "data-theme") == "dark"
    assert tab.locator("#problems tr.row").count() == 25
    readable(tab)


def test_a_difference_that_gemmdb_cannot_make_is_not_explained_by_chance(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    path = report_files.comparison(tmp_path, kernels=False)
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, "default_us": 8.15e6, "gemmdb_us": 200_650.0, "verdict": "", "error": 1.48}))
    text = visit(path).text_content("body")
    assert "ATen runs every GEMM on both sides. gemmdb does not explain a difference of 40.6x" in text
    assert "default mode differs from itself" in text
    path.write_text(json.dumps({**found, "verdict": ""}))
    text = visit(path).text_content("body")
    assert "A difference of the times is noise." in text
    assert "identical" in text, "0 is not printed as a difference"


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
