"""The answer of the process that times: the result of loading each candidate, and the times of the correct ones.

Imports no torch, so that reading or making answers does not need it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gemmdb.kernels.config import Config
from gemmdb.table.measurement import Status

SAMPLE_US = 3000.0
"""A graph has only as many calls as fit into this time."""


@dataclass(frozen=True)
class Loaded:
    """The result of loading a candidate. `fatal`: the process can do no further work on the GPU."""

    status: Status
    error: float | None = None
    compile_s: float | None = None
    detail: str = ""
    fatal: bool = False


@dataclass(frozen=True)
class Round:
    """The results of loading some candidates, and samples in microseconds of the correct ones. `busy_us`: microseconds
    of all replays on the GPU."""

    loads: dict[Config, Loaded]
    samples: dict[Config, list[float]] = field(default_factory=dict)
    busy_us: float = 0.0

    @property
    def fatal(self) -> bool:
        """Whether the process can do no further work on the GPU; candidates without a load were not tried."""
        return any(load.fatal for load in self.loads.values())
