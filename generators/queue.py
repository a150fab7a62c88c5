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
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock

from gemmdb import canonical
from gemmdb.config import ATEN, Config
from gemmdb.generators.effort import Effort
from gemmdb.generators.interfaces import Backend, Candidate, Job
from gemmdb.measurement import Status
from gemmdb.problem import Problem
from gemmdb.table import Table
from gemmdb.verdict import pool

POLL_S = 0.5
"""How often jobs that another build has claimed are looked at again."""
RIVALS = 2
"""How many of the configs that are known on a problem are timed again beside new candidates."""
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
    """What of the jobs is not in the table at `path` for the device, protocol and toolchain class.

    A job of which some candidates have rows, since a backend was added after they were measured, is reduced to the
    others, with ATen and the best so far beside them: times compare within the same minutes. All of a job is left when
    ATen has no row, or ran out of time or memory, which may have been a disturbance. Raises TableError.
    """
    if not path.exists():
        return list(wanted)
    table = Table.open(path)
    try:
        return [rest for job in wanted if (rest := _rest(job, table, backend)) is not None]
    finally:
        table.close()


def _rest(job: Job, table: Table, backend: Backend) -> Job | None:
    rows = [
        row
        for row in table.rows(job.problem, backend.device)
        if row.protocol == job.protocol and row.toolchain.klass == backend.toolchain.klass
    ]
    found: dict[Config, set[Status]] = defaultdict(set)
    for row in rows:
        found[row.config].add(row.status)
    if found[ATEN] <= TRANSIENT:  # Also when there is none.
        return job
    missing = tuple(candidate for candidate in job.candidates if not found[candidate.config])
    if all(candidate.illegal for candidate in missing):
        return replace(job, candidates=missing) if missing else None
    rivals = [pooled.config for pooled in pool(rows) if pooled.config != ATEN][:RIVALS]
    return replace(job, candidates=(Candidate(ATEN), *map(Candidate, rivals), *missing))


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
        bytes_left = set(map(_byte, todo))
        for job in claimed:
            if _byte(job) not in bytes_left:
                self._claims.drop(job)
                self.elsewhere.append(job)
        return todo


def _byte(job: Job) -> int:
    return canonical.key(f"{job.problem.text} {job.protocol.text}") & (2**62 - 1)
