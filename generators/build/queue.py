"""Queue of a build: jobs missing from the output file, and claims on those in progress.

A job is stored as a whole, so it is either done or not. Claims are record locks on `FILE.lock`, one byte per job. The
operating system releases them when their process ends for any reason, so a killed build leaves nothing to clean up, and
several builds of one file can share the work.
"""

from __future__ import annotations

import fcntl
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Event, Lock

from gemmdb.errors import InputError
from gemmdb.generators.backend import Backend, Candidate, Job, Outcome, outcome
from gemmdb.generators.build.race import unconfirmed
from gemmdb.generators.effort import Effort
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key import canonical
from gemmdb.key.problem import Problem
from gemmdb.processes.child import out_of_memory
from gemmdb.table import file_locks
from gemmdb.table.measurement import Measurement, Status
from gemmdb.table.reader import Table
from gemmdb.table.verdict import pool, unsafe

POLL_S = 0.5
"""Seconds between retries of jobs that another build has claimed."""
RIVALS = 2
"""Number of best known configs of a problem that are timed again together with new candidates."""
TRANSIENT = frozenset({Status.TIMEOUT, Status.OOM})
"""Failures that other programs on the machine can cause."""
TRIES = 2
"""Maximum attempts for a candidate other than ATen after such a failure, and maximum builds that time ATen while other
programs keep the machine busy. On an idle machine it is timed again."""


def jobs(problems: Iterable[Problem], backend: Backend, effort: Effort) -> list[Job]:
    """Return the jobs of a build in problem order: one per problem, with the effort's candidates and protocol."""
    protocols = backend.protocols(effort)
    return [
        Job(problem, protocol, tuple(candidates))
        for problem in problems
        if (candidates := backend.space.candidates(problem, backend.device, effort))
        for protocol in protocols
    ]


def left(
    wanted: Sequence[Job], path: Path, backend: Backend, effort: Effort, idle: Callable[[], bool] | None = None
) -> list[Job]:
    """The part of each job that the table at `path` does not hold for the device, protocol and toolchain class.

    - A job with rows for some candidates is reduced to the others plus ATen and the best so far: times are comparable
      only if taken within the same minutes. A new candidate that only an estimate let in does not count if as many
      configs already have rows, some of its kernel: estimates change.
    - A candidate that ran out of time or memory is tried once more, since something may have disturbed it.
    - The whole job is left if ATen has no row, or ran out of time or memory. If the machine was busy whenever ATen was
      timed, what can be timed is left: in one more build, and in any while the machine is idle.
    - If the effort confirms winners, the missing confirmations are left.

    `idle`: returns whether it is, None to ask the backend. Raises TableError.
    """
    if not path.exists():
        return list(wanted)
    idle = idle or idleness(backend)
    with Table.open(path) as table:
        return [rest for job in wanted if (rest := _rest(job, table, backend, effort, idle)) is not None]


def will_be_idle() -> bool:
    """The `idle` of a build that waits for an idle machine."""
    return True


def idleness(backend: Backend) -> Callable[[], bool]:
    """Return a function that returns whether no other programs use the devices of a backend. It looks once, which takes
    up to a second, and only if it is called."""
    return cache(lambda: not backend.occupied())


def _rest(job: Job, table: Table, backend: Backend, effort: Effort, idle: Callable[[], bool]) -> Job | None:
    every = table.rows(job.problem, backend.device)
    rows = [row for row in every if row.protocol == job.protocol and row.toolchain.klass == backend.toolchain.klass]
    found: dict[Config, list[Measurement]] = defaultdict(list)
    for row in rows:
        found[row.config].append(row)
    if all(map(_hindered, found[ATEN])):  # Also true if there is none.
        return job
    if _busy(found[ATEN], idle):
        failed = {config for config, known in found.items() if known and not any(row.times for row in known)}
        return replace(job, candidates=tuple(c for c in job.candidates if c.config == ATEN or c.config not in failed))
    missing = tuple(c for c in job.candidates if len(found[c.config]) < TRIES and all(map(_hindered, found[c.config])))
    if sum(map(bool, found.values())) >= len(job.candidates):
        tried = {config.name for config, known in found.items() if known}
        missing = tuple(c for c in missing if found[c.config] or not c.estimated or c.config.name not in tried)
    if any(not candidate.rejected for candidate in missing):
        rivals = [pooled.config for pooled in pool(rows, unsafe(every)) if pooled.config != ATEN][:RIVALS]
        # Keep this decision: when the claimed job is looked up again, the shorter list must not count as tried.
        decided = (replace(candidate, estimated=False) for candidate in missing)
        return replace(job, candidates=tuple(dict.fromkeys((Candidate(ATEN), *map(Candidate, rivals), *decided))))
    searched, confirmed = known(rows, unsafe(every), effort)
    if not unconfirmed(searched, confirmed, effort):
        searched = confirmed = ()
    return replace(job, candidates=missing, searched=searched, confirmed=confirmed) if missing or searched else None


