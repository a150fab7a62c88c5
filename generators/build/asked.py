"""What a build of a workload measures: what the ladder will ask, and not what ends in ATen whatever the times are.

A product whose sizes are symbolic is asked at several sizes of its range. All of them are measured only if a few of
them leave the chance that a kernel other than ATen serves the range.
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
from gemmdb.generators.measure.candidates import fits, only_aten, too_long
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import ranges
from gemmdb.lookup.ask import Ask
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog
from gemmdb.table.reader import Table
from gemmdb.workload import entries

ROUNDS = 3
"""How often a build looks what the ladder still lacks for the ranges: at some of their sizes, at all, and at all sizes
of the product without its epilogue, where a range is divided."""
STRIDE = 4
"""At first every fourth size of a range is measured."""
NO_KERNEL = "no single kernel is good at all sizes of its range"


@dataclass(frozen=True)
class Recorded:
    """The products of a workload for one device: those of fixed sizes, and the queries of those with ranges."""

    fixed: tuple[Problem, ...]
    ranged: tuple[Query, ...]


@dataclass(frozen=True)
class Wanted:
    """The problems to measure first, the ranges that they begin, and what is left out: products by reason."""

    problems: tuple[Problem, ...]
    ranged: tuple[Query, ...]
    left_out: Counter[str]


def recorded(name: str | None, problems: Sequence[Problem], device: Device) -> Recorded | None:
    """What the workload `name` asks of the selected problems on a device; None for a preset or a shapes file."""
    if name is None or name in shapes.presets():
        return None
    try:
        found = entries.read(Path(name)).entries
    except InputError:
        return None  # A shapes file.
    chosen = set(problems)
    mine = [one for one in found if one.problem in chosen]
    fixed = dict.fromkeys(one.problem for one in mine if not _moves(one))
    ranged = dict.fromkeys((one.problem, one.ranges) for one in mine if _moves(one))
    return Recorded(
        tuple(fixed),
        tuple(Query(problem, device, {name: (low, high) for name, low, high in said}) for problem, said in ranged),
    )


@dataclass(frozen=True)
class Tables:
    """What the ladder is asked with while a build writes `built`, a table that is there: all tables, `built` first.
    They stay open from one round to the next, and what was read of those that nobody writes is not read again."""

    built: Table
    catalog: Catalog

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: Path) -> Iterator[Tables]:
        """The tables of a build into `path`, open as long as the block lasts. Raises TableError."""
        with Table.open(path) as built, contextlib.closing(Catalog.load(tables=[path])) as catalog:
            yield cls(built, catalog)

    def ask(self, query: Query, backend: Backend) -> Ask:
        """The question of a lookup."""
        return Ask(query, self.catalog.tables, Policy(), backend.toolchain)


def first(of: Recorded, backend: Backend, effort: Effort, tables: Tables) -> Wanted:
    """What is measured at first: fixed sizes, and of each range the hint, the ends and every STRIDE-th size."""
    left_out: Counter[str] = Counter()
    wanted: dict[Problem, None] = {}
    for problem in of.fixed:
        if reason := only_aten(problem, backend.device, backend.space, effort):
            left_out[str(reason)] += 1
        else:
            wanted[problem] = None
    begun = []
    for query in of.ranged:
        ask = tables.ask(query, backend)
        missing = ranges.unmeasured(ask)
        reason = only_aten(query.problem, backend.device, backend.space, effort)
        reason = reason or too_long(ask, missing, backend.space, effort)
        if reason:
            left_out[str(reason)] += 1
        else:
            begun.append(query)
            some = [query.problem, *_some(ask, missing, tables.built)]
            wanted |= dict.fromkeys(one for one in some if fits(one, backend.device, backend.space, effort))
    return Wanted(tuple(wanted), tuple(begun), left_out)


def further(ranged: Sequence[Query], backend: Backend, effort: Effort, tables: Tables) -> list[Problem]:
    """What the ladder still lacks for the ranges, after what was measured so far."""
    wanted: dict[Problem, None] = {}
    for query in ranged:
        missing = ranges.unmeasured(tables.ask(query, backend))
        wanted |= dict.fromkeys(one for one in missing if fits(one, backend.device, backend.space, effort))
    return list(wanted)


def in_vain(ranged: Sequence[Query], backend: Backend, tables: Tables) -> int:
    """How many of the ranges have been measured and end in ATen all the same."""
    asks = [tables.ask(query, backend) for query in ranged]
    answers = [(ask, ranges.ranged(ask).hit) for ask in asks]
    return sum(
        hit is not None and hit.config == ATEN and not hit.branches and not ranges.unmeasured(ask)
        for ask, hit in answers
    )


def _some(ask: Ask, missing: Sequence[Problem], built: Table) -> list[Problem]:
    """The sizes to begin a range with: some of those that miss, and all that the table holds, since a busy machine may
    have timed these."""
    known = [one for one in ranges.buckets(ask) if built.verdict(one, ask.device) is not None]
    return [*missing[::STRIDE], *missing[-1:], *known]


def _moves(one: entries.Entry) -> bool:
    return any(low != high for _, low, high in one.ranges)
