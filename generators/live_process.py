"""What runs in the process that tunes live: ATen and a few proposed configs per problem, by a build's own means.

The race, workers, protocol and checks of correctness are a build's, with few candidates and within a time budget. A
problem is claimed with the same lock as in a build, which ends with its process: of several processes that share a
table, one measures and the others wait for its answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic, sleep

from gemmdb.config import ATEN, Config
from gemmdb.device import Device
from gemmdb.generators import backends, effort
from gemmdb.generators.effort import Effort
from gemmdb.generators.interfaces import Backend, Candidate, Job, Measurer, row
from gemmdb.generators.live import Request, Tuned
from gemmdb.generators.queue import Claims
from gemmdb.generators.search import race
from gemmdb.generators.store import Store, record_live
from gemmdb.ladder.roofline import roofline_us
from gemmdb.legality import illegal
from gemmdb.problem import Problem
from gemmdb.table import Table
from gemmdb.verdict import Verdict

PROPOSALS = 4
"""Candidates besides ATen."""
FEWEST_SAMPLES = 10
OVERHEAD_US = {"cpu": 8000.0, "cuda": 60.0}
"""What a timed call costs beside the call: reading the caches out."""
BEYOND_ROOF = 4.0
"""How many times the roofline a candidate is taken to need."""
POLL_S = 0.2
_RUN = f"live-{uuid.uuid4().hex[:16]}"


class Tuner:
    """The backend and measurers of one device, which are kept: starting workers takes seconds."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.backend: Backend = backends.backend_for(device)
        self._measurers: dict[int, Measurer] = {}

    def measurer(self, lane: int, chosen: Effort) -> Measurer:
        """The measurer of a lane."""
        lane = min(lane, self.backend.lanes - 1)
        if lane not in self._measurers:
            self._measurers[lane] = self.backend.measurer(lane, chosen, confirms=False)
        return self._measurers[lane]

    def close(self) -> None:
        """End the workers."""
        for measurer in self._measurers.values():
            measurer.close()
        self.backend.close()

    def tune(self, requests: Sequence[Request], until: float) -> Tuned:
        """What comes of requests for this device, all for one table and lane, until `until` of the monotonic clock."""
        table = requests[0].table
        with Store.open(table):
            pass  # Makes the file, beside which the lock is.
        chosen = effort.named("quick", self.device.kind)
        measurer = self.measurer(requests[0].lane, chosen)
        before = measurer.busy_s
        jobs = {job(request, self.backend): request for request in requests}
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
        return Tuned(found, device_s, late=bool(jobs))

    def _measure(self, jobs: dict[Job, Request], measurer: Measurer, until: float) -> list[Job]:
        """Compile for jobs and measure them as they get ready, and store the rows; those that were come to in time."""
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
    """What comes of requests for one device, table and lane within `limit_s` seconds."""
    until = monotonic() + limit_s
    return _tuner_of(requests[0].device).tune(requests, until)


def start(device: Device, lane: int) -> None:
    """Start what measures on a device."""
    _tuner_of(device).measurer(lane, effort.named("quick", device.kind))


def _tuner_of(device: Device) -> Tuner:
    """The one that is kept; another device's is closed."""
    global _tuner
    if _tuner is None or _tuner.device != device:
        if _tuner is not None:
            _tuner.close()
        _tuner = Tuner(device)
    return _tuner


def job(request: Request, backend: Backend) -> Job:
    """ATen and the proposals that may run, as a build's job."""
    chosen = effort.named("quick", backend.device.kind)
    configs: Sequence[Config] = request.proposals
    if not configs:
        tried = backend.space.candidates(request.problem, backend.device, chosen)
        configs = [one.config for one in tried if not one.illegal]
    quick = (c for c in configs if c != ATEN and c.spec.cost <= request.compile_cost)
    others = [c for c in quick if illegal(c, request.problem, backend.device) is None]
    candidates = (Candidate(ATEN), *map(Candidate, others[:PROPOSALS]))
    return Job(request.problem, backend.protocols(chosen)[0], candidates)


def within(request: Request, backend: Backend, one: Job) -> Effort:
    """The effort `quick` with as few samples as the budget asks for."""
    chosen = effort.named("quick", backend.device.kind)
    call_us = BEYOND_ROOF * roofline_us(request.problem, backend.device) + OVERHEAD_US.get(backend.device.kind, 0.0)
    sample_s = len(one.candidates) * one.protocol.unroll * call_us / 1e6
    fits = int(request.budget_s / sample_s) - chosen.estimate
    return replace(chosen, samples=max(FEWEST_SAMPLES, min(chosen.samples, fits)))
