"""Verdicts: a pure function of the Measurements of a problem, pooled over runs. Their order makes no difference."""

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
"""Half the 95% interval of a ratio to ATen between processes: PROCESS_US microseconds, at most PROCESS of the time. The
samples of one process do not show it. Of 840 pairs of the same emitted code in two processes on an H200, 19 in 20
differed by less than 5.6% at 6 to 9 us, 3.2% up to 14 us, 1.8% up to 25 us."""


class Verdict(NamedTuple):
    """The pick for a Problem on a Device under a Protocol and a toolchain class. It is a tuple because every lookup
    creates one, and a frozen dataclass takes three times as long.

    `toolchain`: the newest that measured the pick. `ties`: all configs as good as the best, the pick first. `ratio`:
    the pick's time relative to ATen. `spread`: half the width of its 95% interval, relative. `aten_us`: microseconds of
    one call of ATen. `runs`: how many runs measured the pick.
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
        """The toolchain class that the verdict holds for."""
        return self.toolchain.klass

    @property
    def expected_us(self) -> float:
        """Microseconds of one call of the pick."""
        return self.ratio * self.aten_us

    @property
    def speedup(self) -> float:
        """How many times faster than ATen the pick is."""
        return 1 / self.ratio


@dataclass(frozen=True, slots=True)
class Pooled:
    """One config's full measurements on one problem, pooled over runs: medians of ratio to ATen and spread."""

    config: Config
    ratio: float
    spread: float
    rows: tuple[Measurement, ...]

    @property
    def order(self) -> tuple[int, int, float, str]:
        """The order of preference among tied configs: ATen, then the cheaper compile, then the smaller split of K (no
        workspace, one summation order), then the faster, then the text."""
        spec = self.config.spec
        parts = math.prod(max(1, int(value)) for name, value in self.config.params if name in spec.splits)
        return spec.cost, parts, self.ratio, self.config.text

    @property
    def emitted(self) -> bool:
        """Whether its times are those of the code that the compiler emits."""
        return any(row.emitted for row in self.rows)

    @property
    def disturbed(self) -> bool:
        """Whether the machine was busy whenever it was timed."""
        return bool(self.rows) and all(row.disturbed for row in self.rows)

    @property
    def servable(self) -> bool:
        """Whether a run measured it in full, on a quiet machine. A config with only a short estimate is never picked.
        ATen needs no evidence."""
        return any(row.status is Status.OK for row in self.rows) and (self.config == ATEN or not self.disturbed)


def pool(rows: Iterable[Measurement], banned: Collection[Config] = (), slow: bool = False) -> list[Pooled]:
    """The configs of one problem that were measured in full, fastest first; with `slow` also those with only the short
    estimate of a `slow` row. None was ever wrong or crashed, neither in these rows nor among the `banned`."""
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
    # Emitted code is what runs. If it was timed, times of the kernel alone do not count.
    timed = [row for row in timed if row.emitted] or timed
    timed = [row for row in timed if not row.disturbed] or timed
    if len(timed) > 1:  # Texts are long, and most configs have one row.
        timed.sort(key=lambda row: row.text)
    times = [row.times for row in timed if row.times]
    return Pooled(config, *together(times, config), tuple(timed)) if times else None


def unsafe(rows: Iterable[Measurement]) -> frozenset[Config]:
    """The configs that were wrong or crashed in any of the rows of a problem."""
    return frozenset(row.config for row in rows if row.status in UNSAFE)


def decide_all(rows: Iterable[Measurement]) -> list[Verdict]:
    """The verdicts of all rows of one problem on one device: at most one per protocol and toolchain class.

    A config that was wrong or crashed under any of them is served under none, since the kernel is at fault.
    """
    groups: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for row in (rows := list(rows)):
        groups[row.protocol.text, row.toolchain.klass].append(row)
    banned = unsafe(rows)
    return [verdict for name in sorted(groups) if (verdict := decide(groups[name], banned))]


def decide(rows: Iterable[Measurement], banned: Collection[Config] = ()) -> Verdict | None:
    """The Verdict of the rows of one (problem, device, protocol, toolchain class); None while ATen has no full row."""
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
    """The configs that can be picked. If some config was timed as emitted code, these are ATen and the configs that
    were timed more than once or as emitted code: for the others it is unknown how far their times are from those of the
    served code."""
    again = [p for p in pooled if p.config == ATEN or len(p.rows) > 1 or p.emitted]
    return again if any(p.emitted for p in again if p.config != ATEN) else pooled


def best(pooled: Sequence[Pooled]) -> list[Pooled]:
    """The configs that are as good as the first, in order of preference. `pooled`: those of one problem, fastest first,
    with ATen."""
    ties = sorted((p for p in pooled if tied(pooled[0], p)), key=lambda p: p.order)
    # A noisy config can be tied with the best although it is slower than ATen, and ATen is not tied.
    return ties if ties[0].config == ATEN else [p for p in ties if p.ratio < 1]


def tied(best: Pooled, other: Pooled) -> bool:
    """Whether `other` is as good as `best`: within 1%, or within the sum of both intervals."""
    return other.ratio <= best.ratio * (1 + max(TIE, best.spread + other.spread))


@functools.lru_cache(maxsize=256)
def age(toolchain: Toolchain) -> tuple[tuple[tuple[int, ...], ...], str]:
    """A key that orders toolchains from old to new: the numbers of their versions (2.9 before 2.13), then the text."""
    versions = (toolchain.torch, toolchain.triton, toolchain.cuda, toolchain.cutlass, toolchain.gemmdb)
    return tuple(tuple(map(int, re.findall(r"\d+", version))) for version in versions), toolchain.text


def together(times: Sequence[Times], config: Config) -> tuple[float, float]:
    """The ratio to ATen and the spread of a config that was timed several times. Processes differ, so the distance
    between them counts as spread, as does the known variation between processes."""
    within = median(t.spread for t in times)
    if config == ATEN:
        return 1.0, within
    ratios = [t.ratio for t in times]
    ratio = median(ratios)
    between = (max(ratios) - min(ratios)) / 2 / ratio
    process = min(PROCESS, PROCESS_US / median(t.median_us for t in times)) / math.sqrt(len(times))
    return ratio, max(between, process, within)
