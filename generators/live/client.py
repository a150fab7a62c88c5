"""Live tuning: problems that no table answers, measured now in a process of their own, and kept in the user's table.

The process is a build in little (`live_process.py`): it compiles in parallel, measures in isolated processes, and stays
for a while, since starting all that takes most of the time. A program that tunes imports nothing of it, so neither its
random states nor its GPU state are touched, and its main module is not run again where processes are spawned.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from gemmdb.errors import GemmdbError
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.processes.pool import IsolatedProcess
from gemmdb.settings import Policy
from gemmdb.table.measurement import Status
from gemmdb.table.verdict import Verdict

IDLE_S = 30.0
"""After that long without work the process is ended."""
GRACE_S = 10.0
"""How much longer than its time limit the process may take until it is ended: a problem that is being measured when
time is over is measured to the end."""
LIMIT_S = 300.0


@dataclass(frozen=True)
class Request:
    """What to tune. `table`: the user's. `proposals`: configs in the order in which they are likely to be the best;
    empty for the head of the generator's menu. `budget_s`: seconds of device time. `gpu`: its number on this host.
    `policy`: what may be served, and what live tuning may compile, is tried."""

    problem: Problem
    device: Device
    table: Path
    proposals: tuple[Config, ...] = ()
    budget_s: float = 1.0
    gpu: int = 0
    policy: Policy = field(default_factory=Policy)


@dataclass(frozen=True)
class Tuned:
    """What came of some requests: a verdict for each problem that was decided in time, and for others why they were not
    measured. `device_s`: seconds of device time that it took, None where that is not known. `late`: whether time ran
    out; `waited`: on other threads or processes alone."""

    verdicts: Mapping[Problem, Verdict] = field(default_factory=dict)
    device_s: float | None = None
    late: bool = False
    waited: bool = False
    declined: Mapping[Problem, str] = field(default_factory=dict)


def tune(requests: Sequence[Request], limit_s: float = LIMIT_S) -> Tuned:
    """The verdicts on some problems of one device, measured now and stored, unless the table has them meanwhile.

    After `limit_s` seconds no further problem is begun; what was measured until then is in the table all the same.
    Raises GemmdbError where this machine cannot measure, or the file is no table.
    """
    until = monotonic() + limit_s
    if not requests or not _TUNER.lock.acquire(timeout=limit_s):
        return Tuned(late=bool(requests), waited=bool(requests))
    try:
        process = _TUNER.process()
        left = max(until - monotonic(), 0.0)
        reply = process.call(left + GRACE_S, _tune, tuple(requests), left)
    finally:
        _TUNER.rest()
        _TUNER.lock.release()
    if reply.status is Status.TIMEOUT:
        return Tuned(late=True)
    if reply.status is not Status.OK:
        raise GemmdbError(reply.detail)
    found: Tuned = reply.value
    return found


def start(device: Device, gpu: int = 0) -> None:
    """Begin to start the process for a device, in the background: a `tune` that comes meanwhile waits for less."""
    threading.Thread(target=_start_now, args=(device, gpu), daemon=True).start()


def close() -> None:
    """End the process, and what it is at. Idempotent; the next `tune` starts another."""
    _TUNER.end()


class _Tuner:
    """The process, kept between calls."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._process: IsolatedProcess | None = None
        self._timer: threading.Timer | None = None

    def process(self) -> IsolatedProcess:
        """The process; starting it takes a moment, what it has to import comes with its first work."""
        if self._timer is not None:
            self._timer.cancel()
        if self._process is None:
            self._process = IsolatedProcess()
        return self._process

    def rest(self) -> None:
        """End the process when nothing comes for a while."""
        self._timer = threading.Timer(IDLE_S, self._retire)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """End it now; a `tune` in another thread raises Stopped."""
        if self._timer is not None:
            self._timer.cancel()
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _retire(self) -> None:
        if self.lock.acquire(blocking=False):
            try:
                self.end()
            finally:
                self.lock.release()


_TUNER = _Tuner()
atexit.register(close)


def _forget() -> None:
    """After a fork: the process is the parent's, and so is its end."""
    global _TUNER
    _TUNER = _Tuner()


os.register_at_fork(after_in_child=_forget)


def _start_now(device: Device, gpu: int) -> None:
    with _TUNER.lock, contextlib.suppress(GemmdbError):  # Whoever tunes meets the same.
        _TUNER.process().call(LIMIT_S, _start, device, gpu)
        _TUNER.rest()


def _start(device: Device, gpu: int) -> None:
    """Runs in the process."""
    from gemmdb.generators.live import process

    process.start(device, gpu)


def _tune(requests: Sequence[Request], limit_s: float) -> Tuned:
    """Runs in the process, which loads what it needs for that and keeps it."""
    from gemmdb.generators.live import process

    return process.tune(requests, limit_s)
