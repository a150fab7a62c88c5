"""The charts of the page in a browser: what they show, at each width."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit import report_files
from kit.browser import MARKS
from kit.report_pages import PHONE, WIDTHS, shown, until

from gemmdb.report import documents
from gemmdb.settings import Settings, shipped_tables

pytestmark = [pytest.mark.slow, *MARKS]


def data(tab: Any, chart: str) -> list[dict[str, Any]]:
    """The traces of a chart."""
    found: list[dict[str, Any]] = tab.evaluate(f"document.getElementById({chart!r}).data")
    return found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("more", [{}, PHONE], ids=["mouse", "touch"])
def test_nothing_covers_a_chart_and_none_is_squashed(
    visit: Callable[..., Any], width: int, more: dict[str, bool]
) -> None:
    """A toolbar or a legend inside a chart covers it, or takes its room."""
    tab = visit(shipped_tables() / "sm90-nvidia-h200.db", width, **more)
    for place in tab.locator(".js-plotly-plot").all():
        box, plot = place.bounding_box(), place.locator(".nsewdrag").bounding_box()
        assert plot["height"] > 0.6 * box["height"]
        assert plot["width"] > 0.6 * box["width"]
        assert place.locator(".modebar-btn, .legend").count() == 0
    names = tab.locator("ul.legend").first.text_content()
    assert all(op in names for op in ("addmm", "bmm", "int_mm"))
    drawn = tab.locator(".scatterlayer .points path").count()
    assert 0 < drawn < 400, "many results are drawn as cells, since points would hide each other"
    assert tab.locator("#winners .heatmap-label").count() > 20, "the cells have numbers at each width"


def test_few_results_are_points(visit: Callable[..., Any], tmp_path: Path) -> None:
    tab = visit(report_files.table(tmp_path))
    tab.select_option("#filter-op", "addmm")
    until(tab, lambda: 0 < shown(tab) < 400)
    few = shown(tab)
    assert tab.locator("#roofline .scatterlayer .points path").count() == few


def test_a_cell_of_aten_has_no_gain_and_atens_other_kernels_are_no_default(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    tab = visit(report_files.table(tmp_path))
    (heat,) = data(tab, "winners")
    sources = [text.strip() for text in tab.locator(".card:has(#winners) .legend li").all_text_contents()]
    assert sources == ["ATen", "ATen, another kernel", "triton"]
    labels = {sources[z]: set() for line in heat["z"] for z in line if z is not None}
    for line, texts in zip(heat["z"], heat["text"], strict=True):
        for z, text in zip(line, texts, strict=True):
            if z is not None:
                labels[sources[z]].add(text)
    assert labels["ATen"] == {""}
    assert labels["ATen, another kernel"] == {"1.4"}
    assert "" not in labels["triton"]
    tab.select_option("#filter-source", "ATen, another kernel")
    until(tab, lambda: 0 < shown(tab) < 100)
    intervals = tab.locator("#problems tr.row td:nth-child(3)").all_text_contents()
    assert all("x to " in text for text in intervals), "a kernel that is not the default has an interval"


def test_before_and_after_tells_atens_answers_from_kernels(visit: Callable[..., Any], tmp_path: Path) -> None:
    catalog = report_files.catalog(tmp_path)
    document = documents.document(report_files.workload(tmp_path), catalog)
    catalog.close()
    assert {one["outcome"] for one in document["products"] if one["rung"] == "exact"} >= {
        "table", "ATen (measured best)",
    }  # fmt: skip
    tab = visit(tmp_path / "serve.jsonl", settings=Settings((tmp_path / "example.db",), tmp_path / "no.db", "aten"))
    named = [text.strip() for text in tab.locator(".card:has(#bars) .legend li").all_text_contents()]
    assert named == [
        "table", "near", "ATen (measured best)", "ATen (predicted best)", "ATen (nothing known)", "ATen (refused)",
    ]  # fmt: skip
    shades = [trace["marker"]["color"] for trace in data(tab, "bars")]
    assert len(set(shades)) == len(named)
