"""Rung `range` for a symbolic M: the answers for fixed sizes of the range, joined to intervals of one config each.

At each size that decides, all rungs answer as for a fixed M, but only with what can share one node of a graph
(`gemmdb.lookup.lowering.joins`). So epilogues stay fused, and what runs at a size is what a compile for that size
alone would run, unless a neighbouring size's config is as good.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from gemmdb.cublaslt import tiles
from gemmdb.hit import ATEN_BETWEEN, RUNGS, Branches, Hit, timed_sizes
from gemmdb.kernels import cublaslt
from gemmdb.kernels.config import ATEN, Config
from gemmdb.lookup import lowering, symbolic
from gemmdb.lookup.acceptance import required_gain
from gemmdb.lookup.acceptance.extern import unmeasured
from gemmdb.lookup.acceptance.ranges import ranged
from gemmdb.lookup.acceptance.size import MOST_ROWS, Size, size_of
from gemmdb.lookup.ask import Ask, Step
from gemmdb.lookup.other_epilogue import stand_ins
from gemmdb.lookup.prediction import remembered
from gemmdb.lookup.symbolic import Interval
from gemmdb.settings import Policy
from gemmdb.table.reader import Table

MOST_KERNELS = 32
"""Maximum number of intervals of one range, without those that ATen gets between sizes. Each costs a comparison per
call, and a compile if its kernel serves no other interval."""
MOST_LISTED, MOST_READ = 64, 1024
"""Maximum number of sizes that decide because tables list them, and of problems read from each table to find them."""
SHARED_LOSS = 2.0
"""What fewer kernels may lose, summed over the sizes, as a multiple of `Policy.range_regret`."""
CLOSE = 8
"""A config that is faster than ATen at a size serves so many rows down from there in any case: engines pad to
multiples of eight."""
FEW_ROWS = 64
"""Up to this M, algorithms with several tiles along M serve the rows between two sizes, too. Of 77 such pairs of sizes,
1% are slower than ATen by over 5% with fewer rows, and the mean is 1.18 times as fast."""
BETWEEN = 16
"""From this M on, a size between each two powers of two decides, too: another number of tiles fits the GPU there."""


def by_rows(ask: Ask) -> Step:
    """Rung `range`: serve the answers for fixed sizes, joined to as few configs as lose little, if only M is symbolic;
    else, if ATen is all of them, or if a kernel that cannot share a node takes less time, what `ranged` finds. Raises
    InputError for an empty range, or a range for a size other than m, n and k."""
    return (_joined(ask) if joinable(ask) else None) or ranged(ask)


def _joined(ask: Ask) -> Step | None:
    """Return the Step that serves the answers for fixed sizes; None if they are left to `ranged`."""
    name = f"rows {symbolic.ranges_of(ask)}"
    found: tuple[Step | None] = remembered(ask, name, lambda ask: (_of_sizes(ask),))
    return found[0]


def _of_sizes(ask: Ask) -> Step | None:
    sizes, intervals = _divided(ask)
    if not intervals or {one.config for one in intervals} == {ATEN}:
        return None
    # A kernel that is good at all sizes is passed over at most of them. To compare those takes as long as all of this.
    if 2 * sum(one.passed_over for one in sizes) > len(sizes):
        other = ranged(ask).hit
        if other is not None and _takes_less(other, sizes, intervals) and _holds(ask, other):
            return None
    return _step(ask, sizes, intervals)


def _holds(ask: Ask, hit: Hit) -> bool:
    """Return whether one kernel for the range is expected to be no slower than ATen between the sizes that it was
    compared at, or whether ATen cannot take its place there."""
    known = sorted(timed_sizes(hit.evidence), key=lambda one: int(one["m"]))
    return not lowering.joins(ATEN, ask.problem) or all(
        one["m"] - CLOSE <= before["m"]
        or (
            takes_no_longer_with_fewer_rows(hit.config, one["m"])
            and _is_no_slower(one["expected_us"], before["expected_us"] * before["speedup"], ask.policy)
        )
        for before, one in pairwise(known)
    )


def _takes_less(hit: Hit, sizes: Sequence[Size], intervals: Sequence[Interval]) -> bool:
    """Return whether one kernel for the range takes less time than the intervals' at the sizes where both are known."""
    if hit.branches or hit.config == ATEN:
        return False
    logs = {int(one["m"]): -math.log(one["speedup"]) for one in timed_sizes(hit.evidence)}
    pairs = [
        (logs[one.problem.m], one.log_ratio(served(intervals, place), math.inf) or 0.0)
        for place, one in enumerate(sizes)
        if one.problem.m in logs
    ]
    return sum(its for its, _ in pairs) < sum(ours for _, ours in pairs)


