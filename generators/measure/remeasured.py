"""What re-timing a sample of a table found: whether its verdicts hold, and which times have changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gemmdb.generators.backend import Candidate, Job, Measurer
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.canonical import lazy
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Measurement
from gemmdb.table.verdict import Verdict, pool, tied

TOLERANCE = 0.02
"""A row is confirmed if its time is within this relative distance of the recorded one."""
MAX_BEHIND = 0.1
"""Tolerated slowdown of a pick against the best, at the ends of both intervals, for its verdict to hold. Two equally
fast kernels of a few microseconds reach 0.08, since processes differ."""


@dataclass(frozen=True)
class Moved:
    """A row that was not confirmed: the recorded and the new microseconds per call; None if it failed now."""

    problem: Problem
    config: Config
    recorded_us: float
    now_us: float | None

    @property
    def change(self) -> float:
        """Relative change of the new time from the recorded one; infinite if it failed now."""
        return float("inf") if self.now_us is None else abs(self.now_us / self.recorded_us - 1)


@dataclass(frozen=True)
class Sampled:
    """A verdict to check, with the recorded microseconds of the configs to re-time. `emitted`: the configs that were
    timed as emitted code; `doubtful`: those whose recorded times other programs disturbed, with which no time is
    compared."""

    verdict: Verdict
    recorded: Mapping[Config, float]
    emitted: frozenset[Config]
    doubtful: frozenset[Config] = frozenset()

    def job(self, measurer: Measurer) -> Job:
        """Return the job of re-timing them: configs that were timed as emitted code are timed as emitted code again."""
        configs = [measurer.emitted(config) if config in self.emitted else config for config in self.recorded]
        return Job(self.verdict.problem, self.verdict.protocol, tuple(map(Candidate, configs)))


@dataclass(frozen=True)
class Checked:
    """A sampled verdict with its new rows."""

    sampled: Sampled
    rows: Sequence[Measurement]

    @property
    def is_lost(self) -> bool:
        """Whether other programs disturbed all its times."""
        timed = [row for row in self.rows if row.times]
        return bool(timed) and all(row.disturbed for row in timed)

    @property
    def holds(self) -> bool | None:
        """Whether the verdict holds by the new times; None if they are inconclusive."""
        return holds(self.sampled.verdict, self.rows, self.sampled.doubtful)

    @property
    def compared(self) -> Iterator[Moved]:
        """The new times beside the recorded ones, without those that other programs disturbed then or now."""
        recorded = self.sampled.recorded
        for row in self.rows:
            if not ((row.times and row.disturbed) or row.config in self.sampled.doubtful):
                us = row.times.median_us if row.times else None
                yield Moved(row.problem, row.config, recorded[row.config], us)


@dataclass(frozen=True)
class Remeasured:
    """Result of re-timing on `device`. `done`: the verdicts that were checked; `rest`: those that were not, if it
    stopped because of other programs: `stopped` is their use of the machine; or after Ctrl-C: `interrupted`.
    `tolerance`: relative, within which a time is confirmed. `busy`: one phrase on other use of the devices at the
    start."""

    device: Device
    done: tuple[Checked, ...]
    rest: tuple[Sampled, ...] = ()
    tolerance: float = TOLERANCE
    busy: str = ""
    stopped: str = ""
    interrupted: bool = False

    @property
    def problems(self) -> int:
        """Number of verdicts that were checked."""
        return len(self.done)

    @lazy
    def _judged(self) -> Counter[bool | None]:
        return Counter(one.holds for one in self.done)

    @property
    def held(self) -> int:
        """Number of verdicts that still hold: their pick is tied with the best of the new times."""
        return self._judged[True]

    @property
    def failed(self) -> int:
        """Number of verdicts that no longer hold."""
        return self._judged[False]

    @property
    def unclear(self) -> int:
        """Number of verdicts of which the new times say neither."""
        return self._judged[None]

    @lazy
    def _compared(self) -> Sequence[Moved]:
        return [moved for one in self.done for moved in one.compared]

    @property
    def rows(self) -> int:
        """Number of times that were compared with recorded ones."""
        return len(self._compared)

    @property
    def within(self) -> int:
        """Number of them within the tolerance."""
        return self.rows - len(self.moved)

    @lazy
    def moved(self) -> tuple[Moved, ...]:
        """The others, the largest change first."""
        beyond = (one for one in self._compared if one.change > self.tolerance)
        return tuple(sorted(beyond, key=lambda one: one.change, reverse=True))

    @property
    def timed(self) -> int:
        """Number of new times, compared or not."""
        return sum(bool(row.times) for one in self.done for row in one.rows)

    @property
    def disturbed(self) -> int:
        """Number of new times that were taken while other programs kept the machine busy, or with an unsteady
        reference."""
        return sum(row.disturbed for one in self.done for row in one.rows)

    @property
    def doubtful(self) -> int:
        """Number of recorded times that other programs disturbed."""
        return sum(len(one.sampled.doubtful) for one in self.done)


def holds(verdict: Verdict, rows: Sequence[Measurement], doubtful: Collection[Config] = ()) -> bool | None:
    """Return whether a verdict holds by the new times; None if they are inconclusive. `doubtful`: configs whose
    recorded times were disturbed, so that the verdict could not know how fast they are.

    It does not hold if the pick failed, or is slower than the best, beyond both intervals. It holds if the pick is tied
    with the best, surely no more than MAX_BEHIND slower, and, unless it is ATen, surely faster than ATen.
    """
    pooled = [one for one in pool(rows) if not one.config.spec.measured_only]
    pick = next((p for p in pooled if p.config == verdict.pick), None)
    if pick is None:
        return False
    if any(p.disturbed for p in pooled):
        return None
    best_known = next(p for p in pooled if p is pick or p.config not in doubtful)
    if not tied(best_known, pick):
        return False
    if not tied(pooled[0], pick):
        return None
    slowest = pick.ratio * (1 + pick.spread)
    if any(slowest / (p.ratio * (1 - min(p.spread, 0.99))) - 1 > MAX_BEHIND for p in pooled if p is not pick):
        return None
    beside_aten = max(row.times.high_us / row.times.aten_us for row in pick.rows if row.times)
    return None if pick.config != ATEN and beside_aten >= 1 else True
