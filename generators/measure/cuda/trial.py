"""What the process that times answers: what became of each candidate, and the times of those that are right.

Imports no torch, so that whoever only reads or makes answers need not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gemmdb.kernels.config import Config
from gemmdb.table.measurement import Status


@dataclass(frozen=True)
class Loaded:
    """What became of loading a candidate. `fatal`: the process can do no further work on the GPU."""

    status: Status
    error: float | None = None
    compile_s: float | None = None
    detail: str = ""
    fatal: bool = False


@dataclass(frozen=True)
class Trial:
    """What became of loading some candidates, and samples in microseconds of those that are right. `busy_us`: what all
    replays took on the GPU."""

    loads: dict[Config, Loaded]
    samples: dict[Config, list[float]] = field(default_factory=dict)
    busy_us: float = 0.0

    @property
    def fatal(self) -> bool:
        """Whether the process can do no further work on the GPU; candidates without a load were not come to."""
        return any(load.fatal for load in self.loads.values())
