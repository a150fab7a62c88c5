"""Re-time a sample of a table's problems, to check whether the table is still right on this machine."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from threading import Lock

from gemmdb.devices import detect
from gemmdb.errors import InputError
from gemmdb.generators import effort, estimate
from gemmdb.generators.backend import Backend, Candidate, Job, Measurer, row
from gemmdb.generators.measure import backends, quiet
from gemmdb.generators.measure.quiet import judged
from gemmdb.generators.progress import Expected, Progress, Tracker
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Measurement
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Verdict, pool, tied

TOLERANCE = 0.02
"""A row is confirmed if its time is within this relative distance of the recorded one."""
MAX_BEHIND = 0.1
"""Tolerated slowdown of a pick against the best, at the ends of both intervals, for its verdict to hold. Two equally
fast kernels of a few microseconds reach 0.08, since processes differ."""
NEXT_BEST = 3
"""Number of configs timed besides ATen, the pick and its ties: the fastest others, which may be better now."""


@dataclass(frozen=True)
class Moved:
    """A row that was not confirmed: the recorded and the new microseconds per call; None if it failed now."""

    problem: Problem
    config: Config
    recorded_us: float
    now_us: float | None

    @property
    def change(self) -> float:
        """Relative change of the new time from the recorded one; infinite if it failed now."""
        return float("inf") if self.now_us is None else abs(self.now_us / self.recorded_us - 1)


@dataclass(frozen=True)
class Remeasured:
    """Result of re-timing. `held` of `problems` verdicts still hold: their pick is tied with the best of the new times.
    For `unclear` ones the new times are inconclusive. `within` of `rows` configs are within the tolerance; `moved`: the
    others, the largest change first. `disturbed` times were taken while other programs kept the machine busy, or with
    an unsteady reference; `busy`: one phrase on other use of the devices at the start."""

    problems: int
    held: int
    rows: int
    within: int
    moved: tuple[Moved, ...]
    unclear: int = 0
    disturbed: int = 0
    busy: str = ""

    @property
    def failed(self) -> int:
        """Number of verdicts that no longer hold."""
        return self.problems - self.held - self.unclear


@dataclass(frozen=True)
class Sampled:
    """A verdict to check, with the recorded microseconds of the configs to re-time. `emitted`: the configs that were
    timed as emitted code."""

    verdict: Verdict
    recorded: Mapping[Config, float]
    emitted: frozenset[Config]

    def job(self, measurer: Measurer) -> Job:
        """Return the job of re-timing them: configs that were timed as emitted code are timed as emitted code again."""
        configs = [measurer.emitted(config) if config in self.emitted else config for config in self.recorded]
        return Job(self.verdict.problem, self.verdict.protocol, tuple(map(Candidate, configs)))


def remeasure(
    path: Path,
    n: int,
    tolerance: float = TOLERANCE,
    backend: Backend | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
    wait_s: float | None = None,
) -> Remeasured:
    """Re-time ATen, the pick, its ties and the next best for `n` random problems of the table on this machine. The same
    `seed` draws the same problems; None draws different ones each time. `wait_s`: how many seconds to wait while other
    programs use the machine, and then to stop; None measures anyway. Raises InputError if it stops or the table has no
    verdicts for this machine, TableError if the file is not a table."""
    with closing(Table.open(path)) as table:
        backend = backend or _backend(table, path)
        sampled = sample(table, backend.device, backend.toolchain.klass, n, seed)
    if not sampled:
        raise InputError(f"{path} has no verdicts for {backend.device.sku} under {backend.toolchain.klass}")
    try:
        if wait_s is not None and (occupied := quiet.idle(backend, wait_s)):
            raise InputError(f"nothing was measured: {occupied}; --wait 10m waits longer, --wait 0s measures anyway")
        busy = quiet.wait(backend)
        slower = backend.slowdown() if wait_s is None else 1.0
        fresh = _measure(sampled, backend, progress, bool(busy), slower)
    finally:
        backend.close()
    judged = Counter(holds(one.verdict, rows) for one, rows in zip(sampled, fresh, strict=True))
    compared = [
        Moved(row.problem, row.config, one.recorded[row.config], row.times.median_us if row.times else None)
        for one, rows in zip(sampled, fresh, strict=True)
        for row in rows
    ]
    moved = tuple(sorted((one for one in compared if one.change > tolerance), key=lambda one: one.change, reverse=True))
    return Remeasured(
        problems=len(sampled), held=judged[True], unclear=judged[None], rows=len(compared),
        within=len(compared) - len(moved), moved=moved, busy=busy,
        disturbed=sum(row.disturbed for rows in fresh for row in rows),
    )  # fmt: skip


def _backend(table: Table, path: Path) -> Backend:
    """Return the backend of a local device that the table is for. A CPU gets the table's thread count, as in a
    build."""
    cpu, devices = detect.cpu(), table.devices()
    for device in (detect.cuda(), cpu):
        if device in devices:
            return backends.backend_for(device)
    threads = sorted({one.units for one in devices if replace(one, units=cpu.units) == cpu})
    if len(threads) > 1:
        counts = " and ".join(map(str, threads))
        raise InputError(f"{path} was measured with {counts} threads: set OMP_NUM_THREADS to one of them")
    if threads:
        return backends.backend_for(replace(cpu, units=threads[0]))
    has = ", ".join(f"{device.sku} ({device.units} units)" for device in devices) or "no device"
    raise InputError(f"{path} is for {has}; re-timing needs that device")


def sample(table: Table, device: Device, klass: str, n: int, seed: int | None = None) -> list[Sampled]:
    """Return `n` random verdicts of a table for a device and a class of toolchains (all if there are fewer), with the
    configs to re-time."""
    pairs = (pair for pair in table.pairs() if pair[1] == device)
    verdicts = [verdict for pair in pairs for verdict in table.verdicts(*pair) if verdict.klass == klass]
    chosen = random.Random(seed).sample(verdicts, min(n, len(verdicts)))
    return [_sampled(verdict, table, device) for verdict in chosen]


def _sampled(verdict: Verdict, table: Table, device: Device) -> Sampled:
    """Return a verdict with the recorded times of the configs to re-time. Times of a packed table are relative to
    ATen's."""
    us: dict[Config, float] = {}  # The fastest first.
    emitted = []
    if table.packed:
        record = table.record(verdict.problem, device)
        group = record.find(verdict.protocol.l2, verdict.klass) if record else None
        for time in group.times if group else ():
            if time.full:
                us[time.config] = time.ratio * group.aten_us if group else 0.0
                emitted += [time.config] * time.emitted
    else:
        rows = table.rows(verdict.problem, device)
        same = [r for r in rows if r.protocol == verdict.protocol and r.toolchain.klass == verdict.klass]
        for one in pool(same):
            us[one.config] = median(row.times.median_us for row in one.rows if row.times)
            emitted += [one.config] * all(row.emitted for row in one.rows)
    others = [config for config in us if config != ATEN and config not in verdict.ties][:NEXT_BEST]
    recorded = {config: us[config] for config in dict.fromkeys((ATEN, *verdict.ties, *others)) if config in us}
    return Sampled(verdict, recorded, frozenset(emitted) & frozenset(recorded))


