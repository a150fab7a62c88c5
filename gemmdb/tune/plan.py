"""Plans a build of a workload's misses: orders them by expected savings and fits them into a time budget."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gemmdb.errors import InputError
from gemmdb.files import can_replace
from gemmdb.generators import effort as efforts
from gemmdb.generators import estimate
from gemmdb.generators.backend import Backend
from gemmdb.generators.build import queue, recorded
from gemmdb.generators.coverage import look_up
from gemmdb.generators.effort import Effort
from gemmdb.generators.measure import backends
from gemmdb.generators.measure.candidates import alone, range_rejection
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import installed
from gemmdb.lookup import disturbed_sizes
from gemmdb.lookup.acceptance.ranges import unmeasured
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.over_sizes import mean_roofline_us, mean_saving
from gemmdb.lookup.saving import Saving
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy, data_home
from gemmdb.table.catalog import Catalog
from gemmdb.table.reader import Table
from gemmdb.workload.entries import Entry, Origin, Ranges, Workload, merged_origins
from gemmdb.workload.seen import Seen, merged

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_BUDGET = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")

NO_GAIN = Rejected("it is too small or too close to the limit of the device to gain")
MEASURED = Rejected("measured before: the lookup still has no answer for its range of sizes, or ATen failed")
STILL_BUSY = Rejected("it was timed only while other programs kept the machine busy, as they do now")
OTHER_DEVICE = Rejected("it runs on another device than most of the time")
LOOKUP = Policy(sku=False)
"""Policy that defines a miss: a build also measures GEMMs that only hit another GPU's rows."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A GEMM that misses in all tables, or at some sizes of its range. `calls`: how often it ran; `us`: expected
    microseconds per call with ATen; `saving`: microseconds per call that a build may save, None if unknown (on a CPU);
    `seconds`: expected build time with all sizes of its range; `least_s`: if the first sizes rule out a kernel for the
    range; `origins`: its locations in the user's code; `ranges`: ranges of symbolic sizes;
    `missing`: the sizes of its range that miss, empty for fixed sizes; `disturbed`: whether its timings were. `seen`,
    `computed`: as of an Entry. The times are means over the sizes that were seen."""

    problem: Problem
    device: Device
    calls: int
    us: float
    saving: Saving | None
    seconds: float
    origins: tuple[Origin, ...] = ()
    ranges: Ranges = ()
    missing: tuple[Problem, ...] = ()
    least_s: float = 0.0
    disturbed: bool = False
    seen: Seen = ()
    computed: bool = False

    @property
    def entry(self) -> Entry:
        """The line of a workload that a build reads."""
        return Entry(
            self.problem, 1, self.calls, self.device.text, self.ranges, seen=self.seen, computed=self.computed
        )  # fmt: skip

    @property
    def worth_us(self) -> float:
        """Microseconds over all calls that building it may save. If unknown, the total time of the calls."""
        return self.calls * (self.us if self.saving is None else self.saving.us)


@dataclass(frozen=True)
class Plan:
    """GEMMs to build, most valuable first, and how many are left out, by reason. `budget_s`: the time limit; `start_s`:
    expected seconds before the first is measured; `slower`: how many times as long as on an idle machine all takes,
    which the seconds contain, None if it waits for one."""

    wanted: tuple[Wanted, ...]
    left_out: dict[str, int]
    budget_s: float
    start_s: float = 0.0
    slower: float | None = None

    @property
    def fitting(self) -> int:
        """How many of `wanted`, from the first, should be built within the budget."""
        spent_s, number = self.start_s, 0
        for one in self.wanted:
            spent_s += one.seconds
            if spent_s > (1 + estimate.MAX_OVERRUN) * self.budget_s:
                break
            number += 1
        return number

    @property
    def first_s(self) -> float:
        """Expected seconds until the first of `wanted` is built; 0 if there is none."""
        return self.start_s + self.wanted[0].seconds if self.wanted else 0.0

    @property
    def seconds(self) -> float:
        """Expected build time within the budget, in seconds: of what fits, or all of it if nothing does."""
        fitting = self.wanted[: self.fitting]
        # All sizes of ranges need a second round with new processes.
        again_s = self.start_s if any(0 < one.least_s < one.seconds for one in fitting) else 0.0
        return self._within([again_s, *(one.seconds for one in fitting)])

    @property
    def least_s(self) -> float:
        """Expected build time of what fits if no kernel can serve a range, in seconds."""
        return self._within(one.least_s or one.seconds for one in self.wanted[: self.fitting])

    def _within(self, seconds: Iterable[float]) -> float:
        if self.wanted and not self.fitting:
            return self.budget_s
        return min(self.start_s + sum(seconds), self.budget_s)

    @property
    def saving_us(self) -> float | None:
        """Microseconds over all calls that building what fits may save; None if unknown."""
        known = [one.worth_us for one in self.wanted[: self.fitting] if one.saving is not None]
        return sum(known) if known else None


def seconds(text: str, option: str = "--budget", least: float = 1e-9) -> float:
    """Parse a time such as `90s`, `10m` or `1h30m` into seconds. Raises InputError, which names the `option`, also for
    less than `least` seconds."""
    found = _BUDGET.fullmatch(text.strip())
    parts = zip(_UNITS.values(), found.groups(), strict=True) if found else []
    total = sum(size * float(number) for size, number in parts if number)
    if not found or not text.strip() or not least <= total < 1e7:
        raise InputError(f"{option} {text!r}: a time such as 90s, 10m or 1h30m")
    return total


def check_table(path: Path) -> None:
    """Raise InputError or TableError for a file that a build cannot write, before the program runs, which may take an
    hour."""
    is_empty = path.is_file() and not path.stat().st_size
    if path.exists() and not is_empty:
        with Table.open(path) as table:
            if table.packed:
                raise InputError(f"{path} is packed, and nothing can be added to it: name another --table")
    target = Path(os.path.realpath(path))
    if target.exists():
        if not can_replace(target):
            raise InputError(
                f"{path} cannot be written: check its permissions and its folder's, or name another --table"
            )
        return
    folder = next(one for one in target.parents if one.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path} cannot be made in {folder}: name another --table")


def by_worth(wanted: Iterable[Wanted]) -> list[Wanted]:
    """Sort most valuable first: possible saving per call times the number of calls."""
    return sorted(wanted, key=lambda one: (-one.worth_us, one.problem.text))


def plan(
    workload: Workload, catalog: Catalog, table: Path | None, budget_s: float, effort: str | None, pace: float = 1.0,
    busy: bool = False,
) -> Plan:  # fmt: skip
    """Plan which GEMMs of a workload to build into `table` (None: the user table for the device). `effort`: as for a
    build. `pace`: how many times as long as expected an earlier build took. `busy`: the build does not wait for an idle
    machine. Raises InputError for an invalid device or range, or an unknown effort."""
    missed = _missed(workload.entries, catalog)
    worth: dict[Device, float] = defaultdict(float)
    for one in missed:
        worth[one.device] += one.worth_us
    if not missed:
        return Plan((), {}, budget_s)
    device = max(worth, key=lambda device: (worth[device], device.text))  # A table covers one device.
    backend, chosen = backends.backend_for(device), efforts.named(effort, device.kind)
    path = table or data_home() / f"{device.slug}.db"
    left_out: Counter[str] = Counter()
    idle = queue.idleness(backend) if busy else queue.will_be_idle
    wanted = []
    for one in missed:
        rejected = OTHER_DEVICE if one.device != device else _rejection(one, backend, chosen, (path, catalog), idle)
        if rejected is not None:
            left_out[rejected.reason] += 1
        else:
            wanted.append(one)
    slower = backend.slowdown() if busy and wanted else None
    ordered, alone_s = by_worth(wanted), pace * (slower or 1.0) / max(backend.workers, 1)
    timed = _with_seconds(ordered, backend, chosen, alone_s)
    start_s = pace * estimate.start_s(backend, chosen, slower or 1.0) if timed else 0.0
    return Plan(timed, dict(left_out), budget_s, start_s, slower)


def _with_seconds(wanted: Sequence[Wanted], backend: Backend, effort: Effort, pace: float) -> tuple[Wanted, ...]:
    """Return GEMMs, in the order of the build, with the seconds that their sizes take that no GEMM before them has."""
    seen: set[Problem] = set()
    found = []
    for one in wanted:
        most, least = ([size for size in sizes if size not in seen] for sizes in _sizes(one))
        seconds = {size: pace * estimate.problem_s(size, backend, effort) for size in most}
        found.append(replace(one, seconds=sum(seconds.values()), least_s=sum(seconds[size] for size in least)))
        seen |= seconds.keys()
    return tuple(found)


def _sizes(one: Wanted) -> tuple[list[Problem], list[Problem]]:
    """Return the sizes that a build measures for a GEMM at most, and those that it measures in any case."""
    first = (one.problem, *one.missing[:: recorded.STRIDE], *one.missing[-1:])
    return list(dict.fromkeys((one.problem, *one.missing))), list(dict.fromkeys(first))


def _missed(entries: Iterable[Entry], catalog: Catalog) -> list[Wanted]:
    """Return the GEMMs that miss, or whose times were all disturbed, one per problem, device and range."""
    found: dict[tuple[Problem, Device, Ranges], Wanted] = {}
    for entry in entries:
        answer = look_up(entry, catalog, LOOKUP)
        missing = () if answer.served else _missing(answer.query, catalog)
        lost = answer.disturbed and not answer.served  # The build repeats what was disturbed.
        if answer.hit is not None and not missing and not lost:
            continue
        if answer.hit is not None and lost and entry.ranges:
            again = disturbed_sizes(answer.hit, answer.query, catalog.tables)
            missing = tuple(dict.fromkeys((*missing, *again)))
        problem, device, calls = entry.problem, answer.device, entry.calls or entry.count
        key = problem, device, entry.ranges
        if known := found.get(key):
            places = merged_origins(known.origins, entry.origins)
            found[key] = replace(
                known, calls=known.calls + calls, origins=places, missing=missing, seen=merged(known.seen, entry.seen)
            )  # fmt: skip
            continue
        sizes = entry.sizes()
        expected = mean_saving(answer.query, sizes)
        us = expected.aten_us if expected else mean_roofline_us(answer.query, sizes)
        found[key] = Wanted(
            problem, device, calls, us, expected, 0.0, entry.origins, entry.ranges, missing, disturbed=lost,
            seen=entry.seen, computed=entry.computed,
        )  # fmt: skip
    return list(found.values())


def _missing(query: Query, catalog: Catalog) -> tuple[Problem, ...]:
    """Return the sizes of a range that miss; empty for fixed sizes."""
    at = Ask(query, catalog.tables, Policy(), installed(query.device.kind))
    return tuple(unmeasured(at)) if at.symbolic else ()


def _rejection(
    one: Wanted, backend: Backend, effort: Effort, tables: tuple[Path, Catalog], idle: Callable[[], bool]
) -> Rejected | None:
    """Return why a GEMM is not built; None if it is. `tables`: the one that is built, and all; `idle`: as for
    `queue.left`."""
    table, catalog = tables
    if one.saving is not None and one.saving.us <= 0:
        return NO_GAIN
    query = one.entry.query(one.device)
    if rejected := alone(query, backend.space, effort):
        return rejected
    if one.missing:
        return range_rejection(
            Ask(query, catalog.tables, Policy(), backend.toolchain), one.missing, backend.space, effort
        )
    if queue.left(queue.jobs([one.problem], backend, effort), table, backend, effort, idle):
        return None
    return STILL_BUSY if one.disturbed else MEASURED
