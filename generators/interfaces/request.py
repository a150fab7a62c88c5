"""What is asked of a build, and what became of it."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gemmdb.key.device import Device

JSON_NAMES = {"workers": "lanes", "worker_seconds": "lane_seconds"}
"""Fields of a BuildReport whose names in JSON differ: scripts and recorded reports have these."""


@dataclass(frozen=True)
class BuildRequest:
    """What to build. `arch`: `native`, `cpu` or a GPU's arch. `ops`, `dtypes` (of the activation): only these, empty
    for all. `shapes`: a preset's name or a file (see `shapes.load`), `effort`: see `effort.named`; None for the default
    of the device's kind.
    `out`: the table, None for the user's own. `gpus`: how many at most. `ray`: not in this version. `modelled`: predict
    where such a device is not in this machine. `minutes`: after that time no further problem is begun, None for no
    limit.
    `allow`, `deny`: regular expressions, which candidates are tried (see `candidate_filter.select`).
    """

    arch: str = "native"
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    shapes: str | None = None
    effort: str | None = None
    out: Path | None = None
    gpus: int | None = None
    ray: str | None = None
    modelled: bool = False
    minutes: float | None = None
    allow: str = ""
    deny: str = ""


@dataclass(frozen=True)
class BuildReport:
    """What became of a build. `problems` asked for; `jobs` they make; `before`: jobs that were in the table already;
    `measured`: jobs done now; `elsewhere`: done meanwhile by another build; `rows` added; `statuses` of these rows.
    `interrupted`: stopped by Ctrl-C, everything finished until then is in the table. `warnings`: lines to show.
    `workers`: how many devices worked; `worker_seconds`: for how long, together; `busy_seconds`: how much of that they
    spent in timed calls, None when that is unknown. Checks, copies and set-up of problems are not among these.
    `modelled`: nothing was measured, the rows are the cost model's."""

    out: Path
    device: Device
    problems: int
    jobs: int
    before: int
    measured: int
    elsewhere: int
    rows: int
    statuses: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    workers: int = 0
    worker_seconds: float = 0.0
    busy_seconds: float | None = None
    modelled: bool = False

    @property
    def left(self) -> int:
        """The jobs that nobody has done."""
        return self.jobs - self.before - self.measured - self.elsewhere

    @property
    def seconds_per_job(self) -> float | None:
        """Device seconds held per job, confirmations and waiting for compilers included."""
        return self.worker_seconds / self.measured if self.measured else None

    @property
    def busy_share(self) -> float | None:
        """The share of these seconds that the devices spent in timed calls."""
        known = self.busy_seconds is not None and self.worker_seconds > 0
        return (self.busy_seconds or 0.0) / self.worker_seconds if known else None

    def document(self) -> dict[str, Any]:
        """The fields under the names that JSON files have for them."""
        return {JSON_NAMES.get(name, name): value for name, value in asdict(self).items()}


def unplaced(value: Any) -> Any:
    """A value of a request, a path without its folders: tables are published, and these say nothing of a run."""
    if isinstance(value, Path) or (isinstance(value, str) and Path(value).is_absolute()):
        return Path(value).name
    return value


def command() -> list[str]:
    """The command of this process, as a table tells it."""
    return [Path(sys.argv[0]).name, *map(unplaced, sys.argv[1:])]
