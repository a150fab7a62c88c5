"""After an upgrade of the driver, torch, Triton or cuBLAS: re-time what a program needs, and store the new verdicts.

The new rows go into a table of their own, which is listed before the old ones: a kernel that lost is demoted there, one
that still wins gets rows of the new toolchain. What was not re-timed, or not conclusively, keeps its old verdict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.files import check_target
from gemmdb.generators import effort, estimate
from gemmdb.generators.backend import Backend
from gemmdb.generators.measure.remeasure import Terms, check, local_backend, sampled_of
from gemmdb.generators.measure.remeasured import Checked, Remeasured, Sampled
from gemmdb.generators.progress import Progress
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Verdict, age, decide
from gemmdb.table.writer import Store
from gemmdb.workload.entries import Entry, Workload

BUDGET_S = 120.0
"""Default limit of the re-timing."""


@dataclass(frozen=True)
class Changed:
    """A verdict that no longer holds: the configs and speedups over ATen, recorded and now."""

    problem: Problem
    before: Config
    now: Config
    recorded: float
    found: float


@dataclass(frozen=True)
class Requalified:
    """The result. `checked`: the re-timed verdicts, the rest of which the budget left out; `unmeasured`: GEMMs of the
    workload without a verdict in the tables; `table`: the new table, None if nothing was conclusive; `changed`: the
    verdicts that no longer hold."""

    checked: Remeasured
    unmeasured: int
    table: Path | None
    changed: tuple[Changed, ...]


@dataclass(frozen=True)
class Limits:
    """`budget_s`: seconds of the re-timing; `wait_s`: as for `remeasure`."""

    budget_s: float = BUDGET_S
    wait_s: float | None = None


def requalify(
    workload: Workload, tables: Sequence[Table], out: Path, limits: Limits = Limits(),
    backend: Backend | None = None, progress: Progress | None = None,
) -> Requalified:  # fmt: skip
    """Re-time the verdicts that `tables`, in the order of lookups, have on the GEMMs of a workload, those first that
    take the most time, within a budget, and add each that is conclusive to a new table `out`. Ctrl-C ends it early.
    Raises InputError if `out` exists or cannot be written, or if this machine has no device of the workload."""
    check_target(out)
    with _Results(out) as results, ExitStack() as unless_checked:
        named = {Device.parse(one.device) for one in workload.entries if one.device}
        devices = named or {device for table in tables for device in table.devices()}
        backend = backend or local_backend(sorted(devices, key=lambda one: one.text), "the workload")
        unless_checked.callback(backend.close)
        wanted, unmeasured = needed(workload.entries, tables, backend)
        if not wanted:
            raise InputError(f"no table has verdicts for the workload on {backend.device.sku}: gemmdb tune builds them")
        slower = backend.slowdown() if limits.wait_s is None else 1.0
        chosen, left = _within(wanted, backend, limits.budget_s, slower)
        results.begin(backend)
        unless_checked.pop_all()  # `check` closes the backend.
        found = check(chosen, backend, progress, Terms(limits.wait_s, limits.budget_s, results.keep))
    changed = tuple(_changed(one) for one in found.done if _conclusive(one) and not one.holds)
    checked = replace(found, rest=(*found.rest, *left))
    return Requalified(checked, unmeasured, out if results.kept else None, changed)


class _Results:
    """The new table, a context manager. The file is made at once, so that no other process takes its name, and removed
    if nothing was conclusive. Each verdict is stored when it is checked. Raises InputError if the file exists."""

    def __init__(self, out: Path) -> None:
        self._out, self._run, self.kept = out, "", 0

    def __enter__(self) -> _Results:
        try:
            self._out.touch(exist_ok=False)
        except FileExistsError:
            why = "name a new file, so that only rows of this toolchain decide"
            raise InputError(f"{self._out} exists: {why}") from None
        try:
            self._store = Store.open(self._out)
        except BaseException:
            self._out.unlink()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._store.close()
        if not self.kept:
            self._out.unlink(missing_ok=True)

    def begin(self, backend: Backend) -> None:
        """Store what all rows have in common."""
        self._run = self._store.begin_run(
            {"command": "verify --requalify", "toolchain": backend.toolchain.text, "device": backend.device.text}
        )

    def keep(self, one: Checked) -> None:
        """Store a verdict if it is conclusive."""
        if _conclusive(one):
            self._store.add(replace(row, run=self._run) for row in one.rows)
            self._store.refresh()
            self.kept += 1


def needed(entries: Iterable[Entry], tables: Sequence[Table], backend: Backend) -> tuple[list[Sampled], int]:
    """Return the verdicts that serve a workload's GEMMs on the backend's device, the GEMMs that take the most time
    first, and how many GEMMs have none. For a range of sizes these are all measured sizes in it."""
    measured = _Measured(tables, backend.device)
    cost: dict[Problem, float] = defaultdict(float)
    found: dict[Problem, Sampled] = {}
    unmeasured = 0
    for entry in entries:
        if entry.device not in ("", backend.device.text):
            continue
        sizes = [(one, sampled) for one in measured.sizes(entry) if (sampled := measured.sampled(one, backend))]
        unmeasured += not sizes
        for problem, sampled in sizes:
            found[problem] = sampled
            cost[problem] += max(entry.calls, entry.count) * sampled.verdict.aten_us / len(sizes)
    return sorted(found.values(), key=lambda one: (-cost[one.verdict.problem], one.verdict.problem.text)), unmeasured


class _Measured:
    """What tables have measured on a device. The first table with a verdict on a problem counts, as in a lookup."""

    def __init__(self, tables: Sequence[Table], device: Device) -> None:
        self._tables, self._device = tables, device
        self._families: Mapping[int, list[Problem]] | None = None

    def sizes(self, entry: Entry) -> Iterator[Problem]:
        """Yield the problem of an entry, or those that were measured in its ranges."""
        if not entry.ranges:
            yield entry.problem
            return
        for problem in self._by_family().get(entry.problem.family_key, ()):
            if _inside(problem, entry):
                yield problem

    def sampled(self, problem: Problem, backend: Backend) -> Sampled | None:
        """Return the verdict on a problem with the times to compare: that of the toolchain's class, else the newest."""
        for table in self._tables:
            verdicts = [one for one in table.verdicts(problem, self._device) if one.protocol.clock != "model"]
            if verdicts:
                klass = backend.toolchain.klass
                return sampled_of(max(verdicts, key=lambda one: _fitness(one, klass)), table, self._device)
        return None

    def _by_family(self) -> Mapping[int, list[Problem]]:
        if self._families is None:
            known = dict.fromkeys(one for table in self._tables for one, on in table.decided() if on == self._device)
            self._families = families = defaultdict(list)
            for problem in known:
                families[problem.family_key].append(problem)
        return self._families


