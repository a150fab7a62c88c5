"""What is expected of a GEMM with symbolic sizes: over the sizes of its calls, or over its range if these are unknown.
All commands that say a time or a gain take it from here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gemmdb.cost.roofline import roofline_us
from gemmdb.errors import InputError
from gemmdb.hit import timed_sizes
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.saving import Saving, saving
from gemmdb.settings import Policy
from gemmdb.table.stats import Gain, Part

Shares = Mapping[Problem, float]
"""The problem at the sizes of its calls, with the share of the calls that had them; empty if unknown."""


class Known(NamedTuple):
    """The expected microseconds of one call at one size, the gain over ATen, and the relative uncertainty of the
    time."""

    problem: Problem
    us: float
    speedup: float
    spread: float

    def at(self, query: Query, problem: Problem) -> Part:
        """Return what is expected at a size nearby."""
        scale = roofline_us(problem, query.device) / roofline_us(self.problem, query.device)
        return Part.of(self.us * self.speedup * scale, self.us * scale, self.spread)


def expected(query: Query, us: float, speedup: float, evidence: Mapping[str, Any], sizes: Shares) -> Part:
    """Return the expected times of one call of a query's answer. `us`, `speedup`, `evidence`: of a Hit or an Event.

    The mean over the `sizes` of the calls, each as at the nearest size that the evidence knows. If they are unknown,
    the times at the recorded size, and the interval covers the whole range. A gain that is known only at the recorded
    size may be nothing at the others.
    """
    hint = Known(query.problem, us, speedup, _spread(speedup, evidence))
    if not query.symbolic:
        return Part.of(us * speedup, us, hint.spread)
    known = [_known(query.problem, one) for one in timed_sizes(evidence)]
    if not sizes:
        low, high = gains(hint, known)
        return Part(us * speedup, us, us * speedup / high, us * speedup / low, ranged=low != high)
    return Part.total(_at(query, problem, known, hint).times(share) for problem, share in sizes.items())


def gain_of(one: Mapping[str, Any]) -> Gain | None:
    """Return the expected gain of an entry of `stats()`, where calls are not counted; None if it is unknown."""
    us, speedup, evidence = one["expected_us"], one["speedup_vs_aten"], one.get("evidence", one)
    if us is None or speedup is None:
        return None
    if not one.get("ranges"):
        return Part.of(us * speedup, us, _spread(speedup, evidence)).gain
    try:
        query = Query(Problem.parse(one["problem"]), Device.parse(one["device"]), one["ranges"])
    except InputError:
        return None
    return expected(query, us, speedup, evidence, {}).gain


def gains(hint: Known, known: Sequence[Known]) -> tuple[float, float]:
    """Return the smallest and the largest gain over a range, with the uncertainty of the times."""
    found = [Part.of(one.speedup, 1.0, one.spread).gain for one in (hint, *known)]
    unknown = [] if known else [1.0]
    return min([*unknown, *(one.low for one in found)]), max([*unknown, *(one.high for one in found)])


def mean_roofline_us(query: Query, sizes: Shares) -> float:
    """Return the roofline of a query in microseconds: its mean over the sizes of the calls."""
    shares = sizes or {query.problem: 1.0}
    return sum(share * roofline_us(problem, query.device) for problem, share in shares.items())


def mean_saving(query: Query, sizes: Shares) -> Saving | None:
    """Return the savings from tuning a query: their mean over the sizes of the calls; None if there is no estimate."""
    shares = sizes or {query.problem: 1.0}
    found = {one: saving(Ask(replace(query, problem=one), (), Policy(), None)) for one in shares}
    known = [(share, one) for problem, share in shares.items() if (one := found[problem]) is not None]
    if len(known) < len(found):
        return None
    return Saving(sum(share * one.aten_us for share, one in known), sum(share * one.best_us for share, one in known))


def _spread(speedup: float, evidence: Mapping[str, Any]) -> float:
    """Return the relative uncertainty of a kernel's time; 0 for ATen, and if it is unknown."""
    spread = evidence.get("spread", 0.0)
    return spread if speedup != 1 and isinstance(spread, float) else 0.0


def _known(hint: Problem, one: Mapping[str, Any]) -> Known:
    problem = hint.resized(one["m"], one.get("n", hint.n), one.get("k", hint.k))
    return Known(problem, one["expected_us"], one["speedup"], one.get("spread", 0.0))


def _at(query: Query, problem: Problem, known: Sequence[Known], hint: Known) -> Part:
    nearest = min(known or [hint], key=lambda one: _distance(one.problem, problem))
    found = nearest.at(query, problem)
    if known or problem == hint.problem:
        return found
    return found._replace(least=min(found.least, found.before), most=max(found.most, found.before))


def _distance(one: Problem, other: Problem) -> float:
    pairs = ((one.m, other.m), (one.n, other.n), (one.k, other.k))
    return sum(abs(math.log2(max(a, 1) / max(b, 1))) for a, b in pairs)
