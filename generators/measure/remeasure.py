"""Re-time a sample of a table's problems, to check whether the table is still right on this machine."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from statistics import median
from threading import TIMEOUT_MAX, Lock, Timer
from time import monotonic

from gemmdb.devices import detect
from gemmdb.errors import InputError
from gemmdb.generators import effort, estimate
from gemmdb.generators.backend import Backend, Candidate, Job, Measurer, Outcome, row
from gemmdb.generators.measure import backends, quiet
from gemmdb.generators.measure.quiet import judged
from gemmdb.generators.measure.remeasured import TOLERANCE, Checked, Remeasured, Sampled
from gemmdb.generators.progress import Expected, Progress, State, Tracker
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.processes.pool import Stopped
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Verdict, pool

NEXT_BEST = 3
"""Number of configs timed besides ATen, the pick and its ties: the fastest others, which may be better now."""


def remeasure(
    path: Path,
    n: int,
    tolerance: float = TOLERANCE,
    backend: Backend | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
    wait_s: float | None = None,
    before: Remeasured | None = None,
) -> Remeasured:
    """Re-time ATen, the pick, its ties and the next best for `n` random problems of the table on this machine. The same
    `seed` draws the same problems; None draws different ones each time. `wait_s`: how many seconds to wait while other
    programs use the machine, and then to stop, as a build does; None measures anyway. `before`: a result that stopped,
    to go on with its rest. Raises InputError if the table has no verdicts for this machine, TableError if the file is
    not a table."""
    with closing(Table.open(path)) as table:
        backend = backend or local_backend(table.devices(), str(path))
        klass = backend.toolchain.klass
        sampled = list(before.rest) if before else sample(table, backend.device, klass, n, seed)
    if not sampled:
        raise InputError(f"{path} has no verdicts for {backend.device.sku} under {klass}")
    result = check(sampled, backend, progress, Terms(wait_s))
    return replace(result, done=(*(before.done if before else ()), *result.done), tolerance=tolerance)


@dataclass(frozen=True)
class Terms:
    """How verdicts are re-timed. `wait_s`: how many seconds to wait while other programs use the machine, and then
    to stop; None measures anyway. `limit_s`: seconds after that waiting. No verdict begins that would probably
    exceed them by more than MAX_OVERRUN, except the first of each worker, which ends with the limit. `keep`: called
    with each verdict when it is checked, from one thread at a time."""

    wait_s: float | None = None
    limit_s: float = inf
    keep: Callable[[Checked], None] = lambda _: None


def check(
    sampled: Sequence[Sampled], backend: Backend, progress: Progress | None = None, terms: Terms = Terms()
) -> Remeasured:
    """Re-time the configs of verdicts, and close the backend. After Ctrl-C the result has what was checked so far."""

    def waiting(text: str) -> None:
        if progress is not None:
            progress.update(State(len(sampled), 0, phase=text))

    timing = _Timing(backend, terms)
    try:
        if terms.wait_s is not None and (occupied := quiet.idle(backend, terms.wait_s, waiting)):
            return Remeasured(backend.device, (), tuple(sampled), stopped=occupied)
        timing.busy = quiet.wait(backend)
        timing.measure(sampled, progress)
    except KeyboardInterrupt:
        timing.interrupted = True
    finally:
        backend.close()
    # What was disturbed until it stopped is timed again.
    done = tuple(one for one in timing.checked(sampled) if not (timing.stopped and one.is_lost))
    rest = tuple(one for one in sampled if all(one is not known.sampled for known in done))
    return Remeasured(
        backend.device, done, rest, busy=timing.busy, stopped=timing.stopped, interrupted=timing.interrupted
    )


def local_backend(devices: Collection[Device], where: str) -> Backend:
    """Return the backend of a local device that is one of `devices`, those of `where`. A CPU gets their thread count,
    as in a build. Raises InputError if there is none."""
    cpu = detect.cpu()
    for device in (detect.cuda(), cpu):
        if device is not None and device in devices:
            return backends.backend_for(device)
    threads = sorted({one.units for one in devices if replace(one, units=cpu.units) == cpu})
    if len(threads) > 1:
        counts = " and ".join(map(str, threads))
        raise InputError(f"{where} was measured with {counts} threads: set OMP_NUM_THREADS to one of them")
    if threads:
        return backends.backend_for(replace(cpu, units=threads[0]))
    has = ", ".join(f"{device.sku} ({device.units} units)" for device in devices) or "no device"
    raise InputError(f"{where} is for {has}; re-timing needs that device")


def sample(table: Table, device: Device, klass: str, n: int, seed: int | None = None) -> list[Sampled]:
    """Return `n` random verdicts of a table for a device and a class of toolchains (all if there are fewer), with the
    configs to re-time."""
    pairs = (pair for pair in table.pairs() if pair[1] == device)
    verdicts = [verdict for pair in pairs for verdict in table.verdicts(*pair) if verdict.klass == klass]
    chosen = random.Random(seed).sample(verdicts, min(n, len(verdicts)))
    return [sampled_of(verdict, table, device) for verdict in chosen]


def sampled_of(verdict: Verdict, table: Table, device: Device) -> Sampled:
    """Return a verdict with the recorded times of the configs to re-time. Times of a packed table are relative to
    ATen's."""
    us: dict[Config, float] = {}  # The fastest first.
    emitted, doubtful = [], []
    if table.packed:
        record = table.record(verdict.problem, device)
        group = record.find(verdict.protocol.l2, verdict.klass) if record else None
        for time in group.times if group else ():
            if time.full:
                us[time.config] = time.ratio * group.aten_us if group else 0.0
                emitted += [time.config] * time.emitted
                doubtful += [time.config] * time.disturbed
    else:
        rows = table.rows(verdict.problem, device)
        same = [r for r in rows if r.protocol == verdict.protocol and r.toolchain.klass == verdict.klass]
        for one in pool(same):
            us[one.config] = median(row.times.median_us for row in one.rows if row.times)
            emitted += [one.config] * all(row.emitted for row in one.rows)
            doubtful += [one.config] * one.disturbed
    references = [config for config in us if config.spec.measured_only]
    others = [config for config in us if config not in (ATEN, *references, *verdict.ties)][:NEXT_BEST]
    recorded = {
        config: us[config] for config in dict.fromkeys((ATEN, *references, *verdict.ties, *others)) if config in us
    }
    return Sampled(
        verdict, recorded, frozenset(emitted) & frozenset(recorded), frozenset(doubtful) & frozenset(recorded)
    )


