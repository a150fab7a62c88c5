"""Physically impossible times in a table, for `verify`."""

from __future__ import annotations

from dataclasses import dataclass, field

from gemmdb.cost.possible import least_us, possible
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.lookup.evidence import verdict_is_possible
from gemmdb.table.measurement import Measurement
from gemmdb.table.record import Record
from gemmdb.table.verdict import Verdict


@dataclass
class Impossible:
    """Number of impossible times found, and an example in words."""

    count: int = 0
    example: str = ""
    _known: set[tuple[int, int]] = field(default_factory=set)

    def row(self, row: Measurement) -> None:
        """Note a measurement's time and its ATen reference time, if impossible."""
        if row.times is not None:
            self._note(min(row.times.median_us, row.times.aten_us), row.problem, row.device, row.protocol.l2)

    def record(self, record: Record, problem: Problem, device: Device) -> None:
        """Note the impossible times of a record. Without a time of ATen, a record has no microseconds."""
        before = self.count
        for group in record.groups:
            for time in group.times if group.aten_us else ():
                self._note(group.aten_us * time.ratio, problem, device, group.l2)
        if self.count > before:
            self._known.add((problem.key, device.key))

    def verdict(self, verdict: Verdict) -> None:
        """Note the shorter time of a verdict, if it is impossible and not in an already noted record."""
        if (verdict.problem.key, verdict.device.key) not in self._known and not verdict_is_possible(verdict):
            us = verdict.aten_us * min(verdict.ratio, 1.0)
            self._note(us, verdict.problem, verdict.device, verdict.protocol.l2)

    @property
    def message(self) -> str:
        """Return the finding and its fix; empty without impossible times."""
        if not self.count:
            return ""
        times, count = ("times are", "these") if self.count > 1 else ("time is", "it")
        return (
            f"{self.count:,} {times} impossible, for example {self.example}; lookups leave {count} out: build the"
            " problems again, or do not use the file"
        )

    def _note(self, us: float, problem: Problem, device: Device, l2: str) -> None:
        if possible(us, problem, device, l2):
            return
        self.count += 1
        if not self.example:
            least = least_us(problem, device, l2)
            self.example = f"{us:.3g} us for {problem.head} on {device.sku}, where the minimum is {least:.3g} us"
