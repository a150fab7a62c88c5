"""The data of a running program's report: what `gemmdb.inductor.stats` says, product by product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemmdb.cost.roofline import roofline_us
from gemmdb.errors import InputError
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.ladder.ask import Ask
from gemmdb.ladder.saving import Saving, saving
from gemmdb.report import names
from gemmdb.report.table_document import sizes
from gemmdb.settings import Policy


@dataclass(frozen=True, slots=True)
class Served:
    """One product of the compiled graphs. `count`: how often it is in them; `rung`: what answered, `aten` for a miss;
    `expected_us`: microseconds of one call as compiled, None if no table says; `gain`: over ATen, 1 if unknown; `why`:
    why it is not what a table names, or why no table answers. `saving`: what a build may save of a miss."""

    problem: Problem
    device: Device
    count: int
    rung: str
    config: str
    expected_us: float | None
    gain: float
    table: str
    why: str
    saving: Saving | None

    @property
    def us(self) -> float:
        """Microseconds of one call: the expected ones, else an estimate."""
        if self.expected_us is not None:
            return self.expected_us
        return self.saving.aten_us if self.saving else roofline_us(self.problem, self.device)


@dataclass(frozen=True)
class ProgramReport:
    """What was compiled in a process. `uncovered`: (name, occurrences) of the products that gemmdb does not steer."""

    name: str
    products: tuple[Served, ...]
    uncovered: tuple[tuple[str, int], ...] = ()

    @property
    def total_us(self) -> float:
        """Microseconds of one call of every graph, as compiled."""
        return sum(one.us * one.count for one in self.products)

    @property
    def aten_us(self) -> float:
        """The same with ATen."""
        return sum(one.us * one.gain * one.count for one in self.products)

    @property
    def may_save_us(self) -> float:
        """Microseconds of one call of every graph that a build of the misses may save, as far as that can be said."""
        return sum(one.saving.us * one.count for one in self.products if one.saving)

    def document(self) -> dict[str, Any]:
        """What the page draws, as for a workload in which each graph was called once."""
        return {
            "kind": "workload",
            "title": self.name,
            "total_us": self.total_us,
            "aten_us": self.aten_us,
            "gain": self.aten_us / self.total_us if self.total_us else 1.0,
            "may_save_us": self.may_save_us,
            "products": [_product(one) for one in self.products],
            "smaller": 0,
            "uncovered": [{"name": name[:200], "count": n, "calls": n} for name, n in self.uncovered],
        }


def of_stats(stats: Mapping[str, Any], name: str) -> ProgramReport:
    """The report of what `stats()` returned, under a name. Products that it names by no problem are left out."""
    found = [one for one in map(_served, stats["products"]) if one is not None]
    found.sort(key=lambda one: (-one.us * one.count, one.problem.text))
    return ProgramReport(name, tuple(found), tuple(sorted(stats["uncovered"].items())))


def _served(one: Mapping[str, Any]) -> Served | None:
    try:
        problem, device = Problem.parse(one["problem"]), Device.parse(one["device"])
    except InputError:
        return None
    unanswered = one["rung"] == "aten" and one["config"] == ATEN.text
    return Served(
        problem, device, one["count"], "miss" if one["rung"] == "aten" else one["rung"], one["config"],
        one["expected_us"], one["speedup_vs_aten"] or 1.0, one["table"], one["note"],
        saving(Ask(Query(problem, device), (), Policy(), None)) if unanswered else None,
    )  # fmt: skip


def _product(one: Served) -> dict[str, Any]:
    try:
        config = Config.parse(one.config)
    except InputError:
        config = ATEN  # A choice of Inductor's own search.
    aten_us = one.us * one.gain * one.count
    return {
        **sizes(one.problem),
        "problem": one.problem.text,
        "ranges": {},
        "device": one.device.sku,
        "rung": one.rung,
        "backend": one.config.partition(":")[0],
        "kernel": names.kernel(config) if config.text == one.config else one.config,
        "config": one.config,
        "aten": one.config == ATEN.text,
        "gain": one.gain,
        "us": one.us,
        "calls": one.count,
        "count": one.count,
        "total_us": one.us * one.count,
        "aten_us": aten_us,
        "may_save_us": one.saving.us * one.count if one.saving else None,
        "table": one.table,
        "reason": one.why,
    }
