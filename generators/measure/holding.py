"""Whether a verdict still holds by what was timed now: yes, no, or the times do not tell."""

from __future__ import annotations

from collections.abc import Sequence

from gemmdb.kernels.config import ATEN
from gemmdb.table.measurement import Measurement
from gemmdb.table.verdict import Pooled, Verdict, pool, tied

WIDE = 0.1
"""What a pick may be slower than the best, at the ends of both intervals, for its verdict to hold. Two kernels of a few
microseconds that are equally fast come to 0.08, since processes differ."""


def holds(verdict: Verdict, rows: Sequence[Measurement]) -> bool | None:
    """Whether a verdict holds by what was timed now; None if that says neither yes nor no.

    It does not hold if the pick is slower than the best, beyond both intervals, or failed. It holds if the pick is
    tied with the best and, where it is not ATen, certainly faster than ATen; not if the intervals are so wide that
    the pick may be slower than the best by more than WIDE.
    """
    pooled = pool(rows)
    pick = next((p for p in pooled if p.config == verdict.pick), None)
    if pick is None:
        return False
    if any(p.disturbed for p in pooled):
        return None
    if not tied(pooled[0], pick):
        return False
    unsure = max((_most(pick) / _least(p) - 1 for p in pooled if p is not pick), default=0.0) > WIDE
    return None if unsure or (pick.config != ATEN and _slowest(pick) >= 1) else True


def _most(one: Pooled) -> float:
    return one.ratio * (1 + one.spread)


def _least(one: Pooled) -> float:
    return one.ratio * (1 - min(one.spread, 0.99))


def _slowest(one: Pooled) -> float:
    """The upper end of the interval of its time relative to ATen."""
    return max(row.times.high_us / row.times.aten_us for row in one.rows if row.times)