def _measure(
    sampled: Sequence[Sampled], backend: Backend, progress: Progress | None, busy: bool, slower: float
) -> list[list[Measurement]]:
    """Return the rows of each sample, timed on all devices of the machine, all of them disturbed if it is `busy`.
    `slower`: how many times as long as on an idle machine that takes."""
    workers, device = max(min(backend.workers, len(sampled)), 1), backend.device
    usual = effort.named(None, device.kind)
    seconds = [
        slower
        * estimate.retimed_s(one.verdict.problem, tuple(one.recorded), one.verdict.protocol.samples, device, usual)
        for one in sampled
    ]
    jobs = list(zip((one.verdict.problem for one in sampled), seconds, strict=True))
    expected = Expected(slower * estimate.start_s(device, usual), jobs, workers, len(jobs))
    tracker, lock = Tracker(progress, len(sampled), 0, expected), Lock()
    measurers = [backend.measurer(worker, effort.named("full", device.kind)) for worker in range(workers)]

    def measure(measurer: Measurer, share: Sequence[Sampled]) -> list[list[Measurement]]:
        jobs = [one.job(measurer) for one in share]
        with lock:
            tracker.say("compiling", jobs[0].problem)
        measurer.prepare(jobs)
        found = []
        for one, job in zip(share, jobs, strict=True):
            with lock:
                tracker.say("timing", job.problem)
            outcomes = judged(measurer.measure(job.problem, job.legal, job.protocol, job.protocol.samples))
            found.append([
                row(job, replace(outcome, config=config, disturbed=busy or outcome.disturbed), backend, "remeasure")
                for config, outcome in zip(one.recorded, outcomes, strict=True)
            ])  # fmt: skip
            with lock:
                tracker.finished(job.problem)
        return found

    with ThreadPoolExecutor(workers) as threads:
        try:
            shares = [sampled[worker::workers] for worker in range(workers)]
            found = list(threads.map(measure, measurers, shares))
        finally:
            for measurer in measurers:
                measurer.close()
    return [found[place % workers][place // workers] for place in range(len(sampled))]


def holds(verdict: Verdict, rows: Sequence[Measurement]) -> bool | None:
    """Return whether a verdict holds by the new times; None if they are inconclusive.

    It does not hold if the pick failed, or is slower than the best, beyond both intervals. It holds if the pick is tied
    with the best, surely no more than MAX_BEHIND slower, and, unless it is ATen, surely faster than ATen.
    """
    pooled = pool(rows)
    pick = next((p for p in pooled if p.config == verdict.pick), None)
    if pick is None:
        return False
    if any(p.disturbed for p in pooled):
        return None
    if not tied(pooled[0], pick):
        return False
    slowest = pick.ratio * (1 + pick.spread)
    if any(slowest / (p.ratio * (1 - min(p.spread, 0.99))) - 1 > MAX_BEHIND for p in pooled if p is not pick):
        return None
    beside_aten = max(row.times.high_us / row.times.aten_us for row in pick.rows if row.times)
    return None if pick.config != ATEN and beside_aten >= 1 else True
