"""The program of the process that tunes live: it measures ATen and a few candidates per problem, as a build does.

`gemmdb.inductor.live.client` starts the process. The race, measuring processes, protocol and checks of correctness are
those of a build, with few candidates and within a time budget. A problem is claimed with a build's lock, which ends
with its process. So of several processes that share a table, one measures and the others wait for its answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic, sleep

from gemmdb.cost.roofline import roofline_us
from gemmdb.generators import effort
from gemmdb.generators.build.queue import Claims
from gemmdb.generators.build.race import race
from gemmdb.generators.effort import Effort
from gemmdb.generators.interfaces.backend import Backend, Candidate, Job, Measurer, row
from gemmdb.generators.measure import backends
from gemmdb.inductor.live.client import Request, Tuned
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.inductor import menu as inductor_menu
from gemmdb.kernels.legality import illegal
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.ladder.model import LIVE_CANDIDATES
from gemmdb.ladder.policy_filter import refusal
from gemmdb.table.measurement import Protocol
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Verdict
from gemmdb.table.writer import Store, record_live

FEWEST_SAMPLES = 7
OVERHEAD_US = {"cpu": 8000.0, "cuda": 60.0}
"""Microseconds of a timed call beside the call itself: clearing the caches."""
BEYOND_ROOF = 4.0
"""The most that a candidate is assumed to take, in multiples of the roofline."""
LARGE_BEYOND_ROOF = 1.5
"""The same for a problem so large that the budget may not suffice."""
POLL_S = 0.2
_RUN = f"live-{uuid.uuid4().hex[:16]}"


class Tuner:
    """The backend and measurers of one device, which are kept: starting processes takes seconds."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.backend: Backend = backends.backend_for(device)
        self._measurers: dict[int, Measurer] = {}

    def measurer(self, gpu: int, chosen: Effort) -> Measurer:
        """The measurer on a GPU of this device, by its number."""
        worker = self.backend.worker_of(gpu)
        if worker not in self._measurers:
            self._measurers[worker] = self.backend.measurer(worker, chosen, confirms=False)
        return self._measurers[worker]

    def close(self) -> None:
        """End the processes."""
        for measurer in self._measurers.values():
            measurer.close()
        self.backend.close()

    def tune(self, requests: Sequence[Request], until: float) -> Tuned:
        """Tune requests for this device, all for one table and GPU, until `until` of the monotonic clock."""
        table = requests[0].table
        with Store.open(table):
            pass  # Makes the file, beside which the lock is.
        chosen = effort.named("quick", self.device.kind)
        measurer = self.measurer(requests[0].gpu, chosen)
        before = measurer.busy_s
        jobs = {job(request, self.backend): request for request in requests}
        declined = {one.problem: why for one, request in jobs.items() if (why := too_large(one, request, self.backend))}
        jobs = {one: request for one, request in jobs.items() if one.problem not in declined}
        mine: list[Job] = []
        found: dict[Problem, Verdict] = {}
        with Claims(table) as claims:
            while jobs:
                claimed = [one for one in jobs if claims.take(one)]
                # Looked at with the claim: who had it before stored what it measured before giving it up.
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
        return Tuned(found, device_s, bool(jobs), bool(jobs) and not mine, declined)

    def _measure(self, jobs: dict[Job, Request], measurer: Measurer, until: float) -> list[Job]:
        """Compile for jobs, measure each when it is ready and store its rows; returns those measured in time."""
        waiting = list(jobs)
        done: list[Job] = []
        ready: SimpleQueue[Job] = SimpleQueue()
        size = len(waiting) if self.backend.overlap else self.backend.chunk
        while waiting and monotonic() < until:
            part, waiting = waiting[:size], waiting[size:]
            measurer.prepare(part, ready.put)
            for _ in part:
                try:
                    one = ready.get(timeout=max(until - monotonic(), 0.0))
                except Empty:
                    return done
                outcomes = race(one, within(jobs[one], self.backend, one), measurer)
                record_live(jobs[one].table, [row(one, outcome, self.backend, _RUN) for outcome in outcomes])
                done.append(one)
        return done

    def _known(self, table: Path, one: Job) -> Verdict | None:
        with closing(Table.open(table)) as opened:
            return opened.verdict(one.problem, self.device, "cold", self.backend.toolchain.klass)


