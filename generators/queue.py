"""The queue of a build: what is left to do is what the output file does not hold; what is in work is locked beside it.

A job is stored as a whole, so it is done or not done. Claims are record locks on `FILE.lock`, one byte per job: the
operating system lifts them when their process ends, however it ends, so a killed build leaves nothing to clean up and
several builds of one file share the work.
"""

from __future__ import annotations

import fcntl
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Event, Lock

from gemmdb import canonical
from gemmdb.config import ATEN, Config
from gemmdb.generators.effort import Effort
from gemmdb.generators.interfaces import Backend, Job
from gemmdb.measurement import Status
from gemmdb.problem import Problem
from gemmdb.table import Table

POLL_S = 0.5
"""How often jobs that another build has claimed are looked at again."""
TRANSIENT = frozenset({Status.TIMEOUT, Status.OOM})
"""What can become of ATen because of something else on the machine."""


def jobs(problems: Iterable[Problem], backend: Backend, effort: Effort) -> list[Job]:
    """The jobs of a build in the order of the problems, each problem under all protocols of the effort."""
    protocols = backend.protocols(effort)
    return [
        Job(problem, protocol, tuple(backend.space.candidates(problem, backend.device, effort)))
        for problem in problems
        for protocol in protocols
    ]


def left(wanted: Sequence[Job], path: Path, backend: Backend) -> list[Job]:
    """The jobs with a candidate that has no row in the table at `path` for the device, protocol and toolchain class,
    and those without a verdict because ATen ran out of time or memory, which may have been a disturbance.

    All of such a job is measured again: times are relative to the ATen of the same minutes. Raises TableError.
    """
    if not path.exists():
        return list(wanted)
    table = Table.open(path)
    try:
        return [job for job in wanted if not _is_done(job, table, backend)]
    finally:
        table.close()


def _is_done(job: Job, table: Table, backend: Backend) -> bool:
    found: dict[Config, set[Status]] = defaultdict(set)
    for row in table.rows(job.problem, backend.device):
        if row.protocol == job.protocol and row.toolchain.klass == backend.toolchain.klass:
            found[row.config].add(row.status)
    disturbed = bool(found[ATEN]) and found[ATEN] <= TRANSIENT
    return not disturbed and all(found[candidate.config] for candidate in job.candidates)


class Claims:
    """The claims of one process on the jobs of one output file. A context manager; leaving it drops all claims."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")

    def __enter__(self) -> Claims:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        return self

    def __exit__(self, *details: object) -> None:
        os.close(self._descriptor)

    def take(self, job: Job) -> bool:
        """Claim a job; False while another process has it."""
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _byte(job))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def drop(self, job: Job) -> None:
        """Give a job back."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, _byte(job))


class Work:
    """The jobs of one build, handed out to its lanes. `elsewhere` holds those that another build has done meanwhile."""

    def __init__(self, pending: Sequence[Job], path: Path, backend: Backend, claims: Claims) -> None:
        self._pending = dict.fromkeys(pending)
        self._path, self._backend, self._claims = path, backend, claims
        self._lock = Lock()
        self.chunk, self.overlap = backend.chunk, backend.overlap
        self.stop = Event()
        self.elsewhere: list[Job] = []

    def take(self, most: int) -> list[Job]:
        """Up to `most` claimed jobs; waits while other builds have all that is left; empty when nothing is left or
        `stop` is set."""
        while not self.stop.is_set():
            with self._lock:
                taken = self._claim(most)
                if taken or not self._pending:
                    return taken
            self.stop.wait(POLL_S)
        return []

    def release(self, job: Job) -> None:
        """Give up the claim on a job that is stored."""
        with self._lock:
            self._claims.drop(job)

    def _claim(self, most: int) -> list[Job]:
        claimed: list[Job] = []
        for job in self._pending:
            if len(claimed) == most:
                break
            if self._claims.take(job):
                claimed.append(job)
        for job in claimed:
            del self._pending[job]
        # Looked up after claiming: whoever had the job before us has stored it by now, or never will.
        todo = left(claimed, self._path, self._backend)
        for job in claimed:
            if job not in todo:
                self._claims.drop(job)
                self.elsewhere.append(job)
        return todo


def _byte(job: Job) -> int:
    return canonical.key(f"{job.problem.text} {job.protocol.text}") & (2**62 - 1)
