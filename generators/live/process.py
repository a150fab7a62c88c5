"""Main program of the live tuning process: it measures ATen and a few candidates per problem, as a build does.

`gemmdb.inductor.benchmark.client` starts the process. The race, measuring processes, protocol and correctness checks
are those of a build, with few candidates and within a time budget. A problem is claimed with a build's lock, which ends
with its process. So if several processes share a table, one measures and the others wait for its result.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic, sleep

from gemmdb.generators import effort
from gemmdb.generators.backend import Backend, Job, Measurer, Outcome, row
from gemmdb.generators.build.queue import Claims
from gemmdb.generators.build.race import race
from gemmdb.generators.live.planning import believed, job, rejection, within, without_epilogue
from gemmdb.generators.measure import backends
from gemmdb.inductor.benchmark.client import Request, Tuned
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Verdict

POLL_S = 0.2
_RUN = f"live-{uuid.uuid4().hex[:16]}"


class Tuner:
    """Backend and measurers of one device, which are kept, since starting processes takes seconds."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.backend: Backend = backends.backend_for(device)
        self._measurers: dict[int, Measurer] = {}
        self._spent: dict[str, float] = defaultdict(float)

    def measurer(self, gpu: int) -> Measurer:
        if gpu not in self._measurers:
            self._measurers[gpu] = self.backend.prompt_measurer(gpu, effort.named("quick", self.device.kind))
        return self._measurers[gpu]

    def close(self) -> None:
        for measurer in self._measurers.values():
            measurer.close()
        self.backend.close()

    def tune(self, requests: Sequence[Request], until: float) -> Tuned:
        """Tune requests for this device, all for one table and GPU, the most valuable first, until `until` on the
        monotonic clock."""
        from gemmdb.table.writer import Store  # Its import takes longer than starting the measurers.

        measurer, table = self.measurer(requests[0].gpu), requests[0].table
        with Store.open(table):
            pass  # Creates the table file; the lock file is next to it.
        self._spent.clear()
        before = measurer.busy_s
        jobs = {job(request, self.backend): request for request in requests}
        rejected = {one.problem: rejection(one, request, self.backend) for one, request in jobs.items()}
        declined = {problem: why.reason for problem, why in rejected.items() if why is not None}
        jobs = {one: request for one, request in jobs.items() if one.problem not in declined}
        mine: list[Job] = []
        found: dict[Problem, Verdict] = {}
        with Claims(table) as claims:
            while jobs:
                claimed = [one for one in jobs if claims.take(one)]
                # Checked after claiming: the previous holder stored its results before it released the claim.
                found |= {v.problem: v for one in jobs if (v := self._known(table, one)) is not None}
                mine = [one for one in claimed if one.problem not in found]
                tried = self._measure({one: jobs[one] for one in mine}, measurer, until)
                found |= {v.problem: v for one in tried if (v := self._known(table, one)) is not None}
                for one in claimed:
                    claims.drop(one)
                jobs = {k: v for k, v in jobs.items() if k.problem not in found and k not in tried}
                if monotonic() > until:
                    break
                if jobs:
                    sleep(POLL_S)
        after = measurer.busy_s
        device_s = None if before is None or after is None else after - before
        spent = {name: round(seconds, 3) for name, seconds in self._spent.items()}
        starting = bool(mine and jobs) and not measurer.ready(0.0)
        return Tuned(found, device_s, bool(jobs), bool(jobs) and not mine, declined, starting, spent)

    def _measure(self, jobs: Mapping[Job, Request], measurer: Measurer, until: float) -> list[Job]:
        """Compile for jobs, measure each when it is ready and store its rows; returns the jobs measured in time."""
        waiting = list(jobs)
        done: list[Job] = []
        size = len(waiting) if self.backend.overlap else self.backend.chunk
        while waiting and monotonic() < until:
            part, waiting = waiting[:size], waiting[size:]
            for one, compiled in self._compiled(part, jobs[part[0]].compile_s, measurer, until):
                with self._counted("measure"):
                    self._race(compiled, jobs[one], measurer)
                done.append(one)
        return done

    def _compiled(
        self, jobs: Sequence[Job], compile_s: float, measurer: Measurer, until: float
    ) -> Iterator[tuple[Job, Job]]:
        """Yield each job in time, with the part of it that can be measured now. If no job is compiled within
        `compile_s` seconds, uncompiled candidates are dropped."""
        compiled: SimpleQueue[Job] = SimpleQueue()
        with self._counted("compile"):
            measurer.prepare(jobs, compiled.put)
        with self._counted("start"):
            if not measurer.ready(until - monotonic()):
                return
        left = dict.fromkeys(jobs)
        ready: set[Job] = set()
        while left and monotonic() < until:
            with self._counted("compile"):
                ready |= _arrived(compiled, 0.0 if ready & left.keys() else min(compile_s, until - monotonic()))
            whole = ((one, one) for one in left if one in ready)
            part = ((one, _compiled_part(one, measurer)) for one in left if monotonic() < until)
            found = next(whole, None) or next((pair for pair in part if len(pair[1].candidates) > 1), None)
            if found is not None:
                del left[found[0]]
                yield found

    def _race(self, one: Job, request: Request, measurer: Measurer) -> None:
        outcomes = race(one, within(request, self.backend, one), measurer)
        if (alone := without_epilogue(one, outcomes)) is not None:
            aten_alone = race(alone, within(request, self.backend, alone), measurer)
            self._store(alone, aten_alone, request.table)
            outcomes = believed(outcomes, aten_alone)
        self._store(one, outcomes, request.table)

    def _store(self, one: Job, outcomes: Sequence[Outcome], table: Path) -> None:
        from gemmdb.table.writer import record_live

        record_live(table, [row(one, outcome, self.backend, _RUN) for outcome in outcomes])

    def _known(self, table: Path, one: Job) -> Verdict | None:
        with closing(Table.open(table)) as opened:
            return opened.verdict(one.problem, self.device, "cold", self.backend.toolchain.klass)

    @contextmanager
    def _counted(self, what: str) -> Iterator[None]:
        start = monotonic()
        try:
            yield
        finally:
            self._spent[what] += monotonic() - start


def _arrived(queue: SimpleQueue[Job], limit_s: float) -> set[Job]:
    """Drain a queue: wait at most `limit_s` seconds for the first item, and not at all for further ones."""
    found: set[Job] = set()
    try:
        while True:
            found.add(queue.get(timeout=max(limit_s, 0.0) if not found else 0.0))
    except Empty:
        return found


def _compiled_part(one: Job, measurer: Measurer) -> Job:
    """Return the job with only its compiled candidates; none if ATen's own kernels are not compiled."""
    able = tuple(c for c in one.candidates if measurer.compiled(one.problem, c.config))
    return replace(one, candidates=able if one.candidates[0] in able else ())


_tuner: Tuner | None = None


def tune(requests: Sequence[Request], limit_s: float) -> Tuned:
    """Tune requests for one device, table and GPU within `limit_s` seconds."""
    until = monotonic() + limit_s
    return _tuner_of(requests[0].device).tune(requests, until)


def start(device: Device, gpu: int) -> None:
    _tuner_of(device).measurer(gpu)


def _tuner_of(device: Device) -> Tuner:
    """Return the cached tuner, closing it first if it is for another device."""
    global _tuner
    if _tuner is None or _tuner.device != device:
        if _tuner is not None:
            _tuner.close()
        _tuner = Tuner(device)
    return _tuner
