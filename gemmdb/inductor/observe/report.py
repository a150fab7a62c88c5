"""`report()`: what gemmdb did for the model that this process compiled, GEMM by GEMM, and what it gained."""

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
from gemmdb.errors import InputError
from gemmdb.inductor.observe.journal import JOURNAL, ONLY_ATEN
from gemmdb.inductor.observe.stats import aligned, counted, failures, kernel_name, not_handled, shortened, stats
from gemmdb.kernels import names
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.saving import Saving, saving
from gemmdb.settings import Policy
from gemmdb.table.stats import Gain, weighted

MAX_LISTED = 30
"""The most GEMMs that are listed; the others are counted."""
MAX_INLINE_REASON = 20
"""A reason that is longer and that several GEMMs share stands once, below the table."""


@dataclass(frozen=True, slots=True)
class Served:
    """One kind of GEMM in the compiled graphs. `count`: how often it is in them; `rung`: what answered, `miss` if
    nothing; `config`, `kernel`: what runs, in full and in short; `name`: the problem in short; `expected_us`:
    microseconds of one call, None if no table says; `gain`: over ATen, 1 if unknown; `spread`: how far the time may be
    off, relative; `why`: why it is not what a table names, or why no table answers; `saving`: what a build may save of
    a miss."""

    problem: Problem
    device: Device
    count: int
    rung: str
    config: str
    kernel: str
    name: str
    expected_us: float | None = None
    gain: float = 1.0
    spread: float = 0.0
    table: str = ""
    why: str = ""
    ranges: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    saving: Saving | None = None

    @property
    def aten(self) -> bool:
        """Whether ATen runs it."""
        return self.config == ATEN.text

    @property
    def us(self) -> float:
        """Microseconds of one call: the expected ones, else an estimate."""
        if self.expected_us is not None:
            return self.expected_us
        return self.saving.aten_us if self.saving else roofline_us(self.problem, self.device)

    @property
    def total_us(self) -> float:
        """Microseconds of one call of each graph that it is in."""
        return self.us * self.count


