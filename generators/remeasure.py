"""Does a table still tell the truth here? A sample of its problems is timed again and held against it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from gemmdb import hardware
from gemmdb.config import ATEN, Config
from gemmdb.errors import InputError
from gemmdb.generators import backends, effort
from gemmdb.generators.interfaces import Backend, Candidate, Job, Measurer, row
from gemmdb.measurement import Measurement
from gemmdb.problem import Problem
from gemmdb.table import Table
from gemmdb.verdict import Verdict, pool, tied

TOLERANCE = 0.02
"""A row is confirmed when its time is that close to the recorded one."""
OTHERS = 3
"""How many configs are timed besides ATen, the pick and its ties: the fastest of the others may have overtaken."""


@dataclass(frozen=True)
class Moved:
    """A row that was not confirmed: the recorded and the new microseconds of one call, None where it failed now."""

    problem: Problem
    config: Config
    recorded_us: float
    now_us: float | None


@dataclass(frozen=True)
class Remeasured:
    """Of `problems` verdicts, `held` still hold: their pick is tied with the best of what was timed now. Of `rows`
    configs, `within` are within the tolerance; `moved` are the others, the largest change first."""

    problems: int
    held: int
    rows: int
    within: int
    moved: tuple[Moved, ...]


@dataclass(frozen=True)
class _Sampled:
    """A verdict to check, with the recorded microseconds of the configs to time again."""

    verdict: Verdict
    recorded: Mapping[Config, float]

    @property
    def job(self) -> Job:
        """The work of timing them."""
        return Job(self.verdict.problem, self.verdict.protocol, tuple(map(Candidate, self.recorded)))


def remeasure(path: Path, n: int, tolerance: float = TOLERANCE, backend: Backend | None = None) -> Remeasured:
    """Time ATen, the pick, its ties and the next best of `n` random problems of the table again, on this machine.

    The table is only read. Raises InputError when it has no verdicts for this machine, TableError when it is no table.
    """
    table = Table.open(path)
    try:
        backend = backend or _backend(table, path)
        sampled = _sample(table, backend, n)
    finally:
        table.close()
    if not sampled:
        raise InputError(f"{path} has no verdicts for {backend.device.sku} under {backend.toolchain.klass}")
    try:
        fresh = _measure([sample.job for sample in sampled], backend)
    finally:
        backend.close()
    held = sum(_holds(sample.verdict, rows) for sample, rows in zip(sampled, fresh, strict=True))
    pairs = [pair for sample, rows in zip(sampled, fresh, strict=True) for pair in _pairs(sample, rows)]
    moved = sorted((pair for pair in pairs if _change(pair) > tolerance), key=_change, reverse=True)
    return Remeasured(len(sampled), held, len(pairs), len(pairs) - len(moved), tuple(moved))


def _backend(table: Table, path: Path) -> Backend:
    here = [device for device in (hardware.cuda(), hardware.cpu()) if device is not None]
    for device in here:
        if device in table.devices():
            return backends.backend_for(device)
    has = ", ".join(f"{device.sku} ({device.units} units)" for device in table.devices()) or "no device"
    raise InputError(f"{path} is for {has}; timing it again needs that device")


def _sample(table: Table, backend: Backend, n: int) -> list[_Sampled]:
    problems = dict.fromkeys(row.problem for row in table.measurements() if row.device == backend.device)
    verdicts = [
        verdict
        for problem in problems
        for verdict in table.verdicts(problem, backend.device)
        if verdict.klass == backend.toolchain.klass
    ]
    chosen = random.sample(verdicts, min(n, len(verdicts)))
    return [_Sampled(verdict, _recorded(verdict, table.rows(verdict.problem, backend.device))) for verdict in chosen]


def _recorded(verdict: Verdict, rows: Sequence[Measurement]) -> dict[Config, float]:
    same = [r for r in rows if r.protocol == verdict.protocol and r.toolchain.klass == verdict.klass]
    pooled = {p.config: median(r.times.median_us for r in p.rows if r.times) for p in pool(same)}
    others = [config for config in pooled if config != ATEN and config not in verdict.ties][:OTHERS]
    return {config: pooled[config] for config in dict.fromkeys((ATEN, *verdict.ties, *others)) if config in pooled}


def _measure(jobs: Sequence[Job], backend: Backend) -> list[list[Measurement]]:
    """The rows of each job, timed on all devices that there are."""
    lanes = max(min(backend.lanes, len(jobs)), 1)
    measurers = [backend.measurer(lane, effort.named("full", backend.device.kind)) for lane in range(lanes)]
    with ThreadPoolExecutor(lanes) as threads:
        try:
            shares = [jobs[lane::lanes] for lane in range(lanes)]
            found = list(threads.map(_measure_some, measurers, shares, [backend] * lanes))
        finally:
            for measurer in measurers:
                measurer.close()
    return [found[place % lanes][place // lanes] for place in range(len(jobs))]


def _measure_some(measurer: Measurer, jobs: Sequence[Job], backend: Backend) -> list[list[Measurement]]:
    measurer.prepare(jobs)
    return [
        [
            row(job, outcome, backend, "remeasure")
            for outcome in measurer.measure(job.problem, job.legal, job.protocol, job.protocol.samples)
        ]
        for job in jobs
    ]


def _holds(verdict: Verdict, rows: Sequence[Measurement]) -> bool:
    pooled = pool(rows)
    return any(p.config == verdict.pick and tied(pooled[0], p) for p in pooled)


def _pairs(sample: _Sampled, rows: Sequence[Measurement]) -> list[Moved]:
    now = {row.config: row.times.median_us if row.times else None for row in rows}
    return [Moved(sample.verdict.problem, config, us, now[config]) for config, us in sample.recorded.items()]


def _change(pair: Moved) -> float:
    return float("inf") if pair.now_us is None else abs(pair.now_us / pair.recorded_us - 1)
