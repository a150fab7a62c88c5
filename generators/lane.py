"""A lane of a build: one thread that takes jobs, has them raced on its measurer, and reports to the main thread."""

from __future__ import annotations

from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread

from gemmdb.config import Config
from gemmdb.generators.effort import Effort
from gemmdb.generators.interfaces import Job, Measurer, Outcome
from gemmdb.generators.pool import Stopped
from gemmdb.generators.queue import Work
from gemmdb.generators.search import confirm, race, winner
from gemmdb.problem import Problem


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
    """A lane has nothing left to do, or failed with `error`."""

    error: BaseException | None = None


Message = Phase | Finished | Confirmed | Ended


class Lane(Thread):
    """Works until the queue is empty or stopped; its last message is always Ended."""

    def __init__(self, work: Work, measurer: Measurer, effort: Effort, messages: SimpleQueue[Message]) -> None:
        super().__init__(daemon=True)
        self._work, self._measurer, self._effort, self._messages = work, measurer, effort, messages

    def run(self) -> None:
        """The thread's body."""
        try:
            self._run()
        except Stopped:
            self._messages.put(Ended())
        except BaseException as error:
            self._messages.put(Ended(error))
        else:
            self._messages.put(Ended())

    def _run(self) -> None:
        current = self._next()
        while current:
            ahead = self._next() if self._work.overlap else []
            self._measure(current)
            current = ahead or self._next()

    def _measure(self, jobs: list[Job]) -> None:
        winners: dict[Job, Config] = {}
        for job in jobs:
            if self._work.stop.is_set():
                return
            self._messages.put(Phase("measuring", job.problem))
            outcomes = race(job, self._effort, self._measurer)
            self._messages.put(Finished(job, tuple(outcomes)))
            best = winner(outcomes)
            if best is not None and self._effort.confirm:
                winners[job] = best
        if winners:
            # One new process for all of them: starting one takes seconds.
            self._measurer.renew()
        for job, config in winners.items():
            self._messages.put(Phase("measuring", job.problem))
            self._messages.put(Confirmed(job, tuple(confirm(job, config, self._effort, self._measurer))))

    def _next(self) -> list[Job]:
        self._messages.put(Phase("waiting"))
        taken = self._work.take(self._work.chunk)
        if taken:
            self._messages.put(Phase("compiling", taken[0].problem))
            self._measurer.prepare(taken)
        return taken