@dataclass(frozen=True)
class Report:
    """What gemmdb did for a program. Print it, read it, or `save` it as a page. `name`: the program's; `graphs`: how
    many were compiled; `products`: those that take the most time first; `uncovered`: (name, occurrences) of those that
    gemmdb does not handle; `errors`: failures inside gemmdb, which the compiles went on without. Calls are not counted:
    each graph counts once."""

    name: str
    graphs: int = 0
    products: tuple[Served, ...] = ()
    uncovered: tuple[tuple[str, int], ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def total_us(self) -> float:
        """Microseconds of one call of every graph, as compiled."""
        return sum(one.total_us for one in self.products)

    @property
    def aten_us(self) -> float:
        """The same with ATen."""
        return sum(one.total_us * one.gain for one in self.products)

    @property
    def gain(self) -> Gain:
        """What is expected over ATen for all GEMMs together, weighted by their time. Its interval knows the spread
        of measured times, not how far predictions are off."""
        return weighted((one.total_us * one.gain, one.total_us, one.spread) for one in self.products)

    @property
    def may_save_us(self) -> float:
        """Microseconds of one call of every graph that a build of the misses may save, as far as that can be said."""
        return sum(one.saving.us * one.count for one in self.products if one.saving)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one HTML page. Needs `gemmdb[report]`; raises InputError without it, or if the page
        cannot be written."""
        # The page is drawn by a layer above this one, and only here.
        importlib.import_module("gemmdb.report.workload").save(self, Path(path))

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return f"<pre>{escape(str(self))}</pre>"


def report(path: str | os.PathLike[str] | None = None, name: str = "this program") -> Report:
    """What gemmdb did in this process since its start or `reset_stats`, GEMM by GEMM, and what it gained; also for
    graphs that came from a warm cache. Print it, or give a `path` to write it as one HTML page too.

    Of each kind of GEMM it says how often it is in the compiled graphs, its share of their time, its kernel, the rung
    that answered, the expected gain of a call over ATen, and why ATen runs where it does. Calls of graphs are not
    counted, so each graph counts once; `gemmdb report -- python program.py` counts them.

    `name`: what the report calls the program. Raises InputError if the page cannot be written, or without
    `gemmdb[report]`, which only the page needs.
    """
    found = of_stats(stats(), name, JOURNAL.graphs)
    if path is not None:
        found.save(path)
    return found


def of_stats(said: Mapping[str, Any], name: str, graphs: int = 0) -> Report:
    """The report of what `stats()` returned. GEMMs that it names by no problem are left out."""
    found = [one for one in map(_served, said["products"]) if one is not None]
    found.sort(key=lambda one: (-one.total_us, one.problem.text))
    uncovered = tuple(sorted(said["uncovered"].items()))
    return Report(name, graphs, tuple(found), uncovered, tuple(said.get("errors", ())))


def _served(one: Mapping[str, Any]) -> Served | None:
    try:
        problem, device = Problem.parse(one["problem"]), Device.parse(one["device"])
    except InputError:
        return None
    evidence = one.get("evidence", {})
    spread = evidence.get("spread", 0.0)
    missed = one["rung"] == "aten"
    unanswered = missed and one["config"] == ATEN.text and ONLY_ATEN not in one["note"]
    ranges = {side: (ends[0], ends[1]) for side, ends in one.get("ranges", {}).items()}
    return Served(
        problem, device, one["count"], "miss" if missed else one["rung"], one["config"], kernel_name(one["config"]),
        names.ranged(names.short(problem), ranges), one["expected_us"], one["speedup_vs_aten"] or 1.0,
        spread if isinstance(spread, float) else 0.0, one["table"], one["note"] or _why_aten(one["config"], evidence),
        ranges, saving(Ask(Query(problem, device), (), Policy(), None)) if unanswered else None,
    )  # fmt: skip


def _why_aten(config: str, evidence: Mapping[str, Any]) -> str:
    """Why a table's answer is ATen; empty if it is not."""
    if config != ATEN.text:
        return ""
    if "why" in evidence:
        return str(evidence["why"])
    if held := evidence.get("held_back"):
        return f"{kernel_name(held['config'])} gains {held['gain']:.1%} only, and {held['needed']:.1%} is needed"
    if refused := evidence.get("refused"):
        return f"{kernel_name(refused[0]['config'])} may not be served: {refused[0]['reason']}"
    return "nothing measured is faster"


def _lines(of: Report) -> Iterator[str]:
    graphs, products = counted(of.graphs, "graph"), sum(one.count for one in of.products)
    if not products:
        yield f"gemmdb: {of.name}: no GEMM that gemmdb handles was compiled"
    else:
        low, high = of.gain.low, of.gain.high
        interval = "" if low == high else f", between {low:.2f}x and {high:.2f}x"
        yield f"gemmdb: {of.name}: {graphs} with {counted(products, 'GEMM')}"
        yield (
            f"expected over ATen, weighted by time: {of.gain.value:.2f}x{interval}"
            f" ({of.total_us:,.1f} us instead of {of.aten_us:,.1f} for a call of each graph)"
        )
        yield ""
        yield from _table(of)
    if of.may_save_us:
        yield ""
        yield (
            f"a build of what no table answers may save about {of.may_save_us:,.1f} us of that:"
            " gemmdb tune -- python PROGRAM"
        )
    if of.uncovered:
        yield ""
        yield f"not handled by gemmdb: {not_handled(dict(of.uncovered))}"
    yield from failures(of.errors)


def _table(of: Report) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("share", "count", "one call", "gain", "rung", "kernel", "GEMM", "why ATen runs")]
    rows += [_row(one, of.total_us or 1.0) for one in of.products[:MAX_LISTED]]
    times = Counter(row[-1] for row in rows)
    shared = [why for why, number in times.items() if number > 1 and len(why) > MAX_INLINE_REASON]
    marks = {why: f"({place})" for place, why in enumerate(shared, 1)}
    yield from aligned([(*row[:-1], marks.get(row[-1], row[-1])) for row in rows], right=range(4))
    for why, mark in marks.items():
        yield f"{mark} {why}"
    if rest := of.products[MAX_LISTED:]:
        share = sum(one.total_us for one in rest) / (of.total_us or 1.0)
        yield f"and {counted(sum(one.count for one in rest), 'GEMM')} of less time, {share:.1%} together"


def _row(one: Served, total_us: float) -> tuple[str, ...]:
    known = one.expected_us is not None
    return (
        f"{one.total_us / total_us:.1%}", str(one.count), f"{'' if known else '~'}{one.us:,.1f} us",
        f"{one.gain:.2f}x" if known else "-", one.rung, one.kernel, one.name,
        shortened(one.why.split("; ")[0]) if one.aten else "",
    )  # fmt: skip
