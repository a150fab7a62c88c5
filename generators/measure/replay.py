"""A Measurer that answers from recorded Measurements, so that the whole search runs without a device or a clock."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from gemmdb.generators.interfaces.backend import Job, Outcome, ignore
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Measurement, Protocol, Status


class Replay:
    """Answers with the recorded row of a (problem, config), the first of several; `calls` is what it was asked for.

    A config without a row is an `error`, as one that does not compile.
    """

    def __init__(self, rows: Iterable[Measurement]) -> None:
        self._rows: dict[tuple[Problem, Config], Measurement] = {}
        for row in rows:
            self._rows.setdefault((row.problem, row.config), row)
        self.calls: list[tuple[Problem, tuple[Config, ...], int]] = []
        self.renewed = self._more = 0

    def prepare(self, jobs: Sequence[Job], ready: Callable[[Job], None] = ignore) -> None:
        """There is nothing to wait for."""
        for job in jobs:
            ready(job)

    def measure(
        self, problem: Problem, configs: Sequence[Config], protocol: Protocol, samples: int
    ) -> Sequence[Outcome]:
        """The recorded outcomes; a row that was dropped as slow is timed like any other."""
        self.calls.append((problem, tuple(configs), samples))
        return [self._outcome(problem, config) for config in configs]

    def expect(self, problem: Problem, configs: Sequence[Config]) -> None:
        """There is nothing to make ready."""

    def emitted(self, config: Config) -> Config:
        """The config: there are no other rows."""
        return config

    def fresh(self) -> Replay:
        """One that answers with rows of their own, of one more sample than recorded; counts it."""
        self.renewed += 1
        again = copy.copy(self)
        again._more = 1
        return again

    @property
    def busy_s(self) -> float | None:
        """There is no device."""
        return None

    def close(self) -> None:
        """Nothing to close."""

    def _outcome(self, problem: Problem, config: Config) -> Outcome:
        row = self._rows.get((problem, config))
        if row is None:
            return Outcome(config, Status.ERROR, detail="not recorded")
        status = Status.OK if row.status is Status.SLOW else row.status
        times = replace(row.times, samples=row.times.samples + self._more) if row.times else None
        return Outcome(config, status, times, row.error, row.compile_s, row.detail)
