"""Predicts every config's time at an unmeasured problem from the timings of its neighbours.

Neighbours share the device, the op and the family: dtypes, layout and alignment classes, bias, fusion context and
numerics; int4 weights may differ in their format. It predicts the time of each config rather than copying a
neighbour's winner.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from gemmdb.cost.transfer import ATEN_GROUP, ConfigGroup, Like, Member, Scale, members
from gemmdb.kernels.config import Config
from gemmdb.kernels.kernel import same_speed
from gemmdb.kernels.triton.int4_skinny import FEW_ROWS
from gemmdb.key.problem import Problem
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.evidence import least_of
from gemmdb.lookup.expected import Codes
from gemmdb.lookup.neighbours import MOST_DISTANCE, MOST_NEIGHBOURS, Neighbour, neighbours, unfit
from gemmdb.lookup.prediction import Estimate, Prediction, Support, remembered, support_of
from gemmdb.lookup.timings import Timings, timings_of
from gemmdb.rejected import Rejected
from gemmdb.table.record import STEP

AGREED_ERROR = 0.055
"""Relative error of a prediction when the neighbours agree, at AGREED_DISTANCE doublings or more; scales down linearly
with smaller distances."""
AGREED_DISTANCE = 0.25
UNSEEN_TILE = 0.25
"""Assumed log distance from the best config if no neighbour timed any config with the same tile."""
UNTIMED_CONFIG = 0.1
"""Assumed log distance from the best config with the same tile if a neighbour timed one; also the standard deviation of
both assumptions."""
LOSS_PER_DOUBLING = 0.05
"""Added to the estimated loss per doubling of distance to the nearest neighbour."""
MOST_GROUPS, MOST_GROUPS_OF_RANGE = 8, 12
"""Maximum number of config groups to compare: those closest to the best at some neighbour. On held-out H200 rows, 12
find no more certain gains, and 6 lose some. A range of sizes compares more, since one config has to be among them at
every size."""
GROUP_MARGIN = 0.3
"""Maximum log distance of a group behind the closest one."""
FIRST_GROUPS = 16
"""Number of groups per neighbour in the first pass. Nearly always enough, unless the policy excludes whole kernels."""


FARTHEST = {"cuda": 2.0}
"""Maximum distance to the nearest neighbour, in doublings, by device kind. Farther problems miss."""
FARTHEST_UNTESTED = 0.6
"""The limit for other device kinds, where no table was large enough to test a larger distance."""

_Around = Sequence[tuple[float, Mapping[ConfigGroup, Codes], int, Mapping[Like, int]]]
"""Each neighbour's weight, the Codes of its groups, `Timings.least` and `Timings.likes`."""


def predict(ask: Ask) -> Prediction | Rejected:
    """Return the prediction from the nearest neighbours."""
    return remembered(ask, "near", _predict, shared=True)


def _predict(ask: Ask) -> Prediction | Rejected:
    around = neighbours(ask)
    first = next(around, None)
    if first is None:
        return Rejected(
            "no similar problem (same op, dtypes and layouts, and the same sizes of 1 and alignment of the output) was"
            f" measured near this one on {ask.device.sku}"
        )
    if first.distance <= _farthest(ask):  # Reading the times of neighbors takes longer than finding them.
        used = _timings(ask, chain((first,), around))
        if used and used[0][0] <= _farthest(ask):
            return _possible(ask, predicted(ask, used))
    return Rejected(
        f"too far: the nearest of {len(list(neighbours(ask)))} neighbours is m={first.problem.m} n={first.problem.n}"
        f" k={first.problem.k}, {first.distance:.2f} doublings away"
    )


def _possible(ask: Ask, prediction: Prediction) -> Prediction | Rejected:
    """Return the prediction without times that the device cannot reach. Wrong expectations in a packed table could
    produce such times."""
    least = math.log(least_of(ask) / prediction.aten_us)
    if least > 0:
        return Rejected(f"the neighbours predict a time of ATen that no {ask.device.sku} can reach")
    possible = {config: one for config, one in prediction.estimates.items() if one.log >= least}
    return prediction if len(possible) == len(prediction.estimates) else replace(prediction, estimates=possible)


