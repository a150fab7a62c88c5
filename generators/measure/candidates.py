"""Cached candidates of a problem, and the problems that a build need not or cannot measure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from gemmdb.devices import detect
from gemmdb.errors import GemmdbError
from gemmdb.generators import effort as efforts
from gemmdb.generators.backend import Candidate, Space
from gemmdb.generators.effort import Effort
from gemmdb.generators.measure.cpu.space import CpuSpace
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import installed
from gemmdb.lookup import lowering
from gemmdb.lookup.acceptance import ranges
from gemmdb.lookup.ask import Ask
from gemmdb.outcome import ONLY_ATEN
from gemmdb.processes.pool import IsolatedProcess
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog
from gemmdb.table.measurement import Status

PER_PROCESS, PLANNED_S = 100, 600.0
"""Least number of problems for which a process is started, half a second each, and the most seconds that it may take.
On a GPU, ranking the candidates of a problem takes 20 milliseconds."""


class CachedSpace:
    """A space that caches its results, which depend on the arguments alone. Jobs share the tuples."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._known: dict[tuple[Problem, Device, Effort], tuple[Candidate, ...]] = {}

    def candidates(self, problem: Problem, device: Device, effort: Effort) -> tuple[Candidate, ...]:
        asked = (problem, device, effort)
        if asked not in self._known:
            self._known[asked] = tuple(self._space.candidates(problem, device, effort))
        return self._known[asked]

    def compute(self, problems: Sequence[Problem], device: Device, effort: Effort) -> None:
        """Compute the candidates of many problems in parallel. What a process fails to compute is left to
        `candidates`."""
        processes = min(len(problems) // PER_PROCESS, detect.cores())
        if processes < 2:
            return

        def computed(share: Sequence[Problem]) -> None:
            process = IsolatedProcess()
            with contextlib.suppress(GemmdbError):
                found = process.call(PLANNED_S, _planned, self._space, share, device, effort)
                if found.status is Status.OK:
                    self._known |= {(problem, device, effort): one for problem, one in found.value}
            process.close()

        with ThreadPoolExecutor(processes) as threads:
            list(threads.map(computed, (problems[first::processes] for first in range(processes))))


def _planned(
    space: Space, problems: Sequence[Problem], device: Device, effort: Effort
) -> list[tuple[Problem, tuple[Candidate, ...]]]:
    return [(problem, tuple(space.candidates(problem, device, effort))) for problem in problems]


def only_aten(problem: Problem, device: Device, space: Space, effort: Effort) -> Rejected | None:
    """Return why ATen is the only candidate of a problem; None if there are others."""
    every = space.candidates(problem, device, effort)
    others = [one for one in every if one.config != ATEN and not one.config.spec.measured_only]
    reasons = dict.fromkeys(str(one.rejected) for one in others if one.rejected)
    return None if any(not one.rejected for one in others) else Rejected(": ".join([ONLY_ATEN, *reasons][:2]))


def alone(query: Query, space: Space, effort: Effort) -> Rejected | None:
    """Return why ATen is the only kernel that can serve a query; None if a build may find another."""
    return lowering.only_aten(query) or only_aten(query.problem, query.device, space, effort)


def range_rejection(ask: Ask, missing: Iterable[Problem], space: Space, effort: Effort) -> Rejected | None:
    """Return why a range is not measured: only ATen can serve it, or a size of `missing` takes too long and one kernel
    has to serve all sizes. None if it is measured."""
    if rejected := lowering.only_aten(ask.query):
        return rejected
    return ranges.too_long(ask, missing, lambda problem: _calls(problem, ask.device, space, effort))


def fits(problem: Problem, device: Device, space: Space, effort: Effort) -> bool:
    """Whether the timed calls of a size are expected to take no longer than a build allows."""
    return ranges.fits(problem, device, _calls(problem, device, space, effort))


def _calls(problem: Problem, device: Device, space: Space, effort: Effort) -> int:
    """Return the number of timed calls of a problem."""
    tried = sum(not one.rejected for one in space.candidates(problem, device, effort))
    return effort.samples * min(tried, max(effort.keep, 2))


def never_built(query: Query, catalog: Catalog) -> str:
    """Return why no build can change that ATen runs: it is the only candidate, or a size of its range takes too long to
    measure. Empty if a build may. On a GPU there are always other candidates."""
    if query.device.kind != "cpu":
        return ""
    space, quick = CpuSpace(), efforts.named("quick")
    if reason := alone(query, space, quick):
        return str(reason)
    ask = Ask(query, catalog.tables, Policy(), installed(query.device.kind))
    return str((ask.symbolic and range_rejection(ask, ranges.unmeasured(ask), space, quick)) or "")
