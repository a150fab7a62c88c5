"""Predicts the time of every config at a problem from the timings of its neighbours."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from gemmdb.cost.transfer import ATEN_GROUP, ConfigGroup, Like, Member, Scale, members
from gemmdb.kernels.config import Config
from gemmdb.kernels.kernel import same_speed
from gemmdb.key.problem import Problem
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.expected import Codes
from gemmdb.lookup.neighbours import unfit
from gemmdb.lookup.policy_filter import objection
from gemmdb.lookup.prediction import Estimate, Prediction
from gemmdb.lookup.support import Supports
from gemmdb.lookup.timings import Timings
from gemmdb.table.record import STEP

OWN = 0.055
"""Relative error of a prediction when the neighbours agree, at CLOSE doublings or more; proportionally less when
nearer."""
CLOSE = 0.25
UNSEEN = 0.25
"""How far behind the best a config is assumed to be (in logarithms) if no neighbour timed any config of its tile."""
UNLIKE = 0.1
"""How far behind the best of its tile it is assumed to be if a neighbour timed that; also the standard deviation of
both guesses."""
FAR = 0.05
"""Added to the stated loss per doubling of the distance to the nearest neighbour."""
CONTENDERS, IN_RANGES = 8, 12
"""The most groups of configs that are compared: those closest to the best of some neighbour. On held-out H200 rows, 12
serve no more certain gains, and 6 lose some. A range of sizes is compared by more: one config has to be among them at
all of its sizes."""
BEHIND = 0.3
"""How much farther behind (in logarithms) than the closest of them a group may be."""
FIRST = 16
"""How many groups of each neighbour are looked at first. They are nearly always enough, unless the policy rules out
whole kernels."""


def predicted(ask: Ask, used: Sequence[tuple[float, Timings]]) -> Prediction:
    """The prediction from the timings at neighbours, nearest first, each with its distance in doublings (> 0).

    `Scale` expects a time of each group. At each neighbour, the excess of a group is its time over the expected time,
    relative to the best group there. The predicted time is the mean excess, weighted by closeness, times the time that
    `Scale` expects at the problem.
    """
    weights = [math.exp(-distance * distance / 2) / (distance + 0.05) for distance, _ in used]
    total = sum(weights)
    around = [_Beside(weight / total, one.codes, one.least, one.likes)
              for weight, (_, one) in zip(weights, used, strict=True)]  # fmt: skip
    timings = [one for _, one in used]
    level = sum([one.share * one.least for one in around]) * STEP
    problem, nearest = ask.problem, used[0][0]
    unsafe = frozenset[ConfigGroup]().union(*(one.unsafe for one in timings))
    blends = [(key, allowed, _blend(key, nearest, around))
              for key, allowed in _contenders(ask, timings, unsafe).items()]  # fmt: skip
    estimates, aten, support = _estimates(blends, Scale.of(problem, ask.device), timings)
    return Prediction(
        "near",
        estimates,
        FAR * nearest,
        math.exp(aten + level),
        None if ask.klass is None else all(one.verified for one in timings),
        timings[0].table,
        {
            "neighbours": [
                {"problem": one.problem.text, "distance": distance, "table": one.table, "aten_us": one.aten_us}
                for distance, one in used
            ],
            "distance": nearest,
            "configs": len(estimates),
        },
        unsafe,
        any(one.problem.n == problem.n and one.problem.k == problem.k for one in timings),
        support,
        timings,
    )


class _Blend(NamedTuple):
    """A group over all neighbours: mean and standard deviation of its excess. `full`: one measured it in full."""

    mean: float
    spread: float
    full: bool


class _Beside(NamedTuple):
    """A neighbour for `_blend`: its weight, the Codes of its groups, `Timings.least` and `likes`."""

    share: float
    codes: Mapping[ConfigGroup, Codes]
    least: int
    likes: Mapping[Like, int]


def _blend(key: ConfigGroup, nearest: float, around: Sequence[_Beside]) -> _Blend:
    """The group's mean excess. At a neighbour that did not time the group, it is assumed to be UNLIKE behind the best
    of its tile."""
    weight = first = second = seen = total = 0.0
    full = 0
    like = key.like
    for share, codes, least, likes in around:
        best = likes.get(like)
        if best is None:  # Then it did not time the group either.
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
    prior = total * STEP + (1 - seen) * UNSEEN + UNLIKE
    missing = max(0.0, 1 - weight)
    mean = first + missing * prior
    variance = second - 2 * mean * first + weight * mean * mean
    variance += missing * ((prior - mean) ** 2 + UNLIKE**2) + (OWN * min(1.0, nearest / CLOSE)) ** 2
    return _Blend(mean, math.sqrt(max(0.0, variance)), full > 0)


def _contenders(
    ask: Ask, timings: Sequence[Timings], unsafe: Collection[ConfigGroup]
) -> dict[ConfigGroup, list[Member]]:
    """The groups that came closest to the best somewhere, are not unsafe, and carry over, with their configs that may
    be served; and ATen's."""
    problem, device, banned = ask.problem, ask.device, unfit(ask)
    found = {ATEN_GROUP: list(members(ATEN_GROUP, problem, device))}
    seen = {ATEN_GROUP, *unsafe}
    most, count = math.inf, IN_RANGES if ask.symbolic else CONTENDERS
    for behind, key in _closest(timings):
        if behind * STEP > most or len(found) > count:
            break
        if key in seen:
            continue
        seen.add(key)
        if _carries(key, problem, timings):
            fit = [one for one in members(key, problem, device)
                   if not (banned and one.config in banned) and not objection(ask, one.config)]  # fmt: skip
            if fit:
                found[key] = fit
                most = min(most, behind * STEP + math.log1p(BEHIND))
    return found


