"""The page of a workload, or of a program: what answers each GEMM, what it gains, and what a build may bring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmdb.generators.coverage import EntryHit, look_up
from gemmdb.inductor.decide.legality import only_aten
from gemmdb.inductor.observe.journal import only_aten_reason
from gemmdb.inductor.observe.report import Report, Served
from gemmdb.kernels import names
from gemmdb.kernels.config import ATEN
from gemmdb.key.toolchain import installed
from gemmdb.lookup import explain
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.saving import Saving, saving
from gemmdb.report.table import sizes
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog
from gemmdb.workload.entries import Entry, Workload

DEFAULT = Policy()
MISS = "miss"
MAX_REASON = 600
"""The most characters of a reason."""
MAX_PRODUCTS = 5_000
"""The most GEMMs of one page, those of most time. Sums are of all of them."""


@dataclass(frozen=True)
class Product(EntryHit):
    """One GEMM of a workload, looked up. `saving`: what a build may save of a call, for a miss; None if that is
    unknown. `reason`: why ATen runs; empty if another kernel does."""

    saving: Saving | None = None
    reason: str = ""

    @property
    def rung(self) -> str:
        """The rung that answers, or `miss`."""
        return self.hit.rung if self.hit else MISS

    @property
    def calls(self) -> int:
        """How often the GEMM ran; one call per occurrence if none was counted."""
        return self.entry.calls or self.entry.count

    @property
    def gain(self) -> float:
        """How many times faster than ATen the answer is expected to be; 1 for a miss."""
        return self.hit.speedup if self.hit else 1.0

    @property
    def time_us(self) -> float:
        """Expected microseconds of one call, as it is served. That of a miss is what is expected of ATen."""
        return self.saving.aten_us if self.saving else super().time_us

    @property
    def aten_us(self) -> float:
        """Microseconds of all calls with ATen."""
        return self.total_us * self.gain

    @property
    def may_save_us(self) -> float | None:
        """Microseconds of all calls that a build may save; None if nothing can be said, or no build is needed."""
        return self.saving.us * self.calls if self.saving else None


@dataclass(frozen=True)
class WorkloadReport:
    """A workload against the tables. `products`: those of most time first; `uncovered`: (name, occurrences, calls) of
    the GEMMs that gemmdb does not handle."""

    name: str
    products: tuple[Product, ...]
    uncovered: tuple[tuple[str, int, int], ...] = ()

    @property
    def total_us(self) -> float:
        """Microseconds of all calls of all GEMMs, as they are served."""
        return sum(one.total_us for one in self.products)

    @property
    def aten_us(self) -> float:
        """The same with ATen."""
        return sum(one.aten_us for one in self.products)

    @property
    def gain(self) -> float:
        """The gain over ATen of all GEMMs together, weighted by their time; 1 without any."""
        return self.aten_us / self.total_us if self.total_us else 1.0

    @property
    def may_save_us(self) -> float:
        """Microseconds that a build of what misses may save, as far as that can be said."""
        return sum(one.may_save_us or 0.0 for one in self.products)

    def document(self) -> dict[str, Any]:
        """What the page draws."""
        shown = [_product(one) for one in self.products[:MAX_PRODUCTS]]
        return _document(self, self.gain, shown, len(self.products) - len(shown), self.uncovered)


def of_workload(workload: Workload, name: str, catalog: Catalog, policy: Policy = DEFAULT) -> WorkloadReport:
    """The report of a workload under the name of its file. `policy`: that of the lookups. Raises InputError for an
    invalid device or range."""
    found = (_look_up(entry, catalog, policy) for entry in workload.entries)
    products = sorted(found, key=lambda one: (-one.total_us, one.entry.problem.text))
    uncovered = sorted((name, *counts) for name, counts in workload.uncovered.items())
    return WorkloadReport(name, tuple(products), tuple(uncovered))


def _look_up(entry: Entry, catalog: Catalog, policy: Policy) -> Product:
    asked = look_up(entry, catalog, policy)
    hit, query = asked.hit, asked.query
    if hit is not None and hit.config != ATEN:
        return Product(entry, asked.device, hit)
    steps = explain(query, catalog, policy, installed(query.device.kind))
    if hit is not None:
        said = next((step.reason for step in steps if step.hit is not None), "")  # The first that answers is served.
        return Product(entry, asked.device, hit, reason=said[:MAX_REASON])
    reason = "; ".join(filter(None, (str(only_aten(query) or ""), *(f"{step.rung}: {step.reason}" for step in steps))))
    return Product(entry, asked.device, None, saving(Ask(query, (), Policy(), None)), reason[:MAX_REASON])


def save(report: Report, path: Path) -> None:
    """Write the page of a program's report. Raises InputError."""
    import gemmdb
    from gemmdb.report import page

    page.write(page.render({**program_document(report), "version": gemmdb.__version__}), path)


def program_document(report: Report) -> dict[str, Any]:
    """What the page draws of a running program, as for a workload in which each graph was called once."""
    uncovered = [(name, count, count) for name, count in report.uncovered]
    return _document(report, report.gain.value, [_served(one) for one in report.products], 0, uncovered)


def _document(
    report: WorkloadReport | Report, gain: float, products: list[dict[str, Any]], smaller: int,
    uncovered: Sequence[tuple[str, int, int]],
) -> dict[str, Any]:  # fmt: skip
    return {
        "kind": "workload",
        "title": report.name,
        "total_us": report.total_us,
        "aten_us": report.aten_us,
        "gain": gain,
        "may_save_us": report.may_save_us,
        "products": products,
        "smaller": smaller,
        "uncovered": [{"name": name[:200], "count": count, "calls": calls} for name, count, calls in uncovered],
    }


def _product(one: Product) -> dict[str, Any]:
    config, entry = one.hit.config if one.hit else ATEN, one.entry
    return {
        **sizes(entry.problem),
        "problem": entry.problem.text,
        "ranges": {name: [low, high] for name, low, high in entry.ranges},
        "device": one.device.sku,
        "rung": one.rung,
        "backend": config.backend,
        "kernel": names.kernel(config),
        "config": config.text,
        "aten": config == ATEN,
        "gain": one.gain,
        "us": one.time_us,
        "calls": one.calls,
        "count": entry.count,
        "total_us": one.total_us,
        "aten_us": one.aten_us,
        "may_save_us": one.may_save_us,
        "table": one.hit.table if one.hit else "",
        "reason": one.reason,
        "alone": only_aten_reason(one.reason) if one.rung == MISS else "",
        "origins": [str(place) for place in entry.origins],
    }


def _served(one: Served) -> dict[str, Any]:
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
