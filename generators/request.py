"""Request and report of a build."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gemmdb.key.device import Device

JSON_NAMES = {"workers": "lanes", "worker_seconds": "lane_seconds", "expected_s": "expected_seconds"}
"""Fields of a BuildReport with other names in JSON, which scripts and recorded reports rely on."""
MAX_WORDS, MAX_WORD_CHARS = 64, 200
"""Number of words of a command, and characters per word, that a run keeps."""


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """Build options. `arch`: `native`, `cpu` or a GPU's arch. `ops`, `dtypes` (of the activation): only these; empty
    for all. `shapes`: the name of a preset or a file (see `shapes.load`). `effort`: see `effort.named`. None for
    either is the device kind's default. `out`: the table to write; None for the user's own. `gpus`: maximum number
    of GPUs. `ray`: the cluster to build over (see `generators.cluster`). `modelled`: predict if this machine has no
    such device. `minutes`: it ends after this time, at most a tenth later; None for no limit. `allow`, `deny`:
    regular expressions that choose candidates (see `build.select`). `propose`: a file of vLLM whose configs are
    tried as well (see `generators.proposals`). `every`: also measure the GEMMs of a workload that fall back to ATen
    whatever their times are (see `build.recorded`). `wait_s`: how many seconds to wait while other programs use the
    machine, and then to stop; None measures anyway. `pace`: how many times as long as expected an earlier build
    took, None if unknown; `slower`: how many times as long as on an idle machine it takes if it does not wait for
    one, None to look."""

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
    propose: Path | None = None
    every: bool = False
    wait_s: float | None = None
    pace: float | None = None
    slower: float | None = None

    def after(self, before: BuildReport) -> BuildRequest:
        """Return the request of a later part of the same build, which probably has the pace of the part `before`."""
        return replace(self, pace=before.pace) if before.measured else self

    def recorded(self) -> dict[str, Any]:
        """Return the request, JSON-ready, as a run keeps it."""
        return {name: brief(value) for name, value in asdict(self).items() if value not in (None, (), False)}


@dataclass(frozen=True, kw_only=True)
class BuildReport:
    """Result of a build. `problems`: number requested; `jobs`: number of their jobs; `before`: jobs that the table had
    already; `measured`: jobs done now; `elsewhere`: jobs that another build finished meanwhile; `rows`: rows added;
    `statuses`: number of these rows by status. `interrupted`: stopped by Ctrl-C; finished jobs are in the table.
    `warnings`: lines to show besides those of `notes`. `workers`: number of devices used; `worker_seconds`: their total
    running time; `busy_seconds`: the part of it spent in timed calls (without checks, copies and set-up), None if
    unknown. `disturbed`: number of rows timed while other programs kept the machine busy; `busy`: their use at the
    start, empty if unknown. `modelled`: nothing was measured, the rows come from the cost model. `left_out`: number of
    GEMMs of a workload that were not measured, by reason. `stopped`: the use by other programs for which the build
    stopped early, empty if it did not. `expected_s`: the seconds that the done jobs were expected to take."""

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
    disturbed: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    stopped: str = ""
    expected_s: float = 0.0
    busy: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """All lines to show: the warnings, and what other programs disturbed."""
        if not self.disturbed:
            return self.warnings
        why = f" ({self.busy})" if self.busy else ""
        return (
            *self.warnings,
            f"other programs used the machine{why}: {self.disturbed:,} of {self.rows:,} timings were disturbed and are"
            " not used; run the same command again when the machine is idle",
        )

    @property
    def pace(self) -> float:
        """How many times as long as expected the build took."""
        return self.seconds / self.expected_s if self.expected_s > 0 else 1.0

    @property
    def left(self) -> int:
        return self.jobs - self.before - self.measured - self.elsewhere

    @property
    def seconds_per_job(self) -> float | None:
        """Device seconds per job, including confirmations and waiting for compilers."""
        return self.worker_seconds / self.measured if self.measured else None

    @property
    def busy_share(self) -> float | None:
        known = self.busy_seconds is not None and self.worker_seconds > 0
        return (self.busy_seconds or 0.0) / self.worker_seconds if known else None

    def document(self) -> dict[str, Any]:
        """Return the fields under their JSON names, with all lines to show as warnings."""
        found = {JSON_NAMES.get(name, name): value for name, value in asdict(self).items() if name != "busy"}
        return {**found, "warnings": self.notes}


def together(first: BuildReport, second: BuildReport) -> BuildReport:
    """Combine the reports of two builds of the same table, one after the other."""
    statuses = Counter(first.statuses) + Counter(second.statuses)
    busy = [one.busy_seconds for one in (first, second) if one.busy_seconds is not None]
    added = (
        "problems",
        "jobs",
        "before",
        "measured",
        "elsewhere",
        "rows",
        "seconds",
        "worker_seconds",
        "disturbed",
        "expected_s",
    )
    return replace(
        second,
        **{name: getattr(first, name) + getattr(second, name) for name in added},
        statuses=dict(sorted(statuses.items())),
        warnings=tuple(dict.fromkeys((*first.warnings, *second.warnings))),
        workers=max(first.workers, second.workers),
        busy=first.busy or second.busy,
        busy_seconds=sum(busy) if busy else None,
    )


def resumed(first: BuildReport, second: BuildReport) -> BuildReport:
    """Combine the reports of a build that stopped and of its rest, as if it had not stopped. If the rest is complete,
    it has repeated what was disturbed before."""
    both, known = together(first, second), first.before + first.elsewhere + second.elsewhere
    measured = max(second.jobs - known - second.left, 0)
    whole = replace(both, problems=second.problems, jobs=second.jobs, before=first.before, measured=measured)
    return whole if second.left else replace(whole, disturbed=second.disturbed, busy=second.busy)


def brief(value: Any) -> Any:
    """Return a value of a request as a run keeps it. Paths are reduced to their names: tables are published and must
    not contain local paths. A text of more than MAX_WORD_CHARS characters is truncated."""
    if isinstance(value, Path) or (isinstance(value, str) and Path(value).is_absolute()):
        value = Path(value).name
    return f"{value[:MAX_WORD_CHARS]}..." if isinstance(value, str) and len(value) > MAX_WORD_CHARS else value


def command() -> list[str]:
    """Return this process's command as recorded in a table: without paths, without a cluster's address, and limited to
    the first MAX_WORDS words, since a test runner may have thousands."""
    words = [Path(sys.argv[0]).name, *map(brief, sys.argv[1:])]
    for place, word in enumerate(words):
        if word.startswith("--ray="):
            words[place] = "--ray=ADDRESS"
        elif word == "--ray" and place + 1 < len(words):
            words[place + 1] = "ADDRESS"
    left = len(words) - MAX_WORDS
    return words if left <= 0 else [*words[:MAX_WORDS], f"... and {left:,} more"]
