"""What the workers of a build do next: jobs are claimed and compiled ahead of them all, and whoever is free takes what
is ready."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition, Thread
from time import monotonic

from gemmdb.generators.build.queue import Work
from gemmdb.generators.effort import Effort
from gemmdb.generators.interfaces.backend import Job, Outcome
from gemmdb.kernels.config import Config
from gemmdb.processes.pool import Stopped

AHEAD = 128
"""How many jobs per worker are claimed beyond those in work, where compiling goes on meanwhile. At the start most of
them wait a minute or two for nvcc, and the workers are to have the others until then. Another build of the same file
finds that many fewer jobs at its end."""
POLL_S = 0.2
"""How often a worker without work looks whether the build is to stop."""
PATIENCE = 4
"""How many times the limit of one candidate may pass without that anything is compiled: there may be a queue."""
GRACE_S = 15.0
"""How long a build that is out of time waits for the compilers of its last winners."""


Prepare = Callable[[Sequence[Job], Callable[[Job], None]], None]
"""`Measurer.prepare`."""


@dataclass(frozen=True)
class Won:
    """A raced job of which `picks` are to be confirmed next, after what is `confirmed` already."""

    job: Job
    outcomes: tuple[Outcome, ...]
    picks: tuple[Config, ...]
    confirmed: tuple[Outcome, ...] = ()


@dataclass(frozen=True)
class Task:
    """Something to do: a job to race or, when there is none, winners to confirm, several at once where confirming takes
    a new process."""

    race: Job | None = None
    confirm: tuple[Won, ...] = ()


class Scheduler(Thread):
    """Claims and prepares jobs in a thread of its own, until nothing is left or the work is stopped.

    Where compiling disturbs measuring (`work.overlap` is false), a chunk is prepared when nothing else is to be done.
    """

    def __init__(self, work: Work, prepare: Prepare, effort: Effort, workers: int) -> None:
        super().__init__(daemon=True)
        self._work, self._prepare, self._patience_s = work, prepare, PATIENCE * effort.compile_s
        self._ahead = AHEAD * workers if work.overlap else 0
        self._changed = Condition()
        self._compiling: dict[int, Job] = {}
        self._ready: deque[Job | Won] = deque()
        self._emitting: dict[int, tuple[Job, Won]] = {}
        self._due: deque[Won] = deque()
        self._in_hand = 0
        self._more = True
        self._moved = monotonic()
        self._until: float | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """The thread's body."""
        try:
            while self._wait_for_room() and (taken := self._work.take(self._work.chunk)):
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

    def next(self) -> Task | None:
        """The next thing to do; waits for it. None when nothing is left to do, or may be done any more.

        Whoever takes a task calls `finished` after it. Raises what ended the scheduler.
        """
        with self._changed:
            while not self._over():
                task = self._take()
                if task is not None:
                    self._in_hand += 1
                    return task
                self._changed.wait(POLL_S)
        if self._error is not None:
            raise self._error
        return None

    def finished(self) -> None:
        """A task is done."""
        with self._changed:
            self._in_hand -= 1
            self._changed.notify_all()

    def won(self, won: Won, emission: Job | None) -> None:
        """Have a winner confirmed, as soon as `emission` is compiled where its code is emitted."""
        with self._changed:
            if emission is None:
                self._has_come(won)
                self._changed.notify_all()
                return
            self._emitting[id(emission)] = emission, won
        self._prepare([emission], self._compiled)

    def upcoming(self) -> Won | None:
        """What will probably be confirmed next, None when that is not known yet."""
        with self._changed:
            found = [*self._due, *(one for one in self._ready if isinstance(one, Won))]
        return found[0] if found else None

    def abort(self) -> None:
        """Nothing more is to be done, not even confirmed."""
        self._work.stop.set()
        with self._changed:
            self._until = monotonic()
            self._changed.notify_all()

    def _compiled(self, job: Job) -> None:
        with self._changed:
            self._moved = monotonic()
            if (emission := self._emitting.pop(id(job), None)) is not None:
                self._has_come(emission[1])
            elif self._compiling.pop(id(job), None) is not None:
                self._ready.append(job)
            self._changed.notify_all()

    def _has_come(self, won: Won) -> None:
        """The code of a winner is there. What an earlier build has raced takes its turn with the races of this one: it
        may be thousands. Call it with the lock held."""
        (self._ready if self._earlier(won) else self._due).append(won)

    def _earlier(self, won: Won) -> bool:
        return bool(won.job.raced) and self._work.overlap

    def _wait_for_room(self) -> bool:
        """Whether jobs may be taken; waits for that."""
        with self._changed:
            while not self._work.stop.is_set():
                earlier = sum(self._earlier(won) for _, won in self._emitting.values())
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
            # What was raced is confirmed, as far as that takes no longer than a moment.
            if self._until is None:
                self._until = monotonic() + GRACE_S
            return self._idle() or monotonic() > self._until
        return self._idle() and not (self._more or self._compiling or self._ready)

    def _take(self) -> Task | None:
        """What to do now, None for nothing. Call it with the lock held."""
        racing = not self._work.stop.is_set()
        stuck = racing and monotonic() - self._moved > self._patience_s
        if stuck and not (self._ready or self._due):
            self._give_up_waiting()
        if self._due and (self._work.overlap or not (self._ready and racing)):
            # Together where each would start a process, one by one where many workers could take them.
            return Task(confirm=tuple(self._due.popleft() for _ in range(1 if self._work.overlap else len(self._due))))
        if not (self._ready and racing):
            return None
        ready = self._ready.popleft()
        return Task(confirm=(ready,)) if isinstance(ready, Won) else Task(race=ready)

    def _give_up_waiting(self) -> None:
        """Nothing was compiled for very long: measuring the job that has waited longest will tell which candidate it
        is."""
        self._moved = monotonic()
        if self._compiling:
            self._ready.append(self._compiling.pop(next(iter(self._compiling))))
        else:
            self._due.extend(won for _, won in self._emitting.values())
            self._emitting.clear()
