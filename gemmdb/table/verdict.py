"""Verdicts: a pure function of a problem's Measurements, pooled over runs, in any order."""

from __future__ import annotations

import functools
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.table.measurement import UNSAFE, Measurement, Protocol, Status, Times

TIE = 0.01  # Two configs closer than this (relative) are tied, regardless of their intervals
PROCESS_US, PROCESS = 0.3, 0.04
"""Noise between processes: half the 95% interval of a ratio to ATen, as PROCESS_US microseconds, capped at PROCESS of
the time. Samples of one process do not show it. Of 840 pairs of the same emitted code in two processes on an H200, 19
in 20 differed by less than 5.6% at 6 to 9 us, 3.2% up to 14 us, 1.8% up to 25 us."""


class Verdict(NamedTuple):
    """The pick for a Problem on a Device under a Protocol and a toolchain class. It is a tuple because every lookup
    creates one, and a frozen dataclass is three times slower.

    `toolchain`: the newest that measured the pick. `ties`: all configs as good as the best, the pick first. `ratio`:
    the pick's time relative to ATen. `spread`: relative half-width of its 95% interval. `aten_us`: ATen's time per call
    in microseconds. `runs`: number of runs that measured the pick.
    """

    problem: Problem
    device: Device
    protocol: Protocol
    toolchain: Toolchain
    ties: tuple[Config, ...]
    ratio: float
    spread: float
    aten_us: float
    runs: int

    @property
    def pick(self) -> Config:
        """The config to run."""
        return self.ties[0]

    @property
    def klass(self) -> str:
        """The toolchain class that the verdict is valid for."""
        return self.toolchain.klass

    @property
    def expected_us(self) -> float:
        """The pick's time per call in microseconds."""
        return self.ratio * self.aten_us

    @property
    def speedup(self) -> float:
        """The pick's speedup over ATen."""
        return 1 / self.ratio


@dataclass(frozen=True, slots=True)
class Pooled:
    """One config's full measurements on one problem, pooled over runs: median ratio to ATen, and spread."""

    config: Config
    ratio: float
    spread: float
    rows: tuple[Measurement, ...]

    @property
    def order(self) -> tuple[int, int, float, str]:
        """The sort key for tied configs: ATen, then cheaper compile, then smaller split-K (no workspace, one summation
        order), then faster, then by text."""
        spec = self.config.spec
        parts = math.prod(max(1, int(value)) for name, value in self.config.params if name in spec.splits)
        return spec.cost, parts, self.ratio, self.config.text

    @property
    def emitted(self) -> bool:
        """Whether compiler-emitted code was timed."""
        return any(row.emitted for row in self.rows)

    @property
    def disturbed(self) -> bool:
        """Whether the machine was busy in every measurement."""
        return bool(self.rows) and all(row.disturbed for row in self.rows)

    @property
    def servable(self) -> bool:
        """Whether a run measured it in full, on a quiet machine. A config with only a short estimate is never picked.
        ATen needs no evidence."""
        if self.config.spec.measured_only:
            return False
        return any(row.status is Status.OK for row in self.rows) and (self.config == ATEN or not self.disturbed)


def pool(rows: Iterable[Measurement], banned: Collection[Config] = (), slow: bool = False) -> list[Pooled]:
    """Return the configs of one problem that were measured in full, fastest first; with `slow`, include those with only
    the short estimate of a `slow` row. Excludes `banned` configs, and those that were wrong or crashed in any row."""
    by_config: dict[Config, list[Measurement]] = defaultdict(list)
    for row in rows:
        by_config[row.config].append(row)
    found = [
        _pool_one(config, rows, slow)
        for config, rows in by_config.items()
        if config not in banned and not any(row.status in UNSAFE for row in rows)
    ]
    return sorted((one for one in found if one is not None), key=lambda one: (one.ratio, one.order))


