"""Worker of a build: a thread that races jobs and confirms winners on its measurer, and reports by message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic

from gemmdb.generators.backend import Candidate, Job, Lost, Measurer, Outcome
from gemmdb.generators.build.race import confirm, illegal, race, unconfirmed
from gemmdb.generators.build.scheduler import Scheduler, Task, Winner
from gemmdb.generators.effort import Effort
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.processes.pool import Stopped
from gemmdb.table.measurement import MAX_DETAIL, Status


@dataclass(frozen=True)
class Phase:
    name: str
    problem: Problem | None = None


@dataclass(frozen=True)
class Result:
    """Outcomes of a job, ready to be stored. `measured`: they complete the job's race, which happens once. `last`: no
    more follow; otherwise its winner must still be confirmed."""

    job: Job
    outcomes: tuple[Outcome, ...]
    measured: bool
    last: bool = True


@dataclass(frozen=True)
class Ended:
    """A worker has nothing left to do, or failed with `error`. `seconds`: how long it ran. `busy_s`: how much of that
    its device spent in timed calls; None if unknown."""

    error: BaseException | None
    seconds: float
    busy_s: float | None


@dataclass(frozen=True)
class Settle:
    """A question: `done` is set when all earlier messages have been dealt with."""

    done: Event


@dataclass(frozen=True)
class TimeIsUp:
    """The time limit is exceeded by all that is allowed: what runs is ended."""


Message = Phase | Result | Ended | Settle | TimeIsUp


class Worker(Thread):
    """Work until the scheduler has no more tasks. The last message is always Ended."""

    def __init__(
        self, scheduler: Scheduler, measurer: Measurer, effort: Effort, messages: SimpleQueue[Message]
    ) -> None:
        super().__init__(daemon=True)
        self._scheduler, self._measurer, self._effort, self._messages = scheduler, measurer, effort, messages

    def run(self) -> None:
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
        if isinstance(task, Job):
            self._race(task)
            return
        fresh = self._measurer.fresh()
        for winner in task:
            self._confirm(winner, fresh)

    def _race(self, job: Job) -> None:
        self._messages.put(Phase("racing", job.problem))
        outcomes = () if job.searched else tuple(race(job, self._effort, self._measurer))
        known = job.searched or outcomes
        picks = unconfirmed(known, job.confirmed, self._effort) if self._effort.confirm else ()
        self._messages.put(Result(job, outcomes, measured=not (picks and job.searched), last=not picks))
        if picks:
            self._confirm_later(Winner(job, known, picks))

    def _confirm(self, winner: Winner, fresh: Measurer) -> None:
        self._messages.put(Phase("confirming", winner.job.problem))
        if self._effort.rivals:
            self._expect(winner, self._measurer)
        again = confirm(winner.job, winner.picks, self._effort, fresh)
        if self._effort.rivals:
            upcoming = self._scheduler.upcoming()
            if upcoming is not None:
                self._expect(upcoming, fresh)
            # One process is one sample: kernels of a few microseconds differ by some percent between processes.
            right = [o.config for o in again if o.status is Status.OK and o.config != ATEN]
            again += confirm(winner.job, list(dict.fromkeys(right)), self._effort, self._measurer) if right else []
        confirmed = (*winner.confirmed, *again)
        picks = unconfirmed(winner.outcomes, confirmed, self._effort)
        if picks:
            self._confirm_later(replace(winner, picks=picks, confirmed=confirmed))
        else:
            self._messages.put(Result(winner.job, confirmed, measured=bool(winner.job.searched)))

    def _set_aside(self, task: Task, lost: Lost) -> None:
        def failed(configs: Iterable[Config]) -> tuple[Outcome, ...]:
            return tuple(Outcome(config, lost.status, detail=f"set aside: {lost}"[:MAX_DETAIL]) for config in configs)

        if isinstance(task, Job):
            self._messages.put(Result(task, (*illegal(task), *failed(task.legal)), measured=True))
            return
        for winner in task:
            outcomes = (*winner.confirmed, *failed(winner.picks))
            self._messages.put(Result(winner.job, outcomes, measured=bool(winner.job.searched)))

    def _expect(self, winner: Winner, measurer: Measurer) -> None:
        measurer.expect(winner.job.problem, [measurer.emitted(pick) for pick in winner.picks])

    def _confirm_later(self, winner: Winner) -> None:
        """Have the picks' code compiled. The worker does other tasks meanwhile."""
        emitted = [config for pick in winner.picks if (config := self._measurer.emitted(pick)) != pick]
        emission = replace(winner.job, candidates=tuple(map(Candidate, emitted)))
        self._scheduler.won(winner, emission if emitted else None)
