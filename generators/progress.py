"""Progress of a running build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol as Interface

from gemmdb.key.canonical import lazy
from gemmdb.key.problem import Problem


@dataclass(frozen=True)
class State:
    """State of a build. `total`: all jobs; `done`: jobs in the table; `before`: those of them from an earlier build;
    `phase`: `starting`, `compiling`, `racing`, `confirming`, `timing` (of `verify`), `waiting` (for another build of
    the same file, or followed by what it waits for) or `finished`. `current`: the current problem. `eta_s`: estimated
    seconds to the end with all confirmations, None while unknown; `most_s`: the same with all jobs that may follow;
    `slower`: how many times as long as on an idle machine that is."""

    total: int
    done: int
    before: int = 0
    phase: str = "starting"
    current: Problem | None = None
    eta_s: float | None = None
    most_s: float | None = None
    slower: float = 1.0


class Progress(Interface):
    """Receives every state of a build, from the thread that called `build`."""

    def update(self, state: State) -> None:
        """Show `state`. Must return quickly: the build waits for it."""


@dataclass(frozen=True)
class Expected:
    """Expected seconds of a build. `start_s`: before its first job; `jobs`: of each job that is left, on one worker;
    `workers`: how many work in parallel; `ahead`: number of jobs that are prepared together, so that the first one
    seems to take their time; `more_s`: of jobs that may follow, on one worker; `slower`: how many times as long as on
    an idle machine all that is."""

    start_s: float
    jobs: Sequence[tuple[Problem, float]]
    workers: int = 1
    ahead: int = 1
    more_s: float = 0.0
    slower: float = 1.0

    @lazy
    def by_problem(self) -> Mapping[Problem, float]:
        """Seconds of a job by problem."""
        return dict(self.jobs)

    @lazy
    def work_s(self) -> float:
        """Seconds of all jobs that are left, with all workers."""
        return sum(seconds for _, seconds in self.jobs) / self.workers

    @lazy
    def mean_s(self) -> float:
        """Seconds of the average job, with all workers."""
        return self.work_s / max(len(self.jobs), 1)


@dataclass
class Tracker:
    """Count the jobs of a build and estimate the remaining time: as expected, corrected by how long the jobs so far
    took. `progress`: None for no reports. `expected`: None if nothing is known before the first job is done."""

    progress: Progress | None
    total: int
    before: int
    expected: Expected | None = None
    done: int = 0
    done_s: float = 0.0
    started: float = field(default_factory=monotonic)
    phase: str = "starting"
    _started_s: float = 0.0
    _credited: dict[Problem, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.done = self.before
        self.say("starting")

    def say(self, phase: str, current: Problem | None = None) -> None:
        self.phase = phase
        if self.progress is not None:
            eta_s, more_s = self._eta(), self.expected.more_s / self.expected.workers if self.expected else 0.0
            most_s = None if eta_s is None else eta_s + self.pace * more_s
            slower = self.expected.slower if self.expected else 1.0
            self.progress.update(State(self.total, self.done, self.before, phase, current, eta_s, most_s, slower))

    def prepared(self) -> None:
        """Note that the start is over: its pace is expected of the jobs."""
        self._started_s = monotonic() - self.started

    def raced(self, problem: Problem, left_s: float) -> None:
        """Note that all of a job is done but `left_s` expected seconds, which confirm its winner."""
        self._credit(problem, left_s)

    def finished(self, problem: Problem) -> None:
        self.done += 1
        self._credit(problem)
        self._credited.pop(problem, None)
        self.say(self.phase, problem)

    def _credit(self, problem: Problem, left_s: float = 0.0) -> None:
        if self.expected is not None:
            done_s = max(self.expected.by_problem.get(problem, 0.0) - left_s, 0.0) / self.expected.workers
            self.done_s += done_s - self._credited.get(problem, 0.0)
            self._credited[problem] = done_s

    @property
    def pace(self) -> float:
        """How many times as long as expected the start and the jobs so far took. The first jobs count little: others
        are prepared together with them."""
        if self.expected is None or not (self.done_s or self._started_s):
            return 1.0
        ahead_s = self.expected.ahead * self.expected.mean_s
        taken_s = monotonic() - self.started if self.done_s else self._started_s
        expected_s = self.expected.start_s + self.done_s
        return (taken_s + ahead_s) / max(expected_s + ahead_s, 1e-9)

    @property
    def least_pace(self) -> float:
        """`pace`, or less if all jobs so far were faster: a limit of time should not end a build too early."""
        if self.expected is None or not self.done_s:
            return 1.0
        return min(self.pace, (monotonic() - self.started) / (self.expected.start_s + self.done_s))

    def _eta(self) -> float | None:
        left, spent_s = self.total - self.done, monotonic() - self.started
        if self.expected is None:
            fresh = self.done - self.before
            return spent_s / fresh * left if fresh else None
        if not left:
            return 0.0
        if not self.done_s and not self._started_s:
            return max(self.expected.start_s + self.expected.work_s - spent_s, self.expected.mean_s)
        return self.pace * max(self.expected.work_s - self.done_s, 0.0)
