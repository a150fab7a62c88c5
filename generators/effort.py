"""How much a build tries: the efforts as frozen data."""

from __future__ import annotations

from dataclasses import dataclass

from gemmdb.errors import InputError


@dataclass(frozen=True)
class Effort:
    """`breadth`: how much of the space is tried (0 is the least; each backend's space says what it means).

    `samples`: timed calls of a full measurement; `estimate`: of the short one that the race begins with. `drop`: a
    candidate whose estimate is that many times the best one is dropped, `keep` of them survive in any case. `states`:
    cache states, one protocol each. `compile_s`, `measure_s`: time limits of compiling one candidate and of one round
    of measuring, seconds. `confirm`: whether the winner is measured again in a new process. `rivals`: how many configs
    that came close to it are measured again along with it, as the code that the compiler emits, in two processes.
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
        # Few enough candidates that none is dropped, so the statuses do not depend on the noise of an estimate.
        Effort("quick", 0, 30, 5, 2.0, 16, ("cold",), 120.0, 120.0),
        Effort("standard", 1, 60, 7, 2.0, 4, ("cold",), 120.0, 240.0),
        Effort("full", 2, 100, 7, 3.0, 8, ("cold", "hot"), 300.0, 600.0),
    )
}
"""By name, for a CPU."""
GPU_EFFORTS = {
    effort.name: effort
    for effort in (
        # One protocol for the first two: a table of the one is continued by the other.
        Effort("quick", 0, 30, 3, 1.05, 5, ("cold",), 120.0, 60.0, rivals=12),
        Effort("standard", 1, 30, 3, 1.05, 5, ("cold",), 120.0, 60.0, rivals=12),
        Effort("full", 2, 60, 3, 1.05, 8, ("cold", "hot"), 300.0, 120.0, rivals=12),
    )
}
"""By name, for a GPU: a hundred candidates, of which an estimate of three samples leaves a handful."""


DEFAULTS = {"cpu": "quick"}
"""The effort of a bare `gemmdb build`, by device kind; `standard` elsewhere, where `quick` tries one backend alone."""


def named(name: str | None, kind: str = "cpu") -> Effort:
    """The effort of that name for devices of `kind`, `cpu` or another; None is the default. Raises InputError."""
    efforts = EFFORTS if kind == "cpu" else GPU_EFFORTS
    name = name or DEFAULTS.get(kind, "standard")
    if name not in efforts:
        raise InputError(f"unknown effort {name!r}; known: {', '.join(efforts)}")
    return efforts[name]
