"""Progress of a running build."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol as Interface

from gemmdb.key.problem import Problem


@dataclass(frozen=True)
class State:
    """State of a build. `total`: all jobs; `done`: jobs in the table; `before`: those of them from an earlier build;
    `phase`: `starting`, `compiling`, `racing`, `confirming`, `timing` (of `verify`), `waiting` (for another build of
    the same file, or followed by what it waits for) or `finished`. `current`: the current problem. `eta_s`: estimated
    seconds to the end with all confirmations, None while unknown."""

    total: int
    done: int
    before: int = 0
    phase: str = "starting"
    current: Problem | None = None
    eta_s: float | None = None


SECONDS = {"cpu": 15.0, "cuda": 6.0}
"""Expected seconds per problem of a build on one device, until one was measured. CPU: fp32 linears on two cores. GPU:
seven builds of 7 to 39 problems on one H200 took 4 to 9 seconds per problem."""


class Progress(Interface):
    """Receives every state of a build, from the thread that called `build`."""

    def update(self, state: State) -> None:
        """Show `state`. Must return quickly: the build waits for it."""


@dataclass
class Tracker:
    """Count the jobs of a build and estimate the remaining time from the pace so far. `progress`: None for no reports.
    `expected_s`: seconds per job until one is done, None if unknown."""

    progress: Progress | None
    total: int
    before: int
    expected_s: float | None = None
    done: int = 0
    started: float = field(default_factory=monotonic)
    _phase: str = "starting"

    def __post_init__(self) -> None:
        self.done = self.before
        self.say("starting")

    def say(self, phase: str, current: Problem | None = None) -> None:
        self._phase = phase
        if self.progress is not None:
            self.progress.update(State(self.total, self.done, self.before, phase, current, self._eta()))

    def finished(self, problem: Problem) -> None:
        self.done += 1
        self.say(self._phase, problem)

    @property
    def pace_s(self) -> float | None:
        """Seconds per job so far; None before the first is done."""
        fresh = self.done - self.before
        return (monotonic() - self.started) / fresh if fresh else None

    def _eta(self) -> float | None:
        left, spent = self.total - self.done, monotonic() - self.started
        if self.pace_s is not None:
            return self.pace_s * left
        return None if self.expected_s is None else max(self.expected_s * left - spent, self.expected_s)