def _pool_one(config: Config, rows: list[Measurement], slow: bool) -> Pooled | None:
    timed = [row for row in rows if row.status is Status.OK]
    if slow and not timed:
        timed = [row for row in rows if row.status is Status.SLOW]
    # Emitted code is what runs. If it was timed, ignore times of the kernel alone.
    timed = [row for row in timed if row.emitted] or timed
    timed = [row for row in timed if not row.disturbed] or timed
    if len(timed) > 1:  # Skip the sort for the common case: texts are long.
        timed.sort(key=lambda row: row.text)
    times = [row.times for row in timed if row.times]
    return Pooled(config, *together(times, config), tuple(timed)) if times else None


def unsafe(rows: Iterable[Measurement]) -> frozenset[Config]:
    """Return the configs that were wrong or crashed in any row of a problem."""
    return frozenset(row.config for row in rows if row.status in UNSAFE)


def decide_all(rows: Iterable[Measurement]) -> list[Verdict]:
    """Return the verdicts from all rows of one problem on one device: at most one per protocol and toolchain class.

    A config that was wrong or crashed under any of them is served under none, since the kernel is at fault.
    """
    groups: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for row in (rows := list(rows)):
        groups[row.protocol.text, row.toolchain.klass].append(row)
    banned = unsafe(rows)
    return [verdict for name in sorted(groups) if (verdict := decide(groups[name], banned))]


def decide(rows: Iterable[Measurement], banned: Collection[Config] = ()) -> Verdict | None:
    """Return the Verdict from the rows of one (problem, device, protocol, toolchain class); None if ATen has no full
    row."""
    pooled = pool(rows, banned)
    reference = next((p for p in pooled if p.config == ATEN), None)
    if reference is None:
        return None
    ties = best(confirmed([p for p in pooled if p.servable]))
    pick = ties[0]
    first = pick.rows[0]
    return Verdict(
        first.problem,
        first.device,
        first.protocol,
        max((row.toolchain for row in pick.rows), key=age),
        tuple(p.config for p in ties),
        pick.ratio,
        pick.spread,
        median(row.times.median_us for row in reference.rows if row.times),
        len({row.run for row in pick.rows}),
    )


def confirmed(pooled: Sequence[Pooled]) -> Sequence[Pooled]:
    """Return the configs that can be picked. If any config was timed as emitted code, these are ATen and the configs
    timed more than once or as emitted code: the others' times may differ from those of the served code by an unknown
    amount."""
    again = [p for p in pooled if p.config == ATEN or len(p.rows) > 1 or p.emitted]
    return again if any(p.emitted for p in again if p.config != ATEN) else pooled


def best(pooled: Sequence[Pooled]) -> list[Pooled]:
    """Return the configs that are as good as the first, in order of preference. `pooled`: the configs of one problem,
    fastest first, including ATen."""
    ties = sorted((p for p in pooled if tied(pooled[0], p)), key=lambda p: p.order)
    # A noisy config slower than ATen can be tied with the best while ATen is not.
    return ties if ties[0].config == ATEN else [p for p in ties if p.ratio < 1]


def tied(best: Pooled, other: Pooled) -> bool:
    """Return whether `other` is as good as `best`: within 1%, or within the sum of both intervals."""
    return other.ratio <= best.ratio * (1 + max(TIE, best.spread + other.spread))


@functools.lru_cache(maxsize=256)
def age(toolchain: Toolchain) -> tuple[tuple[tuple[int, ...], ...], str]:
    """Return a sort key from old to new toolchains: their version numbers (2.9 before 2.13), then the text."""
    versions = (toolchain.torch, toolchain.triton, toolchain.cuda, toolchain.cutlass, toolchain.gemmdb)
    return tuple(tuple(map(int, re.findall(r"\d+", version))) for version in versions), toolchain.text


def together(times: Sequence[Times], config: Config) -> tuple[float, float]:
    """Return the ratio to ATen and the spread of a config with several times. The spread includes the distance between
    these times, and the known noise between processes."""
    within = median(t.spread for t in times)
    if config == ATEN:
        return 1.0, within
    ratios = [t.ratio for t in times]
    ratio = median(ratios)
    between = (max(ratios) - min(ratios)) / 2 / ratio
    process = min(PROCESS, PROCESS_US / median(t.median_us for t in times)) / math.sqrt(len(times))
    return ratio, max(between, process, within)
