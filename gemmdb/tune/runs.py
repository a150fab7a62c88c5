"""The gain of a program from a few runs without and with gemmdb, and whether more runs are needed.

Processes differ more than the calls of one, so each run counts as one sample: its time. A few samples say nothing
without an assumption, so the logs of the times are taken as normal, with the same spread on both sides: the interval is
Student's. Who looks after each run and stops at the first certain gain finds one too often by chance. So an interval
that may be the last of several leaves a chance of 5% / (n (n - 1)) after n runs on each side: together that is 5%,
however many follow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance

from gemmdb.table.stats import CONFIDENCE, Gain

LEAST, MOST = 2, 8
"""Fewest and most runs on each side."""
ENOUGH = 0.02
"""A gain that is certainly smaller needs no more runs."""
_STEPS = 60
"""Bisections of a quantile."""


def gain(without: Sequence[float], with_gemmdb: Sequence[float], looks: bool) -> Gain:
    """Return the gain from the times of runs, the same number (at least LEAST) on both sides. `looks`: whether it was
    looked at after each run."""
    runs = len(without)
    before, after = ([math.log(us) for us in side] for side in (without, with_gemmdb))
    spread = math.sqrt((variance(before) + variance(after)) / 2)
    chance = (1 - CONFIDENCE) / (runs * (runs - 1) if looks else 1)
    middle, reach = fmean(before) - fmean(after), quantile(2 * (runs - 1), chance) * spread * math.sqrt(2 / runs)
    return Gain(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach))


def is_certain(found: Gain) -> bool:
    """Whether more runs would say no more: there is a difference, or it is negligible."""
    return not found.low <= 1 <= found.high or (found.low > 1 - ENOUGH and found.high < 1 + ENOUGH)


def quantile(freedom: int, chance: float) -> float:
    """Return what a variable with Student's distribution exceeds with that chance in absolute value. `freedom`: an even
    number of degrees."""
    low, high = 0.0, math.pi / 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _tails(freedom, middle) > chance else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _tails(freedom: int, angle: float) -> float:
    """Return the chance to exceed sqrt(freedom) tan(angle): Abramowitz and Stegun, 26.7.4."""
    term = total = 1.0
    for number in range(1, freedom // 2):
        term *= (2 * number - 1) / (2 * number) * math.cos(angle) ** 2
        total += term
    return 1 - math.sin(angle) * total