def _hindered(row: Measurement) -> bool:
    return row.status in TRANSIENT or (row.status is Status.ERROR and out_of_memory(row.detail))


def _busy(rows: Sequence[Measurement], idle: Callable[[], bool]) -> bool:
    """Whether the machine was busy every time a config was timed, and another build may find it quiet."""
    if not all(row.disturbed or _hindered(row) for row in rows):
        return False
    return len({row.run for row in rows}) < TRIES or idle()


def known(
    rows: Sequence[Measurement], banned: Collection[Config], effort: Effort
) -> tuple[tuple[Outcome, ...], tuple[Outcome, ...]]:
    """Return the outcomes of a race, and of its confirmations, from the rows of one problem. Both are empty without an
    ATen row, or if the effort confirms nothing.

    A confirmation is a row of emitted code, or a row with the reason why there is none, or a second row of a config
    whose code is not emitted.
    """
    if not effort.confirm or not any(row.config == ATEN and row.status is Status.OK for row in rows):
        return (), ()
    by_config: dict[Config, list[Measurement]] = defaultdict(list)
    for row in rows:
        if row.config not in banned:
            by_config[row.config].append(row)
    searched = {c: min(of, key=lambda row: (row.emitted, row.status is not Status.OK)) for c, of in by_config.items()}
    # ATen was timed with all of them and counts as often as in the run: with its spread it may tie with the best.
    confirmed = [row for row in by_config[ATEN] if row is not searched[ATEN]]
    for config, of in by_config.items():
        if config != ATEN and _confirmed(of, effort):
            confirmed += [row for row in of if row is not searched[config]] or of
    first, again = (tuple(map(outcome, some)) for some in (searched.values(), confirmed))
    return first, again


def _confirmed(rows: Sequence[Measurement], effort: Effort) -> bool:
    if not effort.rivals:
        return sum(not row.disturbed for row in rows) > 1 or len(rows) > TRIES
    return any(row.emitted or row.status not in (Status.OK, Status.SLOW) for row in rows)


class Claims:
    """One process's claims on the jobs of one output file. A context manager; exiting drops all claims."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")

    def __enter__(self) -> Claims:
        try:
            self._descriptor = file_locks.open_lock_file(
                self._path, writable=True
            )  # Anyone who may write to the folder may build.
        except OSError as error:
            there = os.path.lexists(self._path)
            what, remedy = ("opened", "remove it, or name another --out") if there else ("made", "name another --out")
            why = f"{self._path} cannot be {what} ({error.strerror}), and builds claim their work there"
            raise InputError(f"{why}; {remedy}") from error
        return self

    def __exit__(self, *details: object) -> None:
        os.close(self._descriptor)

    def take(self, job: Job) -> bool:
        """Claim a job. Returns False while another process has it."""
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _byte(job))
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            remedy = "build on a disk of this machine" if file_locks.unsupported(error) else "check its file system"
            raise InputError(f"{self._path} cannot be locked ({error.strerror}); {remedy}") from error
        return True

    def drop(self, job: Job) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, _byte(job))


class Work:
    """Pending jobs of one build, for its workers. `elsewhere`: jobs that another build has finished meanwhile."""

    def __init__(self, pending: Sequence[Job], path: Path, backend: Backend, effort: Effort, claims: Claims) -> None:
        self._pending = dict.fromkeys(pending)
        self._path, self._backend, self._effort, self._claims = path, backend, effort, claims
        self._lock = Lock()
        self.chunk, self.overlap = backend.chunk, backend.overlap
        self.stop = Event()
        self.idle: Callable[[], bool] | None = None  # As for `left`.
        self.settle: Callable[[], None] = lambda: None  # Called before jobs are taken: `stop` and `chunk` may change.
        self.elsewhere: list[Job] = []

    def take(self) -> list[Job]:
        """Claim up to `chunk` jobs. Waits while other builds hold all remaining jobs. Returns nothing if no jobs are
        left or `stop` is set."""
        self.settle()
        while not self.stop.is_set():
            with self._lock:
                taken = self._claim(self.chunk)
                if taken or not self._pending:
                    return taken
            self.stop.wait(POLL_S)
        return []

    def release(self, job: Job) -> None:
        """Release the claim on a stored job."""
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
        # The table is read after claiming: the previous holder of a claim has stored the job by now, or never will.
        todo = left(claimed, self._path, self._backend, self._effort, self.idle)
        bytes_left = set(map(_byte, todo))
        for job in claimed:
            if _byte(job) not in bytes_left:
                self._claims.drop(job)
                self.elsewhere.append(job)
        return todo


def _byte(job: Job) -> int:
    return canonical.key(f"{job.problem.text} {job.protocol.text}") & (2**62 - 1)