_tuner: Tuner | None = None


def tune(requests: Sequence[Request], limit_s: float) -> Tuned:
    """Tune requests for one device, table and GPU within `limit_s` seconds."""
    until = monotonic() + limit_s
    return _tuner_of(requests[0].device).tune(requests, until)


def start(device: Device, gpu: int) -> None:
    """Start what measures on a device."""
    _tuner_of(device).measurer(gpu, effort.named("quick", device.kind))


def _tuner_of(device: Device) -> Tuner:
    """The tuner that is kept; that of another device is closed."""
    global _tuner
    if _tuner is None or _tuner.device != device:
        if _tuner is not None:
            _tuner.close()
        _tuner = Tuner(device)
    return _tuner


def job(request: Request, backend: Backend) -> Job:
    """A build's job: ATen and the candidates that may run, as many as the budget has time for."""
    chosen = effort.named("quick", backend.device.kind)
    protocol = backend.protocols(chosen)[0]
    room = int(request.budget_s / _seconds(request.problem, backend, protocol, LARGE_BEYOND_ROOF) / _FEWEST) - 1
    most = max(min(room, LIVE_CANDIDATES), 0)
    others = list(dict.fromkeys(c for c in _candidates(request, backend, chosen) if _allowed(c, request, backend)))
    padding = [c for c in _paddings(request.problem, backend) if _allowed(c, request, backend)]
    tried = others[:most]
    if padding and most and not set(padding) & set(tried):
        # gemmdb keeps Inductor's own padding pass from timing it.
        tried = [*tried[: most - 1], padding[-1]]
    return Job(request.problem, protocol, (Candidate(ATEN), *map(Candidate, tried)))


def too_large(one: Job, request: Request, backend: Backend) -> str:
    """Why a job is not measured, empty when it is: the budget only has time for ATen."""
    once = _seconds(one.problem, backend, one.protocol, LARGE_BEYOND_ROOF)
    if len(one.candidates) > 1 or 2 * _FEWEST * once <= request.budget_s:
        return ""
    return f"ATen and one more would take longer than {request.budget_s:g} s of the device"


_FEWEST = FEWEST_SAMPLES + 3
"""Rounds of a measurement, with the estimate before it."""


def _candidates(request: Request, backend: Backend, chosen: Effort) -> Sequence[Config]:
    if request.candidates:
        return request.candidates
    tried = backend.space.candidates(request.problem, backend.device, chosen)
    return [one.config for one in tried if not one.illegal]


def _allowed(config: Config, request: Request, backend: Backend) -> bool:
    policy = request.policy
    policy = replace(policy, compile_cost=min(policy.compile_cost, policy.live_cost))
    if config == ATEN or refusal(config, policy, request.problem):
        return False
    return illegal(config, request.problem, backend.device) is None


def _paddings(problem: Problem, backend: Backend) -> list[Config]:
    """The padded products that a build would try: where rows are misaligned on a GPU."""
    if backend.device.kind != "cuda":
        return []
    return [config for config in inductor_menu.configs(problem, backend.device) if config.kernel == "padded"]


def _seconds(problem: Problem, backend: Backend, protocol: Protocol, beyond_roof: float) -> float:
    """Seconds of device time of one sample of one candidate."""
    call_us = beyond_roof * roofline_us(problem, backend.device) + OVERHEAD_US.get(backend.device.kind, 0.0)
    return protocol.unroll * call_us / 1e6


def within(request: Request, backend: Backend, one: Job) -> Effort:
    """The effort `quick` with as few samples as the budget asks for."""
    chosen = effort.named("quick", backend.device.kind)
    sample_s = len(one.candidates) * _seconds(request.problem, backend, one.protocol, BEYOND_ROOF)
    fits = int(request.budget_s / sample_s) - chosen.estimate
    return replace(chosen, samples=max(FEWEST_SAMPLES, min(chosen.samples, fits)))
