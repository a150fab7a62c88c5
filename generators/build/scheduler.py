"""Scheduler of a build: claims jobs, has them compiled ahead, and hands ready work to free workers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from threading import Condition, Thread
from time import monotonic

from gemmdb.generators.backend import Job, Outcome
from gemmdb.generators.build.queue import Work
from gemmdb.generators.effort import Effort
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem
from gemmdb.processes.pool import Stopped
from gemmdb.table.measurement import Protocol

JOBS_AHEAD = 128
"""Number of jobs per worker to claim ahead, on devices that compile while they measure. At the start most jobs wait a
minute or two for nvcc, so the workers need others until then. At the end, other builds of the same file find that many
fewer jobs."""
POLL_S = 0.2
"""Seconds between a waiting worker's checks whether the build must stop."""
PATIENCE = 4
"""The scheduler gives up waiting if nothing is compiled for this many times one candidate's limit. It exceeds 1 because
the compilers may have a queue."""
MAX_LOSSES = 3
"""A job that lost this many workers is set aside."""
GRACE_S = 15.0
"""Seconds that a build that is out of time waits for its last winners to compile."""


@dataclass(frozen=True)
class Winner:
    """A searched job. `picks`: configs to confirm next. `confirmed`: outcomes confirmed so far."""

    job: Job
    outcomes: tuple[Outcome, ...]
    picks: tuple[Config, ...]
    confirmed: tuple[Outcome, ...] = ()


Task = Job | tuple[Winner, ...]
"""A job to race, or winners to confirm: several together where confirming needs a new process."""