def _timings(ask: Ask, around: Iterable[Neighbour]) -> list[tuple[float, Timings]]:
    """Return the nearest neighbours with a steady ATen row. Without one there is no reference for their configs.
    Neighbours with few kernels count only where the others are too far away: they say nothing about the other kernels,
    and a win of ATen says little."""
    passed_over: list[Neighbour] = []
    found = _steady(ask, around, False, passed_over)
    if passed_over and (not found or found[0][0] > _farthest(ask)):
        found += _steady(ask, passed_over, True, [])
        found.sort(key=itemgetter(0))
    return found[:MOST_NEIGHBOURS]


def _steady(
    ask: Ask, around: Iterable[Neighbour], few: bool, passed_over: list[Neighbour]
) -> list[tuple[float, Timings]]:
    """Return the nearest neighbours with a steady ATen row. `few`: include those with few kernels. The others are added
    to `passed_over`."""
    found: list[tuple[float, Timings]] = []
    for one in around:
        if one.distance > MOST_DISTANCE or len(found) == MOST_NEIGHBOURS:
            break
        here: Timings | None = None
        for table in one.tables:
            here = timings_of(ask, table, one.problem, few)
            if here is not None:
                break
        if here is not None and here.steady_aten:
            found.append((one.distance, here))
        else:
            passed_over.append(one)
    return found


def nearest(ask: Ask) -> Neighbour | None:
    """Return the nearest neighbour; None if it is too far away."""
    first = next(neighbours(ask), None)
    return first if first is not None and first.distance <= _farthest(ask) else None


def _farthest(ask: Ask) -> float:
    """Return the maximum distance to the nearest neighbour."""
    return FARTHEST.get(ask.device.kind, FARTHEST_UNTESTED)


def predicted(ask: Ask, used: Sequence[tuple[float, Timings]]) -> Prediction:
    """Return the prediction from the neighbours' timings, nearest first, each with its distance in doublings (> 0).

    `Scale` gives an expected time for each group. At each neighbour, a group's excess is its measured over its expected
    time, relative to the best group there. The predicted time is the mean excess, weighted by closeness, times the time
    that `Scale` expects at the problem.
    """
    weights = [math.exp(-distance * distance / 2) / (distance + 0.05) for distance, _ in used]
    total = sum(weights)
    around = [(weight / total, one.codes, one.least, one.likes)
              for weight, (_, one) in zip(weights, used, strict=True)]  # fmt: skip
    timings = [one for _, one in used]
    level = sum([share * least for share, _, least, _ in around]) * STEP
    problem, nearest = ask.problem, used[0][0]
    unsafe = frozenset[ConfigGroup]().union(*(one.unsafe for one in timings))
    blends = [(key, allowed, _blend(key, nearest, around))
              for key, allowed in _contenders(ask, timings, unsafe).items()]  # fmt: skip
    estimates, aten, support = _estimates(blends, Scale.of(problem, ask.device), timings)
    used_rows = [
        {"problem": one.problem.text, "distance": distance, "table": one.table, "aten_us": one.aten_us}
        for distance, one in used
    ]
    return Prediction(
        "near",
        estimates,
        far=LOSS_PER_DOUBLING * nearest,
        aten_us=math.exp(aten + level),
        verified=None if ask.klass is None else all(one.verified for one in timings),
        table=timings[0].table,
        evidence={"neighbours": used_rows, "distance": nearest, "configs": len(estimates)},
        unsafe=unsafe,
        beside=any(one.problem.n == problem.n and one.problem.k == problem.k for one in timings),
        support=support,
        around=timings,
    )


class _Blend(NamedTuple):
    """Mean and standard deviation of a group's excess over all neighbours. `full`: a neighbour measured it in full."""

    mean: float
    spread: float
    full: bool


def _blend(key: ConfigGroup, nearest: float, around: _Around) -> _Blend:
    """Return the group's mean excess. Where a neighbour did not time it, assume UNTIMED_CONFIG behind the best config
    with its tile."""
    weight = first = second = seen = total = 0.0
    full = 0
    like = key.like
    for share, codes, least, likes in around:
        best = likes.get(like)
        if best is None:  # Then the group was not timed either.
            continue
        seen += share
        total += share * (best - least)
        known = codes.get(key)
        if known is not None:
            excess = (known[0] - least) * STEP
            weight += share
            first += share * excess
            second += share * excess * excess
            full |= known[2]
    prior = total * STEP + (1 - seen) * UNSEEN_TILE + UNTIMED_CONFIG
    missing = max(0.0, 1 - weight)
    mean = first + missing * prior
    variance = second - 2 * mean * first + weight * mean * mean
    agreed = AGREED_ERROR * min(1.0, nearest / AGREED_DISTANCE)
    variance += missing * ((prior - mean) ** 2 + UNTIMED_CONFIG**2) + agreed**2
    return _Blend(mean, math.sqrt(max(0.0, variance)), full > 0)


