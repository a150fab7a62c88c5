"""Problems to measure for a recorded workload: those that lookups need, except those that fall back to ATen whatever
their times are.

A lookup of a GEMM with symbolic sizes needs several sizes of its range. All of them are measured only if the first few
show that a kernel other than ATen may serve the range.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmdb.errors import InputError
from gemmdb.generators import shapes
from gemmdb.generators.backend import Backend
from gemmdb.generators.effort import Effort
from gemmdb.generators.measure.candidates import alone, fits, range_rejection
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import symbolic
from gemmdb.lookup.acceptance import ranges
from gemmdb.lookup.ask import Ask
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog
from gemmdb.table.reader import Table
from gemmdb.workload import entries

ROUNDS = 3
"""Maximum rounds in which a build checks what lookups still lack for the ranges: at some of their sizes, at all sizes,
and at all sizes of the GEMM without its epilogue, if a range is split."""
STRIDE = 4
"""The first round measures every fourth size of a range."""


@dataclass(frozen=True)
class Recorded:
    """The GEMMs of a workload for one device: those with fixed sizes, and the queries of those with ranges."""

    fixed: tuple[Query, ...]
    ranged: tuple[Query, ...]


@dataclass(frozen=True)
class First:
    """Problems to measure first, the ranges that they belong to, and the number of GEMMs left out, by reason."""

    problems: tuple[Problem, ...]
    ranged: tuple[Query, ...]
    left_out: Counter[str]


def read(name: str | None, problems: Sequence[Problem], device: Device) -> Recorded | None:
    """Return the GEMMs that the workload `name` queries among the selected problems on a device; None for a preset or a
    shapes file."""
    if name is None or name in shapes.presets():
        return None
    try:
        found = entries.read(Path(name)).entries
    except InputError:
        return None  # A shapes file.
    chosen = set(problems)
    fixed: dict[Problem, Query] = {}
    ranged: dict[tuple[Problem, entries.Ranges], Query] = {}
    for entry in found:
        query = entry.query(device)
        if entry.problem not in chosen:
            continue
        if query.symbolic:
            ranged.setdefault((entry.problem, entry.ranges), query)
        else:
            fixed.setdefault(entry.problem, query)
    return Recorded(tuple(fixed.values()), tuple(ranged.values()))


@contextlib.contextmanager
def tables_with(path: Path) -> Iterator[tuple[Table, Catalog]]:
    """Yield the build's table and all tables, the build's first. They stay open between rounds, so tables that nobody
    writes are read only once. Raises TableError."""
    with Table.open(path) as built, contextlib.closing(Catalog.load(tables=[path])) as catalog:
        yield built, catalog


class Rounds:
    """Problems to measure in each round of a build. `tables`: see `tables_with`."""

    def __init__(self, backend: Backend, effort: Effort, tables: tuple[Table, Catalog]) -> None:
        self._device, self._space, self._effort = backend.device, backend.space, effort
        self._toolchain, (self._built, self._catalog) = backend.toolchain, tables

    def first(self, workload: Recorded) -> First:
        """Return the first round: fixed sizes and the recorded size of each range, then the ends and every STRIDE-th
        size of the ranges."""
        left_out: Counter[str] = Counter()
        wanted: dict[Problem, None] = {}
        further: dict[Problem, None] = {}
        for query in workload.fixed:
            if reason := alone(query, self._space, self._effort):
                left_out[str(reason)] += 1
            else:
                wanted[query.problem] = None
        begun = []
        for query in workload.ranged:
            ask = self._ask(query)
            missing = ranges.unmeasured(ask)
            reason = alone(query, self._space, self._effort)
            if reason := reason or range_rejection(ask, missing, self._space, self._effort):
                left_out[str(reason)] += 1
                continue
            begun.append(query)
            # The table's times may come from a busy machine.
            known = [one for one in symbolic.sizes(ask) if self._built.verdict(one, self._device) is not None]
            wanted |= dict.fromkeys(self._fitting([query.problem]))
            further |= dict.fromkeys(self._fitting((*missing[::STRIDE], *missing[-1:], *known)))
        return First(tuple(wanted | further), tuple(begun), left_out)

    def further(self, ranged: Sequence[Query]) -> list[Problem]:
        """Return what lookups still lack for the ranges after the measurements so far."""
        missing = [one for query in ranged for one in ranges.unmeasured(self._ask(query))]
        return list(dict.fromkeys(self._fitting(missing)))

    def without_kernel(self, ranged: Sequence[Query]) -> int:
        """Count the measured ranges that still fall back to ATen."""
        asks = [self._ask(query) for query in ranged]
        hits = [(ask, ranges.ranged(ask).hit) for ask in asks]
        return sum(
            hit is not None and hit.config == ATEN and not hit.branches and not ranges.unmeasured(ask)
            for ask, hit in hits
        )

    def _ask(self, query: Query) -> Ask:
        return Ask(query, self._catalog.tables, Policy(), self._toolchain)

    def _fitting(self, problems: Sequence[Problem]) -> list[Problem]:
        return [one for one in problems if fits(one, self._device, self._space, self._effort)]
