"""Times a sample of a table's problems again, to check whether the table is still right on this machine."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from threading import Lock
from time import monotonic, sleep

from gemmdb.devices import detect
from gemmdb.errors import InputError
from gemmdb.generators import effort
from gemmdb.generators.backend import Backend, Candidate, Job, Measurer, Outcome, row
from gemmdb.generators.measure import backends
from gemmdb.generators.measure.quiet import PATIENCE_S, judged
from gemmdb.generators.progress import SECONDS, Progress, Silent, Tracker
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Measurement
from gemmdb.table.reader import Table
from gemmdb.table.record import Record
from gemmdb.table.verdict import Pooled, Verdict, pool, tied

TOLERANCE = 0.02
"""A row is confirmed if its time is this close (relative) to the recorded one."""
OTHERS = 3
"""How many configs are timed besides ATen, the pick and its ties: the fastest others, which may be better now."""


@dataclass(frozen=True)
class Moved:
    """A row that was not confirmed: the recorded and the new microseconds of one call; None if it failed now."""

    problem: Problem
    config: Config
    recorded_us: float
    now_us: float | None


@dataclass(frozen=True)
class Remeasured:
    """The result. `held` of `problems` verdicts still hold: their pick is tied with the best of what was timed now.
    `unclear`: of so many the times now say neither yes nor no. `within` of `rows` configs are within the tolerance.
    `moved`: the others, the largest change first. `disturbed`: how many times were taken while other programs kept the
    machine busy, or with an unsteady reference; `busy`: what kept the devices busy when it began, in one phrase."""

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
        """How many verdicts no longer hold."""
        return self.problems - self.held - self.unclear


@dataclass(frozen=True)
class Sampled:
    """A verdict to check, with the recorded microseconds of the configs to time again. `emitted`: the configs that were
    timed as emitted code."""

    verdict: Verdict
    recorded: Mapping[Config, float]
    emitted: frozenset[Config]

    @property
    def job(self) -> Job:
        """The job of timing them."""
        return Job(self.verdict.problem, self.verdict.protocol, tuple(map(Candidate, self.recorded)))

    def measured(self, measurer: Measurer) -> Job:
        """The same job for `measurer`: configs that were timed as emitted code are timed as emitted code again."""
        configs = [measurer.emitted(config) if config in self.emitted else config for config in self.recorded]
        return replace(self.job, candidates=tuple(map(Candidate, configs)))


def remeasure(
    path: Path,
    n: int,
    tolerance: float = TOLERANCE,
    backend: Backend | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Remeasured:
    """Time ATen, the pick, its ties and the next best of `n` random problems of the table again, on this machine.

    The same `seed` draws the same problems of a table; None draws others each time. The table is not changed. Raises
    InputError when it has no verdicts for this machine, TableError when it is no table.
    """
    table = Table.open(path)
    try:
        backend = backend or _backend(table, path)
        sampled = sample(table, backend.device, backend.toolchain.klass, n, seed)
    finally:
        table.close()
    if not sampled:
        raise InputError(f"{path} has no verdicts for {backend.device.sku} under {backend.toolchain.klass}")
    try:
        busy = _wait(backend)
        fresh = _measure(sampled, backend, progress or Silent(), bool(busy))
    finally:
        backend.close()
    judged = Counter(holds(one.verdict, rows) for one, rows in zip(sampled, fresh, strict=True))
    disturbed = sum(row.disturbed for rows in fresh for row in rows)
    pairs = [pair for one, rows in zip(sampled, fresh, strict=True) for pair in _pairs(one, rows)]
    moved = sorted((pair for pair in pairs if _change(pair) > tolerance), key=_change, reverse=True)
    return Remeasured(
        len(sampled), judged[True], len(pairs), len(pairs) - len(moved), tuple(moved), judged[None], disturbed, busy
    )


def _wait(backend: Backend) -> str:
    """What still keeps the devices busy after some patience, in one phrase."""
    until = monotonic() + PATIENCE_S
    while (busy := backend.busy()) and monotonic() < until:
        sleep(1.0)
    return busy


def _backend(table: Table, path: Path) -> Backend:
    """The backend of a device here that the table is for. A CPU gets the number of threads of the table, as in a
    build."""
    here = [device for device in (detect.cuda(), detect.cpu()) if device is not None]
    for device in here:
        if device in table.devices():
            return backends.backend_for(device)
    cpu = here[-1]
    threads = sorted({one.units for one in table.devices() if replace(one, units=cpu.units) == cpu})
    if len(threads) > 1:
        counts = " and ".join(map(str, threads))
        raise InputError(f"{path} was measured with {counts} threads: set OMP_NUM_THREADS to one of them")
    if threads:
        return backends.backend_for(replace(cpu, units=threads[0]))
    has = ", ".join(f"{device.sku} ({device.units} units)" for device in table.devices()) or "no device"
    raise InputError(f"{path} is for {has}; timing it again needs that device")


def sample(table: Table, device: Device, klass: str, n: int, seed: int | None = None) -> list[Sampled]:
    """`n` random verdicts of a table for a device and a class of toolchains (all if there are fewer), with the configs
    to time again."""
    problems = [problem for problem, known in table.pairs() if known == device]
    verdicts = [
        verdict for problem in problems for verdict in table.verdicts(problem, device) if verdict.klass == klass
    ]
    chosen = random.Random(seed).sample(verdicts, min(n, len(verdicts)))
    if table.packed:
        return [_pooled(verdict, table.record(verdict.problem, device)) for verdict in chosen]
    return [_sampled(verdict, table.rows(verdict.problem, device)) for verdict in chosen]


def _pooled(verdict: Verdict, record: Record | None) -> Sampled:
    """The sample of a packed table, whose times are relative to ATen's."""
    group = record.find(verdict.protocol.l2, verdict.klass) if record else None
    known = {one.config: one for one in group.times if one.full} if group else {}
    chosen = _chosen(verdict, known)
    recorded = {config: known[config].ratio * group.aten_us for config in chosen} if group else {}
    return Sampled(verdict, recorded, frozenset(config for config in chosen if known[config].emitted))


