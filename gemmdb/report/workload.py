"""Page data for a workload or a program: each GEMM's lookup, its gain, and the possible gain from a build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmdb import outcome
from gemmdb.generators.coverage import EntryHit, look_up
from gemmdb.inductor.observe.journal import only_aten_reason
from gemmdb.inductor.observe.report import Report, Served
from gemmdb.kernels import names
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.toolchain import installed
from gemmdb.lookup import explain
from gemmdb.lookup.lowering import only_aten
from gemmdb.outcome import Outcome
from gemmdb.report.load import BusyTimes
from gemmdb.report.table import sizes
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog
from gemmdb.table.stats import Gain, weighted
from gemmdb.workload.entries import Entry, Workload

DEFAULT = Policy()
MISS = "miss"
MAX_REASON = 600
"""Most characters of a reason."""
MAX_PRODUCTS = 500
"""Most GEMMs on one page, by time, which then stays below 2.5 MiB. Sums cover all GEMMs."""


@dataclass(frozen=True)
class Product(EntryHit):
    """One GEMM of a workload, looked up. `reason`: why ATen runs; empty if another kernel does. `busy`: whether the
    kernel or ATen was timed only on a busy machine."""

    reason: str = ""
    busy: bool = False

    @property
    def outcome(self) -> Outcome:
        """What serves the GEMM, and why."""
        return outcome.of_hit(self.at_recorded, only_aten_reason(self.reason), self.disturbed)

    @property
    def kernels(self) -> tuple[Config, ...]:
        """The configs that serve the GEMM: several if a range of M is split among them."""
        if self.hit is None:
            return (ATEN,)
        return tuple(dict.fromkeys(config for config, _ in self.hit.kernels(self.query.ranges)))

    @property
    def rung(self) -> str:
        """The rung of the hit, or `miss`."""
        return self.hit.rung if self.hit else MISS

    @property
    def calls(self) -> int:
        """Number of calls; one call per occurrence if calls were not counted."""
        return self.entry.calls or self.entry.count

    @property
    def gain(self) -> float:
        """Expected speedup over ATen; 1 for a miss."""
        return self.expected.value

    @property
    def aten_us(self) -> float:
        """Microseconds of all calls with ATen."""
        return self.all_calls.before

    @property
    def may_save_us(self) -> float | None:
        """Microseconds of all calls that a build may save; None if unknown, or if no build is needed."""
        return self.saving.us * self.calls if self.saving else None


@dataclass(frozen=True)
class WorkloadReport:
    """A workload against the tables. `products`: the most expensive first; `uncovered`: (name, occurrences, calls) of
    the GEMMs that gemmdb does not handle."""

    name: str
    products: tuple[Product, ...]
    uncovered: tuple[tuple[str, int, int], ...] = ()

    @property
    def total_us(self) -> float:
        """Microseconds of all calls of all GEMMs, as served."""
        return sum(one.total_us for one in self.products)

    @property
    def aten_us(self) -> float:
        """Microseconds of all calls of all GEMMs with ATen."""
        return sum(one.aten_us for one in self.products)

    @property
    def gain(self) -> float:
        """Speedup over ATen across all GEMMs, weighted by their time; 1 without GEMMs."""
        return self.expected.value

    @property
    def expected(self) -> Gain:
        """That speedup with its interval, which covers the noise of measured times."""
        return weighted(one.all_calls for one in self.products)

    @property
    def may_save_us(self) -> float:
        """Microseconds that a build may save on the misses, as far as known."""
        return sum(one.may_save_us or 0.0 for one in self.products)

    def document(self) -> dict[str, Any]:
        """Return the page data."""
        shown = [_product(one) for one in self.products[:MAX_PRODUCTS]]
        return _document(self, self.expected, shown, len(self.products) - len(shown), self.uncovered)


def of_workload(workload: Workload, name: str, catalog: Catalog, policy: Policy = DEFAULT) -> WorkloadReport:
    """Return the report of a workload, titled `name`. `policy`: lookup policy. Raises InputError for an invalid device
    or range."""
    with BusyTimes(catalog.tables) as busy:
        found = [_look_up(entry, catalog, policy, busy) for entry in workload.entries]
    products = sorted(found, key=lambda one: (-one.total_us, one.entry.problem.text))
    uncovered = sorted((name, *counts) for name, counts in workload.uncovered.items())
    return WorkloadReport(name, tuple(products), tuple(uncovered))


def _look_up(entry: Entry, catalog: Catalog, policy: Policy, busy: BusyTimes) -> Product:
    asked = look_up(entry, catalog, policy)
    hit, query = asked.hit, asked.query
    loaded = hit is not None and busy.has(hit.table, query.problem, query.device, hit.config.text)
    if hit is not None and asked.served:
        return Product(entry, asked.device, hit, busy=loaded)
    steps = explain(query, catalog, policy, installed(query.device.kind))
    if hit is not None:
        said = next((step.reason for step in steps if step.hit is not None), "")  # The first hit is served.
        return Product(entry, asked.device, hit, asked.disturbed, reason=said[:MAX_REASON], busy=loaded)
    reason = "; ".join(filter(None, (str(only_aten(query) or ""), *(f"{step.rung}: {step.reason}" for step in steps))))
    return Product(entry, asked.device, None, saving=asked.saving, reason=reason[:MAX_REASON])


def save(report: Report, path: Path) -> None:
    """Write the page of a program's report. Raises InputError."""
    import gemmdb
    from gemmdb.report import page

    page.write(page.render({**program_document(report), "version": gemmdb.__version__}), path)


