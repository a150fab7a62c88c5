"""The efforts of a build (how much it tries) as frozen data."""

from __future__ import annotations

from dataclasses import dataclass

from gemmdb.errors import InputError


@dataclass(frozen=True)
class Effort:
    """`breadth`: how much of the space is tried; 0 is the least, and each backend's space defines it.

    `samples`: timed calls of a full measurement; `estimate`: timed calls of the short one at the start of the race.
    `drop`: a candidate whose estimate is this many times the best one is dropped, but `keep` of them always survive.
    `states`: cache states (`gemmdb.key.problem.L2_STATES`), one protocol each. `compile_s`, `measure_s`: time limits
    in seconds for compiling one candidate and for one round of measuring. `confirm`: whether the winner is measured
    again in a new process.
    `rivals`: how many configs close to the winner are measured again with it, as emitted code, in two processes.
    """

    name: str
    breadth: int
    samples: int
    estimate: int
    drop: float
    keep: int
    states: tuple[str, ...]
    compile_s: float
    measure_s: float
    confirm: bool = True
    rivals: int = 0


EFFORTS = {
    effort.name: effort
    for effort in (
        # There are so few candidates that none is dropped, so no status depends on the noise of an estimate.
        Effort("quick", 0, 30, 5, 2.0, 16, ("cold",), 120.0, 120.0),
        Effort("standard", 1, 60, 7, 2.0, 4, ("cold",), 120.0, 240.0),
        Effort("full", 2, 100, 7, 3.0, 8, ("cold", "hot"), 300.0, 600.0),
    )
}
"""By name, for a CPU."""
GPU_EFFORTS = {
    effort.name: effort
    for effort in (
        # The first two have the same protocol, so one can continue a table of the other.
        Effort("quick", 0, 30, 3, 1.05, 5, ("cold",), 120.0, 60.0, rivals=12),
        Effort("standard", 1, 30, 3, 1.05, 5, ("cold",), 120.0, 60.0, rivals=12),
        Effort("full", 2, 60, 3, 1.05, 8, ("cold", "hot"), 300.0, 120.0, rivals=12),
    )
}
"""By name, for a GPU. Of a hundred candidates, an estimate of three samples leaves a handful."""


DEFAULTS = {"cpu": "quick"}
"""The default effort by device kind; `standard` for others, whose `quick` tries only one backend."""


def named(name: str | None, kind: str = "cpu") -> Effort:
    """The effort with that name for devices of `kind`; None gives the default. Raises InputError."""
    efforts = EFFORTS if kind == "cpu" else GPU_EFFORTS
    name = name or DEFAULTS.get(kind, "standard")
    if name not in efforts:
        raise InputError(f"unknown effort {name!r}; known: {', '.join(efforts)}")
    return efforts[name]