class Scheduler(Thread):
    """Claim and prepare jobs in a separate thread until nothing is left or the work is stopped.

    If compiling disturbs measuring (`work.overlap` is false), it prepares a chunk only when there is nothing else to
    do.
    """

    def __init__(
        self, work: Work, prepare: Callable[[Sequence[Job], Callable[[Job], None]], None], effort: Effort, workers: int
    ) -> None:
        """`prepare`: the method of a Measurer. `ends`, set later: when the time limit ends, by the monotonic clock; the
        grace begins then or when the work stops, whichever is earlier."""
        super().__init__(daemon=True)
        self._work, self._prepare, self._patience_s = work, prepare, PATIENCE * effort.compile_s
        self._ahead = JOBS_AHEAD * workers if work.overlap else 0
        self._changed = Condition()
        self._compiling: dict[int, Job] = {}
        self._ready: deque[Job | Winner] = deque()
        self._emitting: dict[int, tuple[Job, Winner]] = {}
        self._due: deque[Winner] = deque()
        self._in_hand = 0
        self._losses: Counter[tuple[Problem, Protocol]] = Counter()
        self._more = True
        self._moved = monotonic()
        self._until: float | None = None
        self.grace_s, self.ends = GRACE_S, inf
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            while self._wait_for_room() and (taken := self._work.take()):
                with self._changed:
                    self._compiling |= {id(job): job for job in taken}
                self._prepare(taken, self._compiled)
        except Stopped:
            pass
        except BaseException as error:
            self._error = error
        with self._changed:
            self._more = False
            self._changed.notify_all()

    def next(self, available: Callable[[], bool]) -> Task | None:
        """Wait for the next task, as long as the caller's device is not `available`. Returns None if nothing is left,
        or the build must stop.

        The caller must call `finished` after each task. Raises the error that ended the scheduler.
        """
        with self._changed:
            while not self._over():
                task = self._take() if available() else None
                if task is not None:
                    self._in_hand += 1
                    return task
                self._changed.wait(POLL_S)
        if self._error is not None:
            raise self._error
        return None

    def finished(self) -> None:
        with self._changed:
            self._in_hand -= 1
            self._changed.notify_all()

    def lost(self, task: Task) -> bool:
        """Requeue a task whose device went away for another worker, unless that happened to its job too often. Returns
        whether it was requeued."""
        with self._changed:
            jobs = [task] if isinstance(task, Job) else [winner.job for winner in task]
            keys = [(job.problem, job.protocol) for job in jobs]
            self._losses.update(keys)
            if any(self._losses[key] >= MAX_LOSSES for key in keys):
                return False
            if isinstance(task, Job):
                self._ready.append(task)
            else:
                self._due.extend(task)
            self._changed.notify_all()
        return True

    def won(self, winner: Winner, emission: Job | None) -> None:
        """Queue a winner for confirmation. If its emitted code is needed, this waits until `emission` is compiled."""
        with self._changed:
            if emission is None:
                self._confirm(winner)
                self._changed.notify_all()
                return
            self._emitting[id(emission)] = emission, winner
        self._prepare([emission], self._compiled)

    def upcoming(self) -> Winner | None:
        """Return the winner that will probably be confirmed next, or None if unknown."""
        with self._changed:
            return next((one for one in (*self._due, *self._ready) if isinstance(one, Winner)), None)

    def abort(self) -> None:
        """Stop all work, confirmations included."""
        self._work.stop.set()
        with self._changed:
            self._until = monotonic()
            self._changed.notify_all()

    def _compiled(self, job: Job) -> None:
        with self._changed:
            self._moved = monotonic()
            if (emission := self._emitting.pop(id(job), None)) is not None:
                self._confirm(emission[1])
            elif self._compiling.pop(id(job), None) is not None:
                self._ready.append(job)
            self._changed.notify_all()

    def _confirm(self, winner: Winner) -> None:
        """Queue a winner whose code is compiled. Winners of an earlier build share the queue of this build's races,
        since there may be thousands. Call it with the lock held."""
        (self._ready if self._earlier(winner) else self._due).append(winner)

    def _earlier(self, winner: Winner) -> bool:
        return bool(winner.job.searched) and self._work.overlap

    def _wait_for_room(self) -> bool:
        """Wait until more jobs may be claimed. Returns False if the build stops first."""
        with self._changed:
            while not self._work.stop.is_set():
                earlier = sum(self._earlier(winner) for _, winner in self._emitting.values())
                waiting = len(self._compiling) + len(self._ready) + earlier
                if waiting < self._ahead or (not waiting and self._idle()):
                    return True
                self._changed.wait(POLL_S)
        return False

    def _idle(self) -> bool:
        return not (self._in_hand or self._due or self._emitting)

    def _over(self) -> bool:
        """Whether nothing is left to do. Call it with the lock held."""
        if self._error is not None:
            return True
        if self._work.stop.is_set():
            # Raced jobs are still confirmed for GRACE_S seconds.
            if self._until is None:
                self._until = min(monotonic(), self.ends) + min(GRACE_S, self.grace_s)
            return self._idle() or monotonic() > self._until
        return self._idle() and not (self._more or self._compiling or self._ready)

    def _take(self) -> Task | None:
        """Return the next task, or None if nothing is ready. Call it with the lock held."""
        racing = not self._work.stop.is_set()
        stuck = racing and monotonic() - self._moved > self._patience_s
        if stuck and not (self._ready or self._due):
            self._give_up_waiting()
        if self._due and (self._work.overlap or not (self._ready and racing)):
            # All together if each would start a process; one by one if several workers can share them.
            return tuple(self._due.popleft() for _ in range(1 if self._work.overlap else len(self._due)))
        if not (self._ready and racing):
            return None
        ready = self._ready.popleft()
        return ready if isinstance(ready, Job) else (ready,)

    def _give_up_waiting(self) -> None:
        """Nothing was compiled for a very long time. Release the job that has waited longest: measuring it will show
        which candidate is stuck."""
        self._moved = monotonic()
        if self._compiling:
            self._ready.append(self._compiling.pop(next(iter(self._compiling))))
        else:
            self._due.extend(winner for _, winner in self._emitting.values())
            self._emitting.clear()
