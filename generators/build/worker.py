"""A worker of a build: a thread that races jobs and confirms winners on its measurer, and reports in messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from queue import SimpleQueue
from threading import Thread
from time import monotonic

from gemmdb.generators.backend import Candidate, Job, Lost, Measurer, Outcome
from gemmdb.generators.build.race import confirm, race, unconfirmed
from gemmdb.generators.build.scheduler import Scheduler, Task, Won
from gemmdb.generators.effort import Effort
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.processes.pool import Stopped
from gemmdb.table.measurement import MAX_DETAIL, Status


@dataclass(frozen=True)
class Phase:
    """A worker has started a phase."""

    name: str
    problem: Problem | None = None


@dataclass(frozen=True)
class Finished:
    """A job with all its outcomes, ready to be stored. `more`: its winner must still be confirmed."""

    job: Job
    outcomes: tuple[Outcome, ...]
    more: bool = False

    @property
    def done(self) -> bool:
        """Whether the job counts as measured now. False for a job of an earlier build that still needs confirming."""
        return not (self.more and self.job.searched)


@dataclass(frozen=True)
class Confirmed:
    """More outcomes of a finished job: its winner, measured in another process."""

    job: Job
    outcomes: tuple[Outcome, ...]

    @property
    def done(self) -> bool:
        """Whether the job counts as measured now. It did already if this build searched it."""
        return bool(self.job.searched)


@dataclass(frozen=True)
class Ended:
    """A worker has nothing left to do, or failed with `error`. `seconds`: how long it ran. `busy_s`: how much of that
    its device spent in timed calls; None if unknown."""

    error: BaseException | None = None
    seconds: float = 0.0
    busy_s: float | None = None


Message = Phase | Finished | Confirmed | Ended


class Worker(Thread):
    """Works until the scheduler has no more tasks. Its last message is always Ended."""

    def __init__(
        self, scheduler: Scheduler, measurer: Measurer, effort: Effort, messages: SimpleQueue[Message]
    ) -> None:
        super().__init__(daemon=True)
        self._scheduler, self._measurer, self._effort, self._messages = scheduler, measurer, effort, messages

    def run(self) -> None:
        """The thread's body."""
        started, failure = monotonic(), None
        try:
            while (task := self._next()) is not None:
                try:
                    self._do(task)
                except Lost as lost:
                    if not self._scheduler.lost(task):
                        self._set_aside(task, lost)
                finally:
                    self._scheduler.finished()
        except Stopped:
            pass
        except BaseException as error:
            failure = error
        self._messages.put(Ended(failure, monotonic() - started, self._measurer.busy_s))

    def _next(self) -> Task | None:
        self._messages.put(Phase("waiting"))
        return self._scheduler.next(self._measurer.available)

    def _do(self, task: Task) -> None:
        if task.race is not None:
            self._race(task.race)
        if task.confirm:
            fresh = self._measurer.fresh()
            for won in task.confirm:
                self._confirm(won, fresh)

    def _race(self, job: Job) -> None:
        self._messages.put(Phase("racing", job.problem))
        outcomes = () if job.searched else tuple(race(job, self._effort, self._measurer))
        known = job.searched or outcomes
        picks = unconfirmed(known, job.confirmed, self._effort) if self._effort.confirm else ()
        self._messages.put(Finished(job, outcomes, more=bool(picks)))
        if picks:
            self._confirm_later(Won(job, known, picks))

    def _confirm(self, won: Won, fresh: Measurer) -> None:
        self._messages.put(Phase("confirming", won.job.problem))
        if self._effort.rivals:
            self._expect(won, self._measurer)
        again = confirm(won.job, won.picks, self._effort, fresh)
        if self._effort.rivals:
            upcoming = self._scheduler.upcoming()
            if upcoming is not None:
                self._expect(upcoming, fresh)
            # One process is one sample: kernels of a few microseconds differ by some percent between processes.
            right = [o.config for o in again if o.status is Status.OK and o.config != ATEN]
            again += confirm(won.job, list(dict.fromkeys(right)), self._effort, self._measurer) if right else []
        confirmed = (*won.confirmed, *again)
        picks = unconfirmed(won.outcomes, confirmed, self._effort)
        if picks:
            self._confirm_later(replace(won, picks=picks, confirmed=confirmed))
        else:
            self._messages.put(Confirmed(won.job, confirmed))

    def _set_aside(self, task: Task, lost: Lost) -> None:
        """Report what is to be measured of a task as failed."""

        def failed(configs: Iterable[Config]) -> tuple[Outcome, ...]:
            return tuple(Outcome(config, lost.status, detail=f"set aside: {lost}"[:MAX_DETAIL]) for config in configs)

        if task.race is not None:
            illegal = (
                Outcome(c.config, Status.ILLEGAL, detail=c.rejected.reason) for c in task.race.candidates if c.rejected
            )
            self._messages.put(Finished(task.race, (*illegal, *failed(task.race.legal))))
        for won in task.confirm:
            self._messages.put(Confirmed(won.job, (*won.confirmed, *failed(won.picks))))

    def _expect(self, won: Won, measurer: Measurer) -> None:
        measurer.expect(won.job.problem, [measurer.emitted(pick) for pick in won.picks])

    def _confirm_later(self, won: Won) -> None:
        """Have the code of the winners compiled. The worker does other tasks until then."""
        emitted = [config for pick in won.picks if (config := self._measurer.emitted(pick)) != pick]
        emission = replace(won.job, candidates=tuple(map(Candidate, emitted)))
        self._scheduler.won(won, emission if emitted else None)
