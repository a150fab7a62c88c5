"""A report of what gemmdb did for a program, product by product, and its words."""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from gemmdb.cost.roofline import roofline_us
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.ladder.saving import Saving
from gemmdb.table.stats import Gain, weighted

MOST = 30
"""The most products that are listed; the others are counted."""
LONGEST = 150
"""The most characters of a reason."""
SHORT = 20
"""A reason that is longer and that several products share stands once, below the table."""
RIGHT = frozenset((0, 1, 2, 3))
"""The columns of numbers."""


@dataclass(frozen=True, slots=True)
class Served:
    """One kind of product in the compiled graphs. `count`: how often it is in them; `rung`: what answered, `miss` if
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
    gemmdb does not steer; `errors`: failures inside gemmdb, which the compiles went on without. Calls are not counted:
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
        """What is expected over ATen for all products together, weighted by their time. Its interval knows the spread
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
        importlib.import_module("gemmdb.report.program").save(self, Path(path))

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return f"<pre>{escape(str(self))}</pre>"


def _lines(of: Report) -> Iterator[str]:
    graphs, products = _count(of.graphs, "graph"), sum(one.count for one in of.products)
    if not products:
        yield f"gemmdb: {of.name}: no product that gemmdb steers was compiled"
    else:
        low, high = of.gain.low, of.gain.high
        interval = "" if low == high else f", between {low:.2f}x and {high:.2f}x"
        yield f"gemmdb: {of.name}: {graphs} with {_count(products, 'product')}"
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
        yield f"not steered by gemmdb: {', '.join(f'{count} x {name}' for name, count in of.uncovered)}"
    for error in of.errors:
        yield f"a failure inside gemmdb, which the compile went on without: {_short(error)}"


def _table(of: Report) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("share", "count", "one call", "gain", "rung", "kernel", "product", "why ATen runs")]
    rows += [_row(one, of.total_us or 1.0) for one in of.products[:MOST]]
    times = Counter(row[-1] for row in rows)
    shared = [why for why, number in times.items() if number > 1 and len(why) > SHORT]
    marks = {why: f"({place})" for place, why in enumerate(shared, 1)}
    rows = [(*row[:-1], marks.get(row[-1], row[-1])) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            f"{cell:>{width}}" if place in RIGHT else f"{cell:<{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
    for why, mark in marks.items():
        yield f"{mark} {why}"
    if rest := of.products[MOST:]:
        share = sum(one.total_us for one in rest) / (of.total_us or 1.0)
        yield f"and {_count(sum(one.count for one in rest), 'product')} of less time, {share:.1%} together"


def _row(one: Served, total_us: float) -> tuple[str, ...]:
    known = one.expected_us is not None
    return (
        f"{one.total_us / total_us:.1%}", str(one.count), f"{'' if known else '~'}{one.us:,.1f} us",
        f"{one.gain:.2f}x" if known else "-", one.rung, one.kernel, one.name,
        _short(one.why.split("; ")[0]) if one.aten else "",
    )  # fmt: skip


def _short(words: str) -> str:
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 3]}..."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
