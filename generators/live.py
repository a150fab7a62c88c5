"""Live tuning: one problem, ATen and a few proposed configs, measured now and kept in the user's table.

The measuring is a build's: the same race, workers, protocol and checks of correctness, with few candidates and within
a time budget. A problem is claimed with the same lock as in a build, which ends with its process: of several processes
that share a table, one measures and the others wait for its answer.
"""

from __future__ import annotations

import atexit
import os
import threading
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep

from gemmdb.config import ATEN, Config
from gemmdb.device import Device
from gemmdb.generators import backends, effort
from gemmdb.generators.effort import Effort
from gemmdb.generators.interfaces import Backend, Candidate, Job, Measurer, row
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
WAIT_S = 120.0
"""How long another process is waited for that measures the same problem."""
POLL_S = 0.2
IDLE_S = 30.0
"""After that long without work the worker processes are ended."""


@dataclass(frozen=True)
class Request:
    """What to tune. `table`: the user's. `proposals`: configs in the order in which they are likely to be the best;
    empty for the head of the generator's menu. `budget_s`: seconds of device time. `lane`: which GPU of the host."""

    problem: Problem
    device: Device
    table: Path
    proposals: tuple[Config, ...] = ()
    budget_s: float = 1.0
    lane: int = 0


def tune(request: Request) -> Verdict | None:
    """The verdict on the problem: measured now and stored, unless the table has one meanwhile. None when ATen could not
    be measured, or another process did not come to an end with it.

    Raises InputError where this machine cannot measure, TableError when the file is no table.
    """
    with _TUNER.lock:
        with Store.open(request.table):
            pass  # Makes the file, beside which the lock is.
        backend = _TUNER.backend(request.device)
        job = _job(request, backend)
        with Claims(request.table) as claims:
            until = monotonic() + WAIT_S
            while True:
                mine = claims.take(job)
                # Looked at with the claim: who had it before stored what it measured before giving it up.
                found = _known(request, backend)
                if mine and found is None:
                    _measure(request, backend, job)
                    found = _known(request, backend)
                if mine or found is not None or monotonic() > until:
                    return found
                sleep(POLL_S)


def close() -> None:
    """End the worker processes. Idempotent; the next `tune` starts others."""
    with _TUNER.lock:
        _TUNER.close()


class _Tuner:
    """The backend and measurer that a process keeps between problems: starting workers takes seconds."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._device: Device | None = None
        self._backend: Backend | None = None
        self._measurers: dict[int, Measurer] = {}
        self._timer: threading.Timer | None = None

    def backend(self, device: Device) -> Backend:
        """The backend of a device; another one's workers are ended."""
        if self._timer is not None:
            self._timer.cancel()
        if self._backend is None or self._device != device:
            self.close()
            self._backend, self._device = backends.backend_for(device), device
        return self._backend

    def measurer(self, lane: int, chosen: Effort) -> Measurer:
        """The measurer of a lane."""
        assert self._backend is not None
        if lane not in self._measurers:
            self._measurers[lane] = self._backend.measurer(min(lane, self._backend.lanes - 1), chosen)
        return self._measurers[lane]

    def rest(self) -> None:
        """End the workers when nothing comes for a while."""
        self._timer = threading.Timer(IDLE_S, close)
        self._timer.daemon = True
        self._timer.start()

    def close(self) -> None:
        """End them now."""
        if self._timer is not None:
            self._timer.cancel()
        for measurer in self._measurers.values():
            measurer.close()
        self._measurers.clear()
        if self._backend is not None:
            self._backend.close()
        self._backend = self._device = None


_TUNER = _Tuner()
_RUN = f"live-{uuid.uuid4().hex[:16]}"
atexit.register(close)


def _forget() -> None:
    """After a fork: the workers are the parent's, and so is their end."""
    global _TUNER
    _TUNER = _Tuner()


os.register_at_fork(after_in_child=_forget)


def _job(request: Request, backend: Backend) -> Job:
    chosen = effort.named("quick", backend.device.kind)
    configs: Sequence[Config] = request.proposals
    if not configs:
        tried = backend.space.candidates(request.problem, backend.device, chosen)
        configs = [one.config for one in tried if not one.illegal]
    others = [c for c in configs if c != ATEN and illegal(c, request.problem, backend.device) is None]
    return Job(
        request.problem, backend.protocols(chosen)[0], (Candidate(ATEN), *map(Candidate, others[:PROPOSALS]))
    )  # fmt: skip


def _known(request: Request, backend: Backend) -> Verdict | None:
    with closing(Table.open(request.table)) as table:
        return table.verdict(request.problem, backend.device, "cold", backend.toolchain.klass)


def _measure(request: Request, backend: Backend, job: Job) -> None:
    chosen = within(request, backend, job)
    measurer = _TUNER.measurer(request.lane, chosen)
    try:
        measurer.prepare([job])
        outcomes = race(job, chosen, measurer)
    finally:
        _TUNER.rest()
    record_live(request.table, [row(job, outcome, backend, _RUN) for outcome in outcomes])


def within(request: Request, backend: Backend, job: Job) -> Effort:
    """The effort `quick` with as few samples as the budget asks for."""
    chosen = effort.named("quick", backend.device.kind)
    call_us = BEYOND_ROOF * roofline_us(request.problem, backend.device) + OVERHEAD_US.get(backend.device.kind, 0.0)
    sample_s = len(job.candidates) * job.protocol.unroll * call_us / 1e6
    fits = int(request.budget_s / sample_s) - chosen.estimate
    return replace(chosen, samples=max(FEWEST_SAMPLES, min(chosen.samples, fits)))