def _contenders(
    ask: Ask, timings: Sequence[Timings], unsafe: Collection[ConfigGroup]
) -> dict[ConfigGroup, list[Member]]:
    """Return the groups that came closest to the best at some neighbour, are not unsafe and carry over, with their
    servable configs; plus ATen's group."""
    problem, device, banned = ask.problem, ask.device, unfit(ask)
    found = {ATEN_GROUP: list(members(ATEN_GROUP, problem, device))}
    seen = {ATEN_GROUP, *unsafe}
    most, count = math.inf, MOST_GROUPS_OF_RANGE if ask.symbolic else MOST_GROUPS
    for behind, key in _closest(timings):
        if behind * STEP > most or len(found) > count:
            break
        if key in seen:
            continue
        seen.add(key)
        if _carries(key, problem, timings):
            fit = [one for one in members(key, problem, device)
                   if not (banned and one.config in banned) and ask.rejection(one.config) is None]  # fmt: skip
            if fit:
                found[key] = fit
                most = min(most, behind * STEP + math.log1p(GROUP_MARGIN))
    return _without_int4(found) if problem.int4 is not None and problem.m <= FEW_ROWS else found


def _without_int4(found: dict[ConfigGroup, list[Member]]) -> dict[ConfigGroup, list[Member]]:
    """Return the groups without kernel `int4` if `int4_skinny` is among them. Of 235 GEMMs with up to eight rows that
    an H200 measured, `int4_skinny` is faster on 211, by 17% in the median, and at most 20% slower on the others; the
    splits of K that `int4` needs for so few rows carry over badly."""
    if not any(key.config.kernel == "int4_skinny" for key in found):
        return found
    return {key: configs for key, configs in found.items() if key.config.kernel != "int4"}


def _closest(timings: Sequence[Timings]) -> Iterator[tuple[int, ConfigGroup]]:
    """Yield each group's distance behind the best at a neighbour, in STEPs, closest first. A group repeats for each
    neighbour that timed it, and again after the FIRST_GROUPS of all neighbours."""
    end = min((one.behind[FIRST_GROUPS][0] for one in timings if len(one.behind) > FIRST_GROUPS), default=math.inf)
    first = sorted(chain.from_iterable([one.behind[:FIRST_GROUPS] for one in timings]), key=itemgetter(0))
    yield from (one for one in first if one[0] <= end)  # Nothing omitted here sorts before these.
    yield from sorted(chain.from_iterable([one.behind for one in timings]), key=itemgetter(0))


def _carries(key: ConfigGroup, problem: Problem, timings: Iterable[Timings]) -> bool:
    """Return whether the group's config compiles to the same code at `problem` as at a neighbour that measured it."""
    config = key.config
    compiled = config.spec.compiled
    if compiled is same_speed:
        return True
    wanted = compiled(config, problem)
    return any(key in one.codes and compiled(config, one.problem) == wanted for one in timings)


def _estimates(
    blends: Iterable[tuple[ConfigGroup, Sequence[Member], _Blend]], scale: Scale, timings: Sequence[Timings]
) -> tuple[dict[Config, Estimate], float, Callable[[Config], Support]]:
    """Return the estimates relative to ATen, whose group comes first; the log of ATen's time, up to the level; and a
    function for a config's Support."""
    found: dict[Config, Estimate] = {}
    origins: dict[Config, tuple[ConfigGroup, float]] = {}
    aten = expected_aten = 0.0
    for key, allowed, (mean, spread, full) in blends:
        for one in allowed:
            config, expected = one.config, math.log(scale.us(one))
            if key is ATEN_GROUP:
                aten, expected_aten = mean + expected, expected
            log = mean + expected - aten
            before = found.get(config)  # Two splits of K may give the same config.
            if before is None or log < before.log:
                found[config] = Estimate(log, spread, full or (before is not None and before.full))
                origins[config] = key, expected
            elif full and not before.full:
                found[config] = before._replace(full=True)
    return found, aten, functools.partial(support_of, timings, origins, expected_aten)
