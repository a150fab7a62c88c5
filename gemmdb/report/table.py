"""The data of a table's report: what each verdict says, against ATen and against the roofline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from gemmdb.cost.roofline import limits
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.report.floor import floor_us, peak
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Verdict

MOST_VERDICTS = 10_000
"""The most verdicts of one page. A browser draws this many points in a second or two."""
STATES = ("cold", "hot")
"""The states of the last-level cache."""


@dataclass(frozen=True, slots=True)
class Row:
    """One verdict: what a lookup of its problem answers with. `floor_us`: microseconds of one call by what the device
    can compute and move, at least the launch."""

    verdict: Verdict
    floor_us: float

    @property
    def gain(self) -> float:
        """How many times faster than ATen the pick is."""
        return self.verdict.speedup

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the gain. That of ATen itself is 1."""
        ratio, spread = self.verdict.ratio, self.verdict.spread
        if self.verdict.pick == ATEN:
            return 1.0, 1.0
        return 1 / (ratio * (1 + spread)), 1 / (ratio * max(1 - spread, 0.01))

    @property
    def computes(self) -> tuple[str, float]:
        """How the problem is computed, in words, and the device's TFLOP/s for that."""
        return peak(self.verdict.problem, self.verdict.device)

    @property
    def of_floor(self) -> float:
        """The time of the pick relative to the floor."""
        return self.verdict.expected_us / self.floor_us


@dataclass(frozen=True, slots=True)
class Limits:
    """A device with its peaks: GB/s of memory and 16-bit TFLOP/s. `estimated`: they come from the number of its units,
    not from figures in the table."""

    device: Device
    gb_per_s: float
    tflops: float
    estimated: bool


@dataclass(frozen=True)
class TableReport:
    """One table. `rows`: its verdicts, or a random part of them if `partial`; `problems`: how many (problem, device)
    pairs the table has; `measurements`: how many candidates were tried; `origin`: `measured` or `modelled`, per device;
    `provenance`: what each run recorded of itself, JSON-ready."""

    name: str
    digest: str
    rows: tuple[Row, ...]
    problems: int
    measurements: int
    devices: tuple[Limits, ...]
    origin: Mapping[str, str] = field(default_factory=dict)
    provenance: Sequence[Mapping[str, Any]] = ()
    partial: bool = False

    @property
    def gain(self) -> float:
        """The geometric mean of the gains; 1 without rows."""
        return geometric(row.gain for row in self.rows)

    @property
    def beaten(self) -> int:
        """For how many rows ATen is beaten beyond doubt: the whole interval of the gain is above 1."""
        return sum(row.interval[0] > 1 for row in self.rows)

    @property
    def backends(self) -> dict[str, int]:
        """How many rows each backend wins, the most first."""
        found: dict[str, int] = {}
        for row in self.rows:
            found[row.verdict.pick.backend] = found.get(row.verdict.pick.backend, 0) + 1
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    @property
    def spread(self) -> float:
        """The median relative spread of the picks; 0 without rows."""
        return median(row.verdict.spread for row in self.rows) if self.rows else 0.0

    def slowest(self, count: int, floor_us: float = 0.0) -> list[Row]:
        """The rows whose picks are slowest relative to the floor, worst first, among those with a floor of at least
        `floor_us`: below a few microseconds, the launch is most of the time."""
        fitting = [row for row in self.rows if row.floor_us >= floor_us]
        return sorted(fitting, key=lambda row: (-row.of_floor, row.verdict.problem.text))[:count]


def of_table(path: Path, most: int = MOST_VERDICTS) -> TableReport:
    """The report of the table in a file: the verdicts that lookups get, which are those of the newest protocol and
    toolchain. If there are more than `most`, a random part of them. Raises TableError."""
    with Table.open(path) as table:
        summary, found = table.summary(), tuple(islice(rows(table), most + 1))
        return TableReport(
            path.name,
            table.digest,
            found[:most],
            sum(sum(entry["problems"].values()) for entry in summary),
            sum(entry["measurements"] for entry in summary),
            tuple(_limits(device) for device in table.devices()),
            {entry["device"]: entry["origin"] for entry in summary},
            tuple(table.provenance()),
            partial=len(found) > most,
        )


def geometric(values: Iterable[float]) -> float:
    """The geometric mean of positive numbers; 1 without any."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def rows(table: Table) -> Iterator[Row]:
    """The verdicts that lookups get of a table, read in small pieces."""
    for problem, device in table.decided():
        for l2 in STATES:
            verdict = table.verdict(problem, device, l2)
            if verdict is not None and not problem.empty:
                yield Row(verdict, floor_us(problem, device))


def _limits(device: Device) -> Limits:
    known = {"copy_gb_per_s", "peak_tflops"} <= device.figures.keys()
    return Limits(device, *limits(device), estimated=not known)