def _closest(timings: Sequence[Timings]) -> Iterator[tuple[int, ConfigGroup]]:
    """How far groups are behind the best somewhere (in STEPs), the closest first. A group comes as often as it was
    timed, and again after the FIRST of all neighbours."""
    end = min((one.behind[FIRST][0] for one in timings if len(one.behind) > FIRST), default=math.inf)
    first = sorted(chain.from_iterable([one.behind[:FIRST] for one in timings]), key=itemgetter(0))
    yield from (one for one in first if one[0] <= end)  # Nothing that is left out comes before these.
    yield from sorted(chain.from_iterable([one.behind for one in timings]), key=itemgetter(0))


def _carries(key: ConfigGroup, problem: Problem, timings: Iterable[Timings]) -> bool:
    """Whether the code of the config of a group that was measured is, at `problem`, that of one of the problems where
    it was."""
    config = key.config
    compiled = config.spec.compiled
    if compiled is same_speed:
        return True
    wanted = compiled(config, problem)
    return any(key in one.codes and compiled(config, one.problem) == wanted for one in timings)


def _estimates(
    blends: Iterable[tuple[ConfigGroup, Sequence[Member], _Blend]], scale: Scale, timings: Sequence[Timings]
) -> tuple[dict[Config, Estimate], float, Supports]:
    """The estimates, relative to ATen's, whose group comes first; the logarithm of ATen's time, up to the level; and
    what single neighbours say."""
    found: dict[Config, Estimate] = {}
    origins: dict[Config, tuple[ConfigGroup, float]] = {}
    aten = expected_aten = 0.0
    for key, allowed, (mean, spread, full) in blends:
        for config, tile in allowed:
            expected = math.log(scale.us(tile))
            if key is ATEN_GROUP:
                aten, expected_aten = mean + expected, expected
            log = mean + expected - aten
            before = found.get(config)  # Two splits of K may be one config.
            if before is None or log < before.log:
                found[config] = Estimate(log, spread, full or (before is not None and before.full))
                origins[config] = key, expected
            elif full and not before.full:
                found[config] = before._replace(full=True)
    return found, aten, Supports(timings, origins, expected_aten)
