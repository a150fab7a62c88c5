"""A Measurer that answers from recorded Measurements, so that the whole search runs without a device or a clock."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from gemmdb.generators.backend import Job, Measurer, Outcome, ignore, outcome
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Measurement, Protocol, Status


class Replay(Measurer):
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

    def fresh(self) -> Replay:
        """A replay whose rows have one more sample than recorded, so that they are new rows. `renewed` counts these
        calls."""
        self.renewed += 1
        again = copy.copy(self)
        again._more = 1
        return again

    def _outcome(self, problem: Problem, config: Config) -> Outcome:
        row = self._rows.get((problem, config))
        if row is None:
            return Outcome(config, Status.ERROR, detail="not recorded")
        status = Status.OK if row.status is Status.SLOW else row.status
        times = replace(row.times, samples=row.times.samples + self._more) if row.times else None
        return replace(outcome(row), config=config, status=status, times=times)