def _divided(ask: Ask) -> tuple[Sequence[Size], Sequence[Interval]]:
    """Return the sizes that decide, and the intervals that they are divided into: without the listed ones if there are
    too many for as many kernels, and ATen cannot take their place."""
    aten = {ATEN} if lowering.joins(ATEN, ask.problem) else set()
    for listed in (True, False):
        sizes = _sizes(ask, listed)
        configs = {one.config for one in sizes}
        if configs == {ATEN}:
            break
        limits = _limits(ask, len(sizes))
        whole = _for_all(sizes, limits)
        intervals = [whole] if whole else symbolic.divide(sizes, configs - {ATEN} | aten, limits, MOST_KERNELS)
        if intervals:
            return sizes, intervals
    return sizes, ()


def _for_all(sizes: Sequence[Size], limits: symbolic.Limits) -> Interval | None:
    """Return the interval of all sizes with the fastest config among those that lose at most the limits' `regret` at
    each of them; None without one that gains enough. Each further kernel costs a compile."""
    configs = set[Config]()
    for one in sizes:
        close = one.close(limits.regret)
        configs = close - {ATEN} if one is sizes[0] else configs & close
        if not configs:
            return None
    totals = {config: sum(one.log_ratio(config, math.inf) or 0.0 for one in sizes) for config in configs}
    best = min(totals, key=lambda config: (totals[config], config.text))
    if totals[best] > -math.log1p(limits.needed) * len(sizes):
        return None
    return Interval(0, len(sizes) - 1, best, totals[best])


def joinable(ask: Ask) -> bool:
    """Return whether answers for fixed sizes may serve a range: only M is symbolic, and no size between those that
    decide has to be measured, as in strict mode."""
    if ask.symbolic != ("m",) or ask.policy.batch_invariant or ask.problem.constant:
        return False
    return ask.policy.on_miss != "error" and ask.problem.op in lowering.JOINED_OPS


class Rows(NamedTuple):
    """The M that may decide, in order. Those halfway `between` powers of two decide only if they are decided or a
    library's algorithm serves the next one. Those `listed` by a table were measured. The rest, which always decide, are
    the ends of the range, powers of two, and the hint."""

    numbers: Sequence[int]
    between: frozenset[int]
    listed: frozenset[int]

    @property
    def usual(self) -> Sequence[int]:
        """The M that may decide whatever a table lists."""
        return [m for m in self.numbers if m in self.between or m not in self.listed]


