"""After an upgrade of the driver, torch, Triton or cuBLAS: re-time what a program needs, and store the new verdicts.

The new rows go into a table of their own, which is listed before the old ones: a kernel that lost is demoted there, one
that still wins gets rows of the new toolchain. What was not re-timed, or not conclusively, keeps its old verdict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from gemmdb.errors import InputError
from gemmdb.files import check_target, replacing
from gemmdb.generators import effort, estimate
from gemmdb.generators.backend import Backend
from gemmdb.generators.measure.remeasure import check, local_backend, sampled_of
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
    take the most time, within a budget, and write what is conclusive to a new table `out`. Raises InputError if `out`
    exists or cannot be written, or if this machine has no device of the workload."""
    if out.exists():
        raise InputError(f"{out} exists: name a new file, so that only rows of this toolchain decide")
    check_target(out)
    named = {Device.parse(one.device) for one in workload.entries if one.device}
    devices = named or {device for table in tables for device in table.devices()}
    backend = backend or local_backend(sorted(devices, key=lambda one: one.text), "the workload")
    wanted, unmeasured = needed(workload.entries, tables, backend)
    if not wanted:
        backend.close()
        raise InputError(f"no table has verdicts for the workload on {backend.device.sku}: gemmdb tune builds them")
    chosen, left = _within(wanted, backend, limits.budget_s)
    toolchain = backend.toolchain
    found = check(chosen, backend, progress, limits.wait_s, monotonic() + limits.budget_s)
    conclusive = [one for one in found.done if one.holds is not None and decide(one.rows) is not None]
    provenance = {"command": "verify --requalify", "toolchain": toolchain.text, "device": backend.device.text}
    _write(out, conclusive, provenance)
    changed = tuple(_changed(one) for one in conclusive if not one.holds)
    checked = replace(found, rest=(*found.rest, *left))
    return Requalified(checked, unmeasured, out if conclusive else None, changed)


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


def _within(wanted: Sequence[Sampled], backend: Backend, budget_s: float) -> tuple[list[Sampled], list[Sampled]]:
    """Divide the verdicts into those that the budget is expected to suffice for, at least one, and the others."""
    usual = effort.named(None, backend.device.kind)
    spent = estimate.start_s(backend.device, usual)
    for place, one in enumerate(wanted):
        verdict = one.verdict
        seconds = estimate.retimed_s(
            verdict.problem, tuple(one.recorded), verdict.protocol.samples, backend.device, usual
        )
        spent += seconds / backend.workers
        if spent > budget_s and place:
            return list(wanted[:place]), list(wanted[place:])
    return list(wanted), []


def _write(out: Path, conclusive: Sequence[Checked], provenance: Mapping[str, Any]) -> None:
    if not conclusive:
        return
    with replacing(out) as part, Store.open(part) as store:
        run = store.begin_run(provenance)
        store.add(replace(row, run=run) for one in conclusive for row in one.rows)
        store.refresh()


def _changed(one: Checked) -> Changed:
    verdict, now = one.sampled.verdict, decide(one.rows)
    assert now is not None  # `requalify` has left out the others.
    return Changed(verdict.problem, verdict.pick, now.pick, verdict.speedup, now.speedup)
