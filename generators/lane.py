"""A lane of a build: one thread that takes jobs, has them raced on its measurer, and reports to the main thread."""

from __future__ import annotations

from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from time import monotonic, sleep

from gemmdb.config import Config
from gemmdb.generators.effort import Effort
from gemmdb.generators.interfaces import Candidate, Job, Measurer, Outcome
from gemmdb.generators.pool import Stopped
from gemmdb.generators.queue import Work
from gemmdb.generators.search import confirmations, race, winner
from gemmdb.problem import Problem

POLL_S = 0.05
"""How often jobs that wait for their compilers are looked at again."""
GRACE_S = 15.0
"""How long a build that is out of time waits for the compilers of its last winners."""


@dataclass(frozen=True)
class Phase:
    """A lane has begun something."""

    name: str
    problem: Problem | None = None


@dataclass(frozen=True)
class Finished:
    """A job with all its outcomes, ready to be stored."""

    job: Job
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True)
class Confirmed:
    """More outcomes of a finished job: its winner in another process."""

    job: Job
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True)
class Ended:
    """A lane has nothing left to do, or failed with `error`. `seconds` it has run; `busy_s` of these its device has
    spent in timed calls, None when that is unknown."""

    error: BaseException | None = None
    seconds: float = 0.0
    busy_s: float | None = None


Message = Phase | Finished | Confirmed | Ended


@dataclass(frozen=True)
class _Won:
    """A job whose winner is still to be confirmed, which waits for no compiler once `emission` is ready."""

    job: Job
    outcomes: list[Outcome]
    emission: Job


class Lane(Thread):
    """Works until the queue is empty or stopped; its last message is always Ended."""

    def __init__(self, work: Work, measurer: Measurer, effort: Effort, messages: SimpleQueue[Message]) -> None:
        super().__init__(daemon=True)
        self._work, self._measurer, self._effort, self._messages = work, measurer, effort, messages
        self._winners: list[_Won] = []

    def run(self) -> None:
        """The thread's body."""
        started, failure = monotonic(), None
        try:
            self._run()
        except Stopped:
            pass
        except BaseException as error:
            failure = error
        self._messages.put(Ended(failure, monotonic() - started, self._measurer.busy_s))

    def _run(self) -> None:
        waiting = self._next()
        while waiting and not self._work.stop.is_set():
            ahead = self._next() if self._work.overlap else []
            late = self._measure(waiting, patient=not ahead)
            self._confirm([won for won in self._winners if self._measurer.ready(won.emission)])
            waiting = [*late, *ahead] or self._next()
        self._confirm_rest()

    def _confirm_rest(self) -> None:
        """Confirm the last winners. Once the build is to stop, what is not compiled soon goes unconfirmed."""
        started = monotonic()
        while self._winners and monotonic() - started < (
            GRACE_S if self._work.stop.is_set() else self._effort.compile_s
        ):
            due = [won for won in self._winners if self._measurer.ready(won.emission)]
            self._confirm(due)
            if not due:
                sleep(POLL_S)
        if not self._work.stop.is_set():
            self._confirm(list(self._winners))

    def _measure(self, jobs: list[Job], patient: bool) -> list[Job]:
        """Race jobs, those first whose kernels are compiled. Unless `patient`, up to half of them are given back when
        they still wait for their compilers."""
        waiting = list(jobs)
        while waiting and not self._work.stop.is_set():
            job = self._choose(waiting, 0 if patient else len(jobs) // 2)
            if job is None:
                break
            waiting.remove(job)
            outcomes = self._race(job)
            if self._effort.confirm and (best := winner(outcomes)) is not None:
                self._winners.append(_Won(job, outcomes, self._emit(job, best)))
        return waiting

    def _confirm(self, due: list[_Won]) -> None:
        """Confirm winners. Called for many at once: where another process has to be started, it takes seconds."""
        fresh = self._measurer.fresh() if due else self._measurer
        for won in due:
            self._messages.put(Phase("measuring", won.job.problem))
            again = confirmations(won.job, won.outcomes, self._effort, fresh)
            self._messages.put(Confirmed(won.job, tuple(again)))
            self._winners.remove(won)

    def _choose(self, waiting: list[Job], spare: int) -> Job | None:
        """The first job that need not wait for a compiler; waits for one, unless no more than `spare` jobs are left.
        None for none."""
        until = monotonic() + self._effort.compile_s
        while not self._work.stop.is_set():
            ready = next((job for job in waiting if self._measurer.ready(job)), None)
            if ready is not None or len(waiting) <= spare:
                return ready
            if monotonic() > until:
                return waiting[0]
            self._work.stop.wait(POLL_S)
        return None

    def _race(self, job: Job) -> list[Outcome]:
        self._messages.put(Phase("measuring", job.problem))
        outcomes = race(job, self._effort, self._measurer)
        self._messages.put(Finished(job, tuple(outcomes)))
        return outcomes

    def _emit(self, job: Job, config: Config) -> Job:
        """Have the code compiled that will be confirmed; a job that is ready when it is."""
        emission = Job(job.problem, job.protocol, (Candidate(self._measurer.emitted(config)),))
        if emission.legal != (config,):
            self._measurer.prepare([emission])
        return emission

    def _next(self) -> list[Job]:
        self._messages.put(Phase("waiting"))
        taken = self._work.take(self._work.chunk)
        if taken:
            self._messages.put(Phase("compiling", taken[0].problem))
            self._measurer.prepare(taken)
        return taken