def rows(ask: Ask) -> Rows:
    """Return the M that may decide."""
    known: Rows | None = ask.memo.get("rows")
    if known is None:
        whole = {problem.m for problem in symbolic.sizes(ask)}
        listed = frozenset(_listed(ask, min(whole), max(whole))) - whole
        between = {3 * m // 2 for m in whole if m >= BETWEEN and m & (m - 1) == 0 and 3 * m // 2 < max(whole)}
        known = Rows(sorted(whole | listed | between), frozenset(between - whole), listed)
        ask.memo["rows"] = known
    return known


def _listed(ask: Ask, low: int, high: int) -> Sequence[int]:
    """Return the multiples of CLOSE between two M at which tables have a verdict on the GEMM with the same N and K, and
    with the same epilogue or one that stands for it; the smallest ones if there are more than MOST_LISTED."""
    alike = (ask.problem, *stand_ins(ask.problem, ask.device.kind))
    args, columns = (ask.device, ask.query.l2, MOST_READ, (math.inf, 1.0, 1.0)), (ask.problem.n, ask.problem.k)
    found = {
        one.m
        for like in alike
        for table in ask.tables
        for one in ask.read(Table.neighbours, table, like, *args) or ()
        if (one.n, one.k) == columns
    }
    return sorted(m for m in found if low < m < high and m % CLOSE == 0)[:MOST_LISTED]


def _limits(ask: Ask, sizes: int) -> symbolic.Limits:
    regret = ask.policy.range_regret
    return symbolic.Limits(required_gain(ask.policy, None), regret, SHARED_LOSS * regret / sizes)


def _sizes(ask: Ask, listed: bool) -> list[Size]:
    """Return the sizes that decide. `listed`: with those that a table lists."""
    (low, high), may = ask.query.ranges["m"], rows(ask)
    numbers = may.numbers if listed else may.usual
    below = dict(zip(numbers, (low, *(m + 1 for m in numbers)), strict=False))
    found: list[Size] = []
    for m in reversed(numbers):
        top = m if m != numbers[-1] else None if high is None else max(high, m)
        one = size_of(ask, m, (below[m], top))
        # A library's algorithm is chosen for one size, and its time at a smaller one is unknown.
        if m not in may.between or one.decided or found[-1].config.spec.library:
            found.append(one)
    return found[::-1]


def _step(ask: Ask, sizes: Sequence[Size], intervals: Sequence[Interval]) -> Step:
    here = next(one for one in sizes if one.problem.m == ask.problem.m)
    config = next(one.config for one in intervals if sizes[one.last].problem.m >= ask.problem.m)
    log = here.log_ratio(config, math.inf)
    ratio, aten_us = math.exp(log or 0.0), here.aten_us or 0.0
    hits = [one.hit for one in sizes if one.hit is not None]
    rungs = {one.rung for one in hits}
    kernels = symbolic.kernels(sizes, intervals)
    evidence: dict[str, Any] = {
        "range": symbolic.ranges_of(ask), "kernels": kernels,
        "sizes": [
            {"m": one.problem.m, "rung": one.hit and one.hit.rung, "regret": one.regret(config), **one.times(config)}
            for one, config in ((one, served(intervals, place)) for place, one in enumerate(sizes))
        ],
        "spread": here.spread(config),
        "verified": False if any(one.evidence.get("verified") is False for one in hits) else None,
    }  # fmt: skip
    if ask.policy.confirm:
        evidence["unmeasured"] = list(_unmeasured(sizes, intervals))
    between = _left_to_aten(sizes, intervals) if lowering.joins(ATEN, ask.problem) else []
    evidence |= {ATEN_BETWEEN: between} if between else {}
    branches = _branches(sizes, intervals, between)
    rung = max(rungs, key=RUNGS.index)
    hit = Hit(rung, config, ratio * aten_us, 1 / ratio, hits[0].table, evidence, branches)
    told = ", ".join(f"{one.config.name} up to m={sizes[one.last].problem.m}" for one in intervals)
    told += f"; ATen between {len(between)} of the sizes" if between else ""
    return Step("range", hit, f"as for fixed sizes: {told}", evidence)


def _left_to_aten(sizes: Sequence[Size], intervals: Sequence[Interval]) -> list[list[int]]:
    """Return the first and the last M of each part between two sizes that ATen serves: where the config of the larger
    one may be slower than ATen. CLOSE rows are left to the config."""
    found = []
    for place, (before, size) in enumerate(pairwise(sizes), 1):
        config, last = served(intervals, place), size.problem.m - CLOSE
        if config != ATEN and last > before.problem.m and not _holds_down_to(before, size, config):
            found.append([before.problem.m + 1, last])
    return found


def _holds_down_to(before: Size, size: Size, config: Config) -> bool:
    """Return whether a config is expected to be no slower than ATen at any size down to the one `before`: if it takes
    no longer at `size` than ATen at `before`, and no longer with fewer rows."""
    log, aten_us, least = size.log_ratio(config, math.inf), size.aten_us, before.aten_us
    if log is None or aten_us is None or least is None:
        return False
    if not takes_no_longer_with_fewer_rows(config, size.problem.m):
        return False
    return _is_no_slower(math.exp(log) * aten_us, least, size.at.policy)


def takes_no_longer_with_fewer_rows(config: Config, m: int) -> bool:
    """Return whether a config is expected to take no longer with fewer rows than with M, as most kernels do."""
    return m <= FEW_ROWS or config.backend != "cublaslt" or tiles.reads_once(cublaslt.attributes(config), m)


def _branches(sizes: Sequence[Size], intervals: Sequence[Interval], between: Sequence[Sequence[int]]) -> Branches:
    """Return the config of each part of the range with the largest M that it serves; empty for a single part.
    `between`: the parts that ATen serves between sizes."""
    parts = [(size.problem.m, served(intervals, place)) for place, size in enumerate(sizes)]
    parts = sorted([*parts, *((last, ATEN) for _, last in between)], key=lambda part: part[0])
    kept = [one for one, after in pairwise(parts) if one[1] != after[1]]
    return (*kept, (None, parts[-1][1])) if kept else ()


def _is_no_slower(us: float, aten_us: float, policy: Policy) -> bool:
    return us <= aten_us * (1 + policy.range_regret)


def _unmeasured(sizes: Sequence[Size], intervals: Sequence[Interval]) -> Iterator[dict[str, Any]]:
    """Yield each config that was not measured as it will run, at each size up to MOST_ROWS that it serves without: the
    caller benchmarks it at some of them first."""
    for interval in intervals:
        for one in sizes[interval.first : interval.last + 1]:
            if one.problem.m <= MOST_ROWS and _is_guess(one, interval.config):
                ratio = math.exp(one.log_ratio(interval.config, math.inf) or 0.0)
                us = ratio * (one.aten_us or 0.0)
                yield {"m": one.problem.m, "config": interval.config.text, "us": us, "speedup": 1 / ratio}


def _is_guess(size: Size, config: Config) -> bool:
    """Return whether a config serves a size without a measurement of it."""
    if config == ATEN:
        return False
    if size.hit is not None and config == size.hit.config:
        return unmeasured(size.hit.rung, config, size.hit.evidence)
    known = size.known.get(config)
    return known is None or known.rung != "exact"


def served(intervals: Sequence[Interval], place: int) -> Config:
    """Return the config of the interval with the size at that place."""
    return next(one.config for one in intervals if one.first <= place <= one.last)