def _chosen(verdict: Verdict, known: Collection[Config]) -> list[Config]:
    """What is timed of the `known` configs, which come fastest first."""
    others = [config for config in known if config != ATEN and config not in verdict.ties][:OTHERS]
    return [config for config in dict.fromkeys((ATEN, *verdict.ties, *others)) if config in known]


def _sampled(verdict: Verdict, rows: Sequence[Measurement]) -> Sampled:
    same = [r for r in rows if r.protocol == verdict.protocol and r.toolchain.klass == verdict.klass]
    pooled = {p.config: p.rows for p in pool(same)}
    chosen = _chosen(verdict, pooled)
    recorded = {config: median(row.times.median_us for row in pooled[config] if row.times) for config in chosen}
    emitted = frozenset(config for config in chosen if all(row.emitted for row in pooled[config]))
    return Sampled(verdict, recorded, emitted)


def _measure(sampled: Sequence[Sampled], backend: Backend, progress: Progress, busy: bool) -> list[list[Measurement]]:
    """The rows of each sample, timed on all devices of the machine, all of them disturbed if that is `busy`."""
    tracker, lock = Tracker(progress, len(sampled), 0, SECONDS.get(backend.device.kind)), Lock()
    workers = max(min(backend.workers, len(sampled)), 1)
    measurers = [backend.measurer(worker, effort.named("full", backend.device.kind)) for worker in range(workers)]
    with ThreadPoolExecutor(workers) as threads:
        try:
            shares = [sampled[worker::workers] for worker in range(workers)]
            some = partial(_measure_some, backend=backend, tell=partial(_tell, tracker, lock), busy=busy)
            found = list(threads.map(some, measurers, shares))
        finally:
            for measurer in measurers:
                measurer.close()
    return [found[place % workers][place // workers] for place in range(len(sampled))]


def _tell(tracker: Tracker, lock: Lock, phase: str, problem: Problem) -> None:
    """Report a phase, from any thread. Ends a problem if `phase` is empty."""
    with lock:
        if phase:
            tracker.say(phase, problem)
        else:
            tracker.finished(problem)


def _measure_some(
    measurer: Measurer,
    sampled: Sequence[Sampled],
    backend: Backend,
    tell: Callable[[str, Problem], None],
    busy: bool,
) -> list[list[Measurement]]:
    jobs = [one.measured(measurer) for one in sampled]
    if jobs:
        tell("compiling", jobs[0].problem)
    measurer.prepare(jobs)
    found = []
    for one, job in zip(sampled, jobs, strict=True):
        tell("timing", one.verdict.problem)
        found.append([
            row(one.job, replace(outcome, config=config, disturbed=busy or outcome.disturbed), backend, "remeasure")
            for config, outcome in zip(one.recorded, _outcomes(measurer, job), strict=True)
        ])  # fmt: skip
        tell("", one.verdict.problem)
    return found


def _outcomes(measurer: Measurer, job: Job) -> Sequence[Outcome]:
    return judged(measurer.measure(job.problem, job.legal, job.protocol, job.protocol.samples))


def _pairs(one: Sampled, rows: Sequence[Measurement]) -> list[Moved]:
    now = {row.config: row.times.median_us if row.times else None for row in rows}
    return [Moved(one.verdict.problem, config, us, now[config]) for config, us in one.recorded.items()]


def _change(pair: Moved) -> float:
    return float("inf") if pair.now_us is None else abs(pair.now_us / pair.recorded_us - 1)


WIDE = 0.1
"""What a pick may be slower than the best, at the ends of both intervals, for its verdict to hold. Two kernels of a few
microseconds that are equally fast come to 0.08, since processes differ."""


def holds(verdict: Verdict, rows: Sequence[Measurement]) -> bool | None:
    """Whether a verdict holds by what was timed now; None if that says neither yes nor no.

    It does not hold if the pick is slower than the best, beyond both intervals, or failed. It holds if the pick is
    tied with the best and, where it is not ATen, certainly faster than ATen; not if the intervals are so wide that
    the pick may be slower than the best by more than WIDE.
    """
    pooled = pool(rows)
    pick = next((p for p in pooled if p.config == verdict.pick), None)
    if pick is None:
        return False
    if any(p.disturbed for p in pooled):
        return None
    if not tied(pooled[0], pick):
        return False
    unsure = max((_most(pick) / _least(p) - 1 for p in pooled if p is not pick), default=0.0) > WIDE
    return None if unsure or (pick.config != ATEN and _slowest(pick) >= 1) else True


def _most(one: Pooled) -> float:
    return one.ratio * (1 + one.spread)


def _least(one: Pooled) -> float:
    return one.ratio * (1 - min(one.spread, 0.99))


def _slowest(one: Pooled) -> float:
    """The upper end of the interval of its time relative to ATen."""
    return max(row.times.high_us / row.times.aten_us for row in one.rows if row.times)
