"""Rung `near`: a problem that was not measured, answered from nearby ones that were.

Neighbours share the op and the family, that is dtypes, layout and alignment classes, bias, fusion context and numerics,
and the device. The neighbour's winner is not copied: see `forecast.predicted`. What is too far, or too uncertain for
the policy, is declined.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from gemmdb.config import ATEN, Config
from gemmdb.hit import Hit
from gemmdb.ladder.ask import Ask, Step
from gemmdb.ladder.forecast import Forecast, Surface, predicted, surface
from gemmdb.ladder.gate import required_gain
from gemmdb.problem import Problem
from gemmdb.table import Table
from gemmdb.verdict import TIE

MAX_STEP = 1.5
"""Largest ratio of M to a neighbour that answers alone."""
MAX_SPAN = 4.0
"""Largest ratio between the M of two neighbours that answer for what lies between them."""
MAX_OTHER = 1.25
"""Largest ratio of N and of K to a neighbour's, where those differ."""
WITHIN = (MAX_SPAN, MAX_OTHER, MAX_OTHER)
"""Largest ratios of M, N and K to those of any neighbour that can be used; a table is searched no further."""
MOST_OTHERS = 4
"""How many neighbours of other N and K are used together."""
CANDIDATES = 64
"""How many neighbours are asked of each table."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    problem: Problem
    table: Table
    distance: float


def near(ask: Ask) -> Step:
    """The best of the configs timed at all neighbours, if its expected loss is within the policy; else None."""
    if not ask.policy.near:
        return Step("near", None, "switched off by the policy")
    forecast = forecast_near(ask)
    if isinstance(forecast, str):
        return Step("near", None, forecast)
    best = choose(ask, forecast)
    for config in dict.fromkeys((best, ATEN)):
        if forecast.loss(config) <= ask.policy.near_loss:
            hit = _hit(forecast, config)
            return Step("near", hit, _reason(forecast, config), hit.evidence)
    reason = f"{_reason(forecast, best)}, over the policy's {ask.policy.near_loss:.1%}"
    return Step("near", None, reason, forecast.evidence)


def forecast_near(ask: Ask) -> Forecast | str:
    """The forecast from the neighbours in use, or why there is none."""
    candidates = _candidates(ask)
    if not candidates:
        return (
            "no problem of this op and family, with sizes of 1 where this has them, was measured near this one"
            f" on {ask.device.sku}"
        )
    used = _bracket(ask, candidates) or _others(ask, candidates)
    if not used:
        closest = candidates[0]
        return (
            f"too far: the nearest of {len(candidates)} neighbours is m={closest.problem.m} n={closest.problem.n}"
            f" k={closest.problem.k}, {closest.distance:.2f} doublings away"
        )
    return predicted(ask, used)


def choose(ask: Ask, forecast: Forecast) -> Config:
    """The config to serve by its expected time: of those tied with the best, the cheapest to compile; ATen unless the
    gain is enough at the query and at every neighbour.

    A heuristic of ATen changes kernels somewhere between two neighbours, so a gain at only one of them proves nothing.
    """
    needed = required_gain(ask.policy, forecast.verified)
    enough = [c for c, gained in forecast.gains.items() if c != ATEN and gained >= needed]
    fastest = min((forecast.ratios[c] for c in enough), default=1.0)
    tied = [c for c in enough if forecast.ratios[c] <= fastest * (1 + TIE)]
    return min(tied, key=lambda c: (c.spec.cost, c.text), default=ATEN)


def _candidates(ask: Ask) -> list[_Candidate]:
    """The neighbours of all tables, nearest first; the same problem from the first table only."""
    query = ask.problem
    if 0 in (query.m, query.n, query.k):
        return []
    found: dict[str, _Candidate] = {}
    for table in ask.tables:
        problems = ask.read(Table.neighbours, table, query, ask.device, ask.query.l2, CANDIDATES, WITHIN) or []
        for problem in problems:
            if problem != query and problem.text not in found and _same_side(query, problem):
                found[problem.text] = _Candidate(problem, table, _distance(query, problem))
    return sorted(found.values(), key=lambda one: (one.distance, one.problem.text))


def _same_side(query: Problem, other: Problem) -> bool:
    """Whether both are on the same side of the matrix-vector products: a size of 1 is a kernel of its own in every
    BLAS, so nothing is read across it."""
    sizes = zip((query.m, query.n, query.k), (other.m, other.n, other.k), strict=True)
    return all(theirs > 0 and (own == 1) == (theirs == 1) for own, theirs in sizes)


def _distance(query: Problem, other: Problem) -> float:
    """Doublings between the sizes, Euclidean over M, N and K."""
    return math.hypot(
        math.log2(query.m / other.m), math.log2(query.n / other.n), math.log2(query.k / other.k)
    )  # fmt: skip


def _bracket(ask: Ask, candidates: list[_Candidate]) -> list[tuple[float, Surface]]:
    """The neighbours with the same N and K: one on each side of M when they are close enough together, else the nearer
    one when it is close enough by itself."""
    query = ask.problem
    same = [one for one in candidates if (one.problem.n, one.problem.k) == (query.n, query.k)]
    below = _surfaces(ask, (one for one in same if one.problem.m < query.m), 1)
    above = _surfaces(ask, (one for one in same if one.problem.m > query.m), 1)
    both = below + above
    if len(both) == 2 and above[0][1].problem.m <= MAX_SPAN * below[0][1].problem.m:
        return both
    return sorted((one for one in both if one[0] <= math.log2(MAX_STEP)), key=lambda one: one[0])[:1]


def _others(ask: Ask, candidates: list[_Candidate]) -> list[tuple[float, Surface]]:
    """The nearest neighbours within the bounds in every size."""
    query = ask.problem
    bounds = ((query.m, "m", MAX_STEP), (query.n, "n", MAX_OTHER), (query.k, "k", MAX_OTHER))
    inside = (
        one
        for one in candidates
        if all(1 / most <= getattr(one.problem, name) / size <= most for size, name, most in bounds)
    )
    return _surfaces(ask, inside, MOST_OTHERS)


def _surfaces(ask: Ask, candidates: Iterable[_Candidate], most: int) -> list[tuple[float, Surface]]:
    """The first `most` that have a steady ATen row to be relative to; the others say nothing."""
    read = ((one.distance, surface(ask, one.table, one.problem)) for one in candidates)
    return list(islice(((distance, here) for distance, here in read if here and here.knows(ATEN)), most))


def _hit(forecast: Forecast, config: Config) -> Hit:
    ratio = forecast.ratios[config]
    evidence = {
        **forecast.evidence,
        "expected_loss": forecast.loss(config),
        "regret": forecast.regret(config),
        "doubt": forecast.doubt[config],
        "verified": forecast.verified,
    }
    return Hit("near", config, ratio * forecast.aten_us, 1 / ratio, forecast.table, evidence)


def _reason(forecast: Forecast, config: Config) -> str:
    count, distance = len(forecast.evidence["neighbours"]), forecast.evidence["distance"]
    return (
        f"from {count} neighbour(s), the nearest {distance:.2f} doublings away: {config.name} is expected at"
        f" {1 / forecast.ratios[config]:.3f}x ATen with an expected loss of {forecast.loss(config):.1%}"
    )