class _Timing:
    """Times samples again on all devices of the machine. `busy`: one phrase on other use of them, with which all times
    count as disturbed. `stopped`: why it stopped, as a build does, when nothing of the last problems could be used.
    `interrupted`: whether Ctrl-C ended it; `ended`: whether its time limit did."""

    def __init__(self, backend: Backend, terms: Terms) -> None:
        self._backend, self._terms = backend, terms
        self._lock, self._disturbances = Lock(), quiet.Disturbances()
        self._checked: dict[int, Checked] = {}
        # Within a limit of time nothing is compiled that may not be timed.
        self._apart = terms.limit_s < inf and not backend.overlap
        self._until = inf
        self.busy = self.stopped = ""
        self.interrupted = self.ended = False

    def checked(self, sampled: Sequence[Sampled]) -> list[Checked]:
        """Return those of the samples that were timed, in order."""
        return [self._checked[id(one)] for one in sampled if id(one) in self._checked]

    def measure(self, sampled: Sequence[Sampled], progress: Progress | None) -> None:
        """Time samples. Ctrl-C aborts it, without the one that is being timed."""
        backend = self._backend
        workers = max(min(backend.workers, len(sampled)), 1)
        slower = 1.0 if self._terms.wait_s is not None else backend.slowdown()
        self._until = monotonic() + (1 + estimate.MAX_OVERRUN) * self._terms.limit_s
        expected = expected_of(sampled, backend, workers, slower, self._apart)
        tracker = Tracker(progress, len(sampled), 0, expected, self._terms.limit_s)
        measurers = [backend.measurer(worker, effort.named("full", backend.device.kind)) for worker in range(workers)]
        with ThreadPoolExecutor(workers) as threads, self._ending(measurers):
            try:
                shares = [sampled[worker::workers] for worker in range(workers)]
                list(threads.map(partial(self._share, tracker), measurers, shares))
            except KeyboardInterrupt:
                self.interrupted = True
                raise
            finally:
                for measurer in measurers:
                    measurer.close()

    @contextmanager
    def _ending(self, measurers: Sequence[Measurer]) -> Iterator[None]:
        """End the measurers soon after the time limit."""

        def end() -> None:
            self.ended = True
            for measurer in measurers:
                measurer.close()

        timer = Timer(min(estimate.ENDED * self._terms.limit_s, TIMEOUT_MAX), end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _share(self, tracker: Tracker, measurer: Measurer, share: Sequence[Sampled]) -> None:
        """Time one worker's samples, until the end of the time limit."""
        try:
            self._timed(tracker, measurer, share)
        except Stopped:
            if not self.ended:
                raise

    def _timed(self, tracker: Tracker, measurer: Measurer, share: Sequence[Sampled]) -> None:
        jobs = [one.job(measurer) for one in share]
        if not self._apart:
            self._prepare(tracker, measurer, jobs)
            with self._lock:
                tracker.prepared()
        longest_s = 0.0  # The first one also starts the processes, and counts until the second one is done.
        for number, (one, job) in enumerate(zip(share, jobs, strict=True)):
            begun = monotonic()
            if self.stopped or self.interrupted or self.ended or (number and begun + longest_s > self._until):
                return
            if self._apart:
                self._prepare(tracker, measurer, [job])
            self._time(tracker, measurer, one, job)
            longest_s = max(longest_s if number > 1 else 0.0, monotonic() - begun)

    def _prepare(self, tracker: Tracker, measurer: Measurer, jobs: Sequence[Job]) -> None:
        with self._lock:
            tracker.say("compiling", jobs[0].problem)
        measurer.prepare(jobs)

    def _time(self, tracker: Tracker, measurer: Measurer, one: Sampled, job: Job) -> None:
        with self._lock:
            tracker.say("timing", job.problem)
        outcomes = judged(measurer.measure(job.problem, job.legal, job.protocol, job.protocol.samples))
        marked = [
            replace(outcome, config=config, disturbed=bool(self.busy) or outcome.disturbed)
            for config, outcome in zip(one.recorded, outcomes, strict=True)
        ]
        with self._lock:
            if self.interrupted or self.ended:
                return  # The measurer was closed in the middle: the failures are not the configs'.
            self._keep(Checked(one, [row(job, outcome, self._backend, "remeasure") for outcome in marked]), marked)
            tracker.finished(job.problem)

    def _keep(self, checked: Checked, outcomes: Sequence[Outcome]) -> None:
        self._checked[id(checked.sampled)] = checked
        self._terms.keep(checked)
        self._disturbances.add(outcomes)
        if self._terms.wait_s is not None:
            self.stopped = self.stopped or self._disturbances.why(self._backend)


def expected_of(
    sampled: Sequence[Sampled], backend: Backend, workers: int, slower: float, apart: bool = False
) -> Expected:
    """Return how long that takes. `slower`: how many times as long as on an idle machine. `apart`: each is compiled
    just before it is timed, instead of all at the start."""
    usual = effort.named(None, backend.device.kind)
    start_s, jobs = slower * estimate.start_s(backend, usual), []
    for number, one in enumerate(sampled):
        problem, configs = one.verdict.problem, tuple(one.recorded)
        compile_s = estimate.compile_s(problem, configs, backend, usual, apart)
        seconds = estimate.retimed_s(problem, configs, one.verdict.protocol.samples, backend, usual)
        start_s += 0.0 if apart else slower * compile_s / workers
        waits_s = estimate.patience_s(slower) if number < workers else 0.0  # Each worker waits at its first one.
        jobs.append((problem, slower * (seconds + compile_s * apart) + waits_s))
    wanted = [Job(one.verdict.problem, one.verdict.protocol, tuple(map(Candidate, one.recorded))) for one in sampled]
    turns, waiting = backend.awaited(wanted)
    return Expected(start_s, jobs, workers, slower=slower, compiled_s=slower * turns * estimate.NVCC_S, waiting=waiting)