def _fitness(verdict: Verdict, klass: str) -> tuple[Any, ...]:
    return verdict.klass == klass, verdict.protocol.l2 == "cold", age(verdict.toolchain)


def _inside(problem: Problem, entry: Entry) -> bool:
    """Return whether a problem of the entry's family has the entry's sizes, the symbolic ones within their ranges."""
    ranges = {name: (low, high) for name, low, high in entry.ranges}
    for name in ("m", "n", "k"):
        size, own = getattr(problem, name), getattr(entry.problem, name)
        low, high = ranges.get(name, (own, own))
        if size < low or (high is not None and size > high):
            return False
    return problem.batch == entry.problem.batch


def _within(
    wanted: Sequence[Sampled], backend: Backend, budget_s: float, slower: float
) -> tuple[list[Sampled], list[Sampled]]:
    """Divide the verdicts into those that the budget is expected to suffice for, at least one, and the others.
    `slower`: how many times as long as on an idle machine everything takes."""
    usual = effort.named(None, backend.device.kind)
    spent = estimate.start_s(backend, usual, slower)
    for place, one in enumerate(wanted):
        configs, samples = tuple(one.recorded), one.verdict.protocol.samples
        seconds = estimate.retimed_s(one.verdict.problem, configs, samples, backend, usual)
        seconds += estimate.compile_s(one.verdict.problem, configs, backend, usual, apart=True)
        spent += slower * seconds / backend.workers
        if spent > budget_s and place:
            return list(wanted[:place]), list(wanted[place:])
    return list(wanted), []


def _conclusive(one: Checked) -> bool:
    return one.holds is not None and decide(one.rows) is not None


def _changed(one: Checked) -> Changed:
    verdict, now = one.sampled.verdict, decide(one.rows)
    assert now is not None  # It is conclusive.
    return Changed(verdict.problem, verdict.pick, now.pick, verdict.speedup, now.speedup)
