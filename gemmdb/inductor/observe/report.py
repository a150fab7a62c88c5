"""`report()`: gemmdb's results for the model compiled in this process, per GEMM, with the speedups."""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from gemmdb.cost.roofline import roofline_us
from gemmdb.errors import InputError, checks_arguments
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.inductor.observe.stats import (
    aligned,
    counted,
    failures,
    kernel_name,
    not_handled,
    nothing,
    respelled,
    shortened,
    stats,
    tune_line,
)
from gemmdb.kernels import names
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.over_sizes import gain_of
from gemmdb.lookup.saving import Saving, saving
from gemmdb.outcome import Kind, Outcome
from gemmdb.settings import Policy
from gemmdb.table.stats import Gain, Part, weighted

MAX_LISTED = 30
"""Maximum number of listed GEMMs; the rest are only counted."""
MAX_INLINE_REASON = 20
"""Minimum length of a shared reason that is printed once, below the table."""

_TABLE = Outcome(Kind.TABLE)


@dataclass(frozen=True, slots=True)
class Served:
    """One kind of GEMM in the compiled graphs. `count`: occurrences; `rung`: the rung that answered, `miss` if none;
    `config`, `kernel`: full and short name of the kernel; `name`: short name of the problem; `expected_us`:
    microseconds per call, None if no table has a time; `gain`: speedup over ATen, 1 if unknown, of symbolic sizes at
    those of the compile; `speedup`: the same with its interval, over the range of symbolic sizes; `why`: why the kernel
    differs from the table's, or why no table answers; `saving`: estimated saving from a build, for a miss; `outcome`:
    what serves it, and why."""

    problem: Problem
    device: Device
    count: int
    rung: str
    config: str
    kernel: str
    name: str
    expected_us: float | None = None
    gain: float = 1.0
    speedup: Gain = field(default_factory=lambda: Gain(1.0, 1.0, 1.0))
    table: str = ""
    why: str = ""
    ranges: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    saving: Saving | None = None
    outcome: Outcome = _TABLE

    @property
    def aten(self) -> bool:
        """Whether ATen runs the GEMM, at all sizes of a range."""
        return self.outcome.kind.aten

    @property
    def us(self) -> float:
        """Microseconds per call: expected if known, else an estimate."""
        if self.expected_us is not None:
            return self.expected_us
        return self.saving.aten_us if self.saving else roofline_us(self.problem, self.device)

    @property
    def total_us(self) -> float:
        """Microseconds for one call of each graph that contains it."""
        return self.us * self.count

    @property
    def all_calls(self) -> Part:
        """These microseconds, with ATen and as compiled."""
        gain, aten_us = self.speedup, self.total_us * self.gain
        return Part(aten_us, self.total_us, aten_us / gain.high, aten_us / gain.low, gain.ranged)


