"""Client for live tuning: measures problems that miss in all tables, in a separate process.

The process runs a small build (`generators/live/process.py`): it compiles in parallel, benchmarks in isolated workers
and stores the results in the user table. It is kept alive for a while, since starting it takes most of the time. The
program being compiled imports none of its code, so tuning changes neither the program's random state nor its GPU state,
and spawned processes do not run its main module again.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from gemmdb.errors import GemmdbError
from gemmdb.inductor.benchmark import limits
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.processes.child import RemoteModule
from gemmdb.processes.pool import IsolatedProcess
from gemmdb.settings import Policy
from gemmdb.table.measurement import Status
from gemmdb.table.verdict import Verdict

PROGRAM = RemoteModule("gemmdb.generators.live.process")
"""Entry point of the process, by name: the generator is in a higher layer, and only the process imports it."""


@dataclass(frozen=True)
class Request:
    """A problem to tune. `table`: the user table. `candidates`: configs to try, most promising first; empty for the
    first candidates of the generator. `budget_s`: seconds of device time. `gpu`: its index on this host. `policy`: only
    configs that it serves and allows live tuning to compile are tried. `compile_s`: how many seconds to wait for
    candidates that are still compiling when there is nothing left to measure."""

    problem: Problem
    device: Device
    table: Path
    candidates: tuple[Config, ...] = ()
    budget_s: float = 1.0
    gpu: int = 0
    policy: Policy = field(default_factory=Policy)
    compile_s: float = math.inf


@dataclass(frozen=True)
class Tuned:
    """The result of a list of requests. `verdicts`: for each problem that was decided in time; `declined`: why others
    were not measured. `device_s`: seconds of device time, None if unknown. `late`: the time limit was reached;
    `waited`: it was reached while other threads or processes measured, and this one measured nothing; `starting`: it
    was reached before the measuring process was ready. `spent`: seconds spent waiting for the process to `start`,
    waiting for candidates to `compile`, and on `measure`."""

    verdicts: Mapping[Problem, Verdict] = field(default_factory=dict)
    device_s: float | None = None
    late: bool = False
    waited: bool = False
    declined: Mapping[Problem, str] = field(default_factory=dict)
    starting: bool = False
    spent: Mapping[str, float] = field(default_factory=dict)


def tune(requests: Sequence[Request], limit_s: float = limits.REQUEST_S) -> Tuned:
    """Measure problems of one device in the order of `requests`, and store the results. Problems that the table
    contains by then are not measured again.

    After `limit_s` seconds no new problem is started; the table keeps the results so far. Raises GemmdbError if this
    machine cannot measure or the file is not a table.
    """
    until = monotonic() + limit_s
    if not requests or not _TUNER.lock.acquire(timeout=limit_s):
        return Tuned(late=bool(requests), waited=bool(requests))
    try:
        process = _TUNER.process()
        left = max(until - monotonic(), 0.0)
        reply = process.call(left + limits.GRACE_S, PROGRAM.tune, tuple(requests), left)
    finally:
        _TUNER.rest()
        _TUNER.lock.release()
    if reply.status is Status.TIMEOUT:
        return Tuned(late=True)
    if reply.status is not Status.OK:
        raise GemmdbError(reply.detail)
    found: Tuned = reply.value
    _TUNER.ready = "measure" in found.spent or _TUNER.ready
    return found


def start(device: Device, gpu: int = 0) -> None:
    """Start the process for a device in the background, so that a later `tune` waits less."""

    def start_now() -> None:
        with _TUNER.lock, contextlib.suppress(GemmdbError):  # `tune` will raise the same.
            _TUNER.process().call(limits.REQUEST_S, PROGRAM.start, device, gpu)
            _TUNER.rest()

    threading.Thread(target=start_now, daemon=True).start()


def ready() -> bool:
    """Return whether the process has already measured something, so there is no start-up wait."""
    return _TUNER.ready


def close() -> None:
    """End the process and its work. Idempotent; the next `tune` starts a new one."""
    _TUNER.end()


class _Tuner:
    """The measuring process, kept between calls."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ready = False
        self._process: IsolatedProcess | None = None
        self._timer: threading.Timer | None = None

    def process(self) -> IsolatedProcess:
        """Return the process. It starts quickly; it imports its modules with its first request."""
        if self._timer is not None:
            self._timer.cancel()
        if self._process is None:
            self._process = IsolatedProcess()
        return self._process

    def rest(self) -> None:
        """End the process after limits.IDLE_S seconds without work."""
        self._timer = threading.Timer(limits.IDLE_S, self._retire)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """End the process now; a `tune` in another thread raises Stopped."""
        if self._timer is not None:
            self._timer.cancel()
        process, self._process, self.ready = self._process, None, False
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
    """After a fork, leave the process to the parent, which ends it."""
    global _TUNER
    _TUNER = _Tuner()


os.register_at_fork(after_in_child=_forget)
