"""The page of a running program's report, which `gemmdb.inductor.report` makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gemmdb.inductor.observe.journal import only_aten_reason
from gemmdb.inductor.observe.report import Report, Served
from gemmdb.report.table_document import sizes


def save(report: Report, path: Path) -> None:
    """Write the page. Raises InputError."""
    import gemmdb
    from gemmdb.report import page

    page.write(page.render({**document(report), "version": gemmdb.__version__}), path)


def document(report: Report) -> dict[str, Any]:
    """What the page draws, as for a workload in which each graph was called once."""
    return {
        "kind": "workload",
        "title": report.name,
        "total_us": report.total_us,
        "aten_us": report.aten_us,
        "gain": report.gain.value,
        "may_save_us": report.may_save_us,
        "products": [_product(one) for one in report.products],
        "smaller": 0,
        "uncovered": [{"name": name[:200], "count": n, "calls": n} for name, n in report.uncovered],
    }


def _product(one: Served) -> dict[str, Any]:
    return {
        **sizes(one.problem),
        "problem": one.problem.text,
        "ranges": {name: list(ends) for name, ends in one.ranges.items()},
        "device": one.device.sku,
        "rung": one.rung,
        "backend": one.config.partition(":")[0],
        "kernel": one.kernel,
        "config": one.config,
        "aten": one.aten,
        "gain": one.gain,
        "us": one.us,
        "calls": one.count,
        "count": one.count,
        "total_us": one.total_us,
        "aten_us": one.total_us * one.gain,
        "may_save_us": one.saving.us * one.count if one.saving else None,
        "table": one.table,
        "reason": one.why,
        "alone": only_aten_reason(one.why) if one.aten else "",
    }
