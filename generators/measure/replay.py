"""A Measurer that answers from recorded Measurements, so the whole race runs without a device or a clock."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from gemmdb.generators.backend import Job, Outcome, ignore, outcome
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Measurement, Protocol, Status


class Replay:
    """Answers with the first recorded row of a (problem, config). `calls`: the requests so far.

    A config without a row is an `error`, like a config that does not compile.
    """

    def __init__(self, rows: Iterable[Measurement]) -> None:
        self._rows: dict[tuple[Problem, Config], Measurement] = {}
        for row in rows:
            self._rows.setdefault((row.problem, row.config), row)
        self.calls: list[tuple[Problem, tuple[Config, ...], int]] = []
        self.renewed = self._more = 0

    def prepare(self, jobs: Sequence[Job], ready: Callable[[Job], None] = ignore) -> None:
        """Report every job as ready at once."""
        for job in jobs:
            ready(job)

    def measure(
        self, problem: Problem, configs: Sequence[Config], protocol: Protocol, samples: int
    ) -> Sequence[Outcome]:
        """The recorded outcomes. A row that was dropped as slow counts as fully timed."""
        self.calls.append((problem, tuple(configs), samples))
        return [self._outcome(problem, config) for config in configs]

    def available(self) -> bool:
        """True: the device is one of this host."""
        return True

    def ready(self, limit_s: float) -> bool:
        """True: there is nothing to start."""
        return True

    def compiled(self, problem: Problem, config: Config) -> bool:
        """True: nothing is compiled."""
        return True

    def expect(self, problem: Problem, configs: Sequence[Config]) -> None:
        """Do nothing."""

    def emitted(self, config: Config) -> Config:
        """The config itself, since there are no rows of emitted code."""
        return config

    def fresh(self) -> Replay:
        """A replay whose rows have one more sample than recorded, so that they are new rows. `renewed` counts these
        calls."""
        self.renewed += 1
        again = copy.copy(self)
        again._more = 1
        return again

    @property
    def busy_s(self) -> float | None:
        """None, since there is no device."""
        return None

    def close(self) -> None:
        """Do nothing."""

    def _outcome(self, problem: Problem, config: Config) -> Outcome:
        row = self._rows.get((problem, config))
        if row is None:
            return Outcome(config, Status.ERROR, detail="not recorded")
        status = Status.OK if row.status is Status.SLOW else row.status
        times = replace(row.times, samples=row.times.samples + self._more) if row.times else None
        return replace(outcome(row), config=config, status=status, times=times)
