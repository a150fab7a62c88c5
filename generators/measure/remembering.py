"""The candidates of a problem, found once: a build asks for them when it sorts out what ends in ATen, when it estimates
how long a size takes, and when it makes the job."""

from __future__ import annotations

from gemmdb.generators.effort import Effort
from gemmdb.generators.interfaces.backend import Candidate, Space
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem


class Remembering:
    """A space that keeps its answers, which depend on nothing but the arguments. Jobs share the tuples."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._known: dict[tuple[Problem, Device, Effort], tuple[Candidate, ...]] = {}

    def candidates(self, problem: Problem, device: Device, effort: Effort) -> tuple[Candidate, ...]:
        """See `Space`."""
        asked = (problem, device, effort)
        if asked not in self._known:
            self._known[asked] = tuple(self._space.candidates(problem, device, effort))
        return self._known[asked]