@dataclass(frozen=True)
class Report:
    """gemmdb's results for a program. Print it, read its fields, or `save` it as a page. `name`: the program's name;
    `graphs`: number of compiled graphs; `products`: GEMMs, slowest first; `uncovered`: (name, occurrences) of GEMMs
    that gemmdb does not handle; `errors`: failures inside gemmdb, after which the compiles continued without it. Calls
    are not counted: each graph counts once."""

    name: str
    graphs: int = 0
    products: tuple[Served, ...] = ()
    uncovered: tuple[tuple[str, int], ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def total_us(self) -> float:
        """Microseconds for one call of every graph, as compiled."""
        return sum(one.total_us for one in self.products)

    @property
    def aten_us(self) -> float:
        """Microseconds for one call of every graph, with ATen."""
        return sum(one.total_us * one.gain for one in self.products)

    @property
    def gain(self) -> Gain:
        """Expected speedup over ATen for all GEMMs, weighted by time. The interval covers the spread of measured times,
        but not the error of predictions."""
        return weighted(one.all_calls for one in self.products)

    @property
    def may_save_us(self) -> float:
        """Estimated microseconds that a build of the misses may save per call of every graph."""
        return sum(one.saving.us * one.count for one in self.products if one.saving)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one HTML page. Raises InputError without `gemmdb[report]`, or if the page cannot be
        written."""
        # The page is drawn by a higher layer; this is the only import of it.
        importlib.import_module("gemmdb.report.workload").save(self, Path(path))

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def _repr_html_(self) -> str:
        """Notebook representation."""
        return f"<pre>{escape(str(self))}</pre>"


@checks_arguments
def report(path: str | os.PathLike[str] | None = None, name: str = "this program") -> Report:
    """Return a report of gemmdb's results in this process since its start or `reset_stats`, per GEMM, with the
    speedups. It includes graphs from a warm cache. Print it, or pass a `path` to write it as one HTML page too.

    For each kind of GEMM it lists occurrences, share of time, kernel, the rung that answered, the expected speedup over
    ATen, and why ATen runs where it does. Each graph counts once, because calls are not counted; `gemmdb report --
    python program.py` counts them.

    `name`: the program's name in the report. Raises InputError if the page cannot be written, or without
    `gemmdb[report]`, which only the page needs.
    """
    found = of_stats(stats(), name, JOURNAL.graphs)
    if path is not None:
        found.save(path)
    return found


def of_stats(said: Mapping[str, Any], name: str, graphs: int = 0) -> Report:
    """Build the report from the result of `stats()`. GEMMs without a problem are omitted."""
    found = [one for one in map(_served, said["products"]) if one is not None]
    found.sort(key=lambda one: (-one.total_us, one.problem.text))
    uncovered = tuple(sorted(said["uncovered"].items()))
    return Report(name, graphs, tuple(found), uncovered, tuple(said.get("errors", ())))


def _served(one: Mapping[str, Any]) -> Served | None:
    try:
        problem, device = Problem.parse(one["problem"]), Device.parse(one["device"])
    except InputError:
        return None
    serves = Outcome(Kind(one["outcome"]), one["why"])
    missed = one["rung"] == "aten"
    unanswered = missed and serves.kind is Kind.ATEN_UNKNOWN
    ranges = {side: (ends[0], ends[1]) for side, ends in one.get("ranges", {}).items()}
    return Served(
        problem, device, one["count"], "miss" if missed else one["rung"], one["config"], kernel_name(one["config"]),
        names.ranged(names.short(problem), ranges), one["expected_us"], one["speedup_vs_aten"] or 1.0,
        gain_of(one) or Gain(1.0, 1.0, 1.0), one["table"], one["note"] or serves.reason, ranges,
        saving(Ask(Query(problem, device), (), Policy(), None)) if unanswered else None, serves,
    )  # fmt: skip


def _lines(of: Report) -> Iterator[str]:
    graphs, products = counted(of.graphs, "graph"), sum(one.count for one in of.products)
    if not products:
        yield f"gemmdb: {of.name}: {nothing('no GEMM that gemmdb handles was compiled')}"
    else:
        yield f"gemmdb: {of.name}: {graphs} with {counted(products, 'GEMM')}"
        yield _expected(of)
        yield ""
        yield from _table(of)
    if changed := respelled((one.why, one.count) for one in of.products):
        yield ""
        yield changed
    if of.may_save_us:
        yield ""
        yield (
            f"a build for the GEMMs that no table answers may save about {of.may_save_us:,.1f} us of that:"
            f" {tune_line()}"
        )
    if of.uncovered:
        yield ""
        yield f"not handled by gemmdb: {not_handled(dict(of.uncovered))}"
    yield from failures(of.errors)


def _expected(of: Report) -> str:
    """Format the expected gain, unless nothing is known or nothing but ATen runs."""
    if all(one.expected_us is None for one in of.products):
        return "expected over ATen: nothing is known, no table has times of these GEMMs"
    if all(one.outcome.kind.aten for one in of.products):
        return f"expected over ATen: no gain, ATen runs every GEMM ({of.total_us:,.1f} us per call of each graph)"
    return (
        f"expected over ATen, weighted by time: {of.gain}"
        f" ({of.total_us:,.1f} us instead of {of.aten_us:,.1f} per call of each graph)"
    )


def _table(of: Report) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("share", "count", "one call", "gain", "outcome", "kernel", "GEMM", "why ATen runs")]
    rows += [_row(one, of.total_us or 1.0) for one in of.products[:MAX_LISTED]]
    times = Counter(row[-1] for row in rows)
    shared = [why for why, number in times.items() if number > 1 and len(why) > MAX_INLINE_REASON]
    marks = {why: f"({place})" for place, why in enumerate(shared, 1)}
    yield from aligned([(*row[:-1], marks.get(row[-1], row[-1])) for row in rows], right=range(4))
    for why, mark in marks.items():
        yield f"{mark} {why}"
    if rest := of.products[MAX_LISTED:]:
        share = sum(one.total_us for one in rest) / (of.total_us or 1.0)
        yield f"and {counted(sum(one.count for one in rest), 'more GEMM')}, {share:.1%} together"


def _row(one: Served, total_us: float) -> tuple[str, ...]:
    known = one.expected_us is not None
    gain = one.speedup.short if known and not one.outcome.kind.aten else "-"
    return (
        f"{one.total_us / total_us:.1%}", str(one.count), f"{'' if known else '~'}{one.us:,.1f} us",
        gain, one.outcome.kind.value, one.kernel, one.name,
        shortened(one.outcome.reason),
    )  # fmt: skip
