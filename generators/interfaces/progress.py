"""The progress that a running build reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol as Interface

from gemmdb.key.problem import Problem


@dataclass(frozen=True)
class State:
    """The state of a build. `total`: all jobs; `done`: jobs in the table; `before`: those of them from an earlier
    build; `phase`: `starting`, `compiling`, `measuring`, `waiting` (for another build of the same file) or `finished`.
    `current`: the current problem. `eta_s`: estimated seconds to the end, None while unknown."""

    total: int
    done: int
    before: int = 0
    phase: str = "starting"
    current: Problem | None = None
    eta_s: float | None = None


class Progress(Interface):
    """Receives every state of a build, from the thread that called `build`."""

    def update(self, state: State) -> None:
        """Show `state`. Must return quickly: the build waits for it."""


class Silent:
    """A Progress that shows nothing."""

    def update(self, state: State) -> None:
        """Do nothing."""


@dataclass
class Tracker:
    """Counts the jobs of a build and estimates the remaining time from the pace so far."""

    progress: Progress
    total: int
    before: int
    done: int = 0
    started: float = field(default_factory=monotonic)

    def __post_init__(self) -> None:
        self.done = self.before
        self.say("starting")

    def say(self, phase: str, current: Problem | None = None) -> None:
        """Report the phase and the current problem."""
        fresh, left = self.done - self.before, self.total - self.done
        eta = (monotonic() - self.started) / fresh * left if fresh else None
        self.progress.update(State(self.total, self.done, self.before, phase, current, eta))

    def finished(self, problem: Problem) -> None:
        """Count one job."""
        self.done += 1
        self.say("measuring", problem)