def program_document(report: Report) -> dict[str, Any]:
    """Return the page data for a running program, as for a workload whose graphs were each called once."""
    uncovered = [(name, count, count) for name, count in report.uncovered]
    with BusyTimes() as busy:
        products = [_served(one, busy) for one in report.products[:MAX_PRODUCTS]]
    return _document(report, report.gain, products, len(report.products) - len(products), uncovered)


def _document(
    report: WorkloadReport | Report, gain: Gain, products: list[dict[str, Any]], smaller: int,
    uncovered: Sequence[tuple[str, int, int]],
) -> dict[str, Any]:  # fmt: skip
    return {
        "kind": "workload",
        "title": report.name,
        "total_us": report.total_us,
        "aten_us": report.aten_us,
        "gain": gain.value,
        "interval": [gain.low, gain.high],
        "ranged": gain.ranged,
        "may_save_us": report.may_save_us,
        "products": products,
        "smaller": smaller,
        "uncovered": [{"name": name[:200], "count": count, "calls": calls} for name, count, calls in uncovered],
    }


def _ends(gain: Gain) -> list[float] | None:
    """Return the ends of a gain over a range of which no size is known; None for any other."""
    return [gain.low, gain.high] if gain.ranged else None


def _product(one: Product) -> dict[str, Any]:
    config, entry = one.hit.config if one.hit else ATEN, one.entry
    kernels = one.kernels
    return {
        **sizes(entry.problem),
        "problem": entry.problem.text,
        "ranges": {name: [low, high] for name, low, high in entry.ranges},
        "device": one.device.sku,
        "rung": one.rung,
        "backend": config.backend,
        "kernel": " / ".join(dict.fromkeys(map(names.kernel, kernels))),
        "config": "; ".join(kernel.text for kernel in kernels),
        "aten": not one.runs_kernel,
        "outcome": one.outcome.kind.value,
        "why": one.outcome.reason[:MAX_REASON],
        "busy": one.busy,
        "gain": one.gain,
        "gains": _ends(one.expected),
        "us": one.time_us,
        "calls": one.calls,
        "count": entry.count,
        "total_us": one.total_us,
        "aten_us": one.aten_us,
        "may_save_us": one.may_save_us,
        "table": one.hit.table if one.hit else "",
        "reason": one.reason,
        "origins": [str(place) for place in entry.origins],
    }


def _served(one: Served, busy: BusyTimes) -> dict[str, Any]:
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
        "outcome": one.outcome.kind.value,
        "why": one.outcome.reason[:MAX_REASON],
        "busy": busy.has(one.table, one.problem, one.device, one.config),
        "gain": one.gain,
        "gains": _ends(one.speedup),
        "us": one.us,
        "calls": one.count,
        "count": one.count,
        "total_us": one.total_us,
        "aten_us": one.total_us * one.gain,
        "may_save_us": one.saving.us * one.count if one.saving else None,
        "table": one.table,
        "reason": one.why,
    }
