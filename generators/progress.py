"""Progress of a running build."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
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
    `slower`: how many times as long as on an idle machine that is; `limited`: whether the time limit comes first."""

    total: int
    done: int
    before: int = 0
    phase: str = "starting"
    current: Problem | None = None
    eta_s: float | None = None
    most_s: float | None = None
    slower: float = 1.0
    limited: bool = False


class Progress(Interface):
    """Receives every state of a build, from the thread that called `build`."""

    def update(self, state: State) -> None:
        """Show `state`. Must return quickly: the build waits for it."""


@dataclass(frozen=True)
class Expected:
    """Expected seconds of a build. `start_s`: before its first job; `jobs`: of each job that is left, on one worker;
    `workers`: how many work in parallel; `ahead`: number of jobs that are prepared together, so that the first one
    seems to take their time; `more_s`: of jobs that may follow, on one worker; `slower`: how many times as long as on
    an idle machine all that is; `compiled_s`: until nvcc has compiled what the jobs on `waiting` wait for, while the
    others are measured."""

    start_s: float
    jobs: Sequence[tuple[Problem, float]]
    workers: int = 1
    ahead: int = 1
    more_s: float = 0.0
    slower: float = 1.0
    compiled_s: float = 0.0
    waiting: Collection[Problem] = frozenset()

    @lazy
    def by_problem(self) -> Mapping[Problem, float]:
        """Seconds of a job by problem."""
        return dict(self.jobs)

    @lazy
    def work_s(self) -> float:
        """Seconds of all jobs that are left, with all workers."""
        return sum(seconds for _, seconds in self.jobs) / self.workers

    @lazy
    def waiting_s(self) -> float:
        """Seconds of the jobs that wait for nvcc, with all workers."""
        return sum(seconds for problem, seconds in self.jobs if problem in self.waiting) / self.workers

    @lazy
    def idle_s(self) -> float:
        """Seconds that the workers wait for nvcc with nothing else to measure."""
        others_s = self.work_s - self.waiting_s
        return max(self.compiled_s - self.start_s - others_s, 0.0) if self.waiting else 0.0

    def spent_s(self, done_s: float, taken_s: float) -> float:
        """Seconds that the start and jobs of `done_s` should have taken, if they took `taken_s`: what they took longer
        may have been spent on waiting for nvcc."""
        spent_s = self.start_s + done_s
        return spent_s + min(self.idle_s, max(taken_s - spent_s, 0.0))

    def left_s(self, done_s: float, spent_s: float, pace: float = 1.0) -> float:
        """Seconds of what is left after `spent_s` seconds, in which jobs of `done_s` were done, at a pace."""
        left_s = max(self.work_s - done_s, 0.0)
        until_s = max(self.compiled_s - spent_s, 0.0) if self.waiting else 0.0
        return max(pace * left_s, until_s + pace * min(self.waiting_s, left_s))

    @lazy
    def mean_s(self) -> float:
        """Seconds of the average job, with all workers."""
        return self.work_s / max(len(self.jobs), 1)


@dataclass
class Tracker:
    """Count the jobs of a build and estimate the remaining time: as expected, corrected by how long the jobs so far
    took. `progress`: None for no reports. `expected`: None if nothing is known before the first job is done.
    `limit_s`: the time limit."""

    progress: Progress | None
    total: int
    before: int
    expected: Expected | None = None
    limit_s: float = inf
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
            ends_s = max(self.limit_s - (monotonic() - self.started), 0.0)
            limited = most_s is not None and most_s > ends_s
            eta_s, most_s = (None if one is None else min(one, ends_s) for one in (eta_s, most_s))
            self.progress.update(
                State(self.total, self.done, self.before, phase, current, eta_s, most_s, slower, limited)
            )

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
        expected_s = self.expected.spent_s(self.done_s, taken_s)
        return (taken_s + ahead_s) / max(expected_s + ahead_s, 1e-9)

    @property
    def least_pace(self) -> float:
        """`pace`, or less if all jobs so far were faster: a limit of time should not end a build too early."""
        if self.expected is None or not self.done_s:
            return 1.0
        taken_s = monotonic() - self.started
        return min(self.pace, taken_s / self.expected.spent_s(self.done_s, taken_s))

    def _eta(self) -> float | None:
        left, spent_s = self.total - self.done, monotonic() - self.started
        if self.expected is None:
            fresh = self.done - self.before
            return spent_s / fresh * left if fresh else None
        if not left:
            return 0.0
        if not self.done_s and not self._started_s:
            start_s = self.expected.start_s
            return max(start_s + self.expected.left_s(0.0, start_s) - spent_s, self.expected.mean_s)
        return self.expected.left_s(self.done_s, spent_s, self.pace)
