"""Prediction: the time of every config at a problem, from its own rows or from those of its neighbours."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gemmdb.cost.transfer import ConfigGroup, Like, Scale, group_of, members
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.kernel import alike
from gemmdb.key.canonical import lazy
from gemmdb.key.problem import Problem
from gemmdb.ladder.ask import Ask
from gemmdb.ladder.exact import barred, find
from gemmdb.ladder.expected import Codes
from gemmdb.ladder.neighbours import unfit
from gemmdb.ladder.policy_filter import gain, objection
from gemmdb.ladder.support import Support, Supports
from gemmdb.ladder.timings import Timings, timings_of
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
CAUTION = 0.7
"""How many standard deviations are added to a config's time when one is chosen. Among many similar configs, an
uncertain one is likely to look best by chance."""
BOUND = 0.4
"""How many standard deviations of the chosen config, and of its best rival, the stated loss includes."""
FAR = 0.05
"""Added to the stated loss per doubling of the distance to the nearest neighbour. BOUND, OWN and FAR are chosen so that
nine of ten held-out answers stay within the stated loss (benchmarks/results/offtable)."""


CONTENDERS = 12
"""The most groups of configs that are compared: those closest to the best of some neighbour."""
BEHIND = 0.3
"""How much farther behind (in logarithms) than the closest of them a group may be."""


@dataclass(frozen=True)
class Prediction:
    """Times relative to ATen at a problem, for the configs that may be served there and for ATen itself.

    `ratios`: the expected ratios. `spread`: the standard deviation of their logarithms, 0 if measured. `far`: what the
    distance adds to a loss. `gains`: the expected gain over ATen of the configs that were measured in full. `aten_us`:
    expected microseconds of ATen. `unsafe`: groups that were wrong or crashed at a neighbour. `beside`: whether a
    neighbour has the problem's N and K. `support`: of the configs that neighbours timed. `around`: the neighbours,
    nearest first. `corrected`: whether trees corrected the times. `intervals`: half the 95% interval of each time that
    was measured at the problem itself, relative.
    """

    rung: str
    ratios: Mapping[Config, float]
    spread: Mapping[Config, float]
    far: float
    gains: Mapping[Config, float]
    aten_us: float
    verified: bool | None
    table: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    unsafe: frozenset[ConfigGroup] = frozenset()
    beside: bool = False
    support: Mapping[Config, Support] = field(default_factory=dict)
    around: Sequence[Timings] = ()
    corrected: bool = False
    intervals: Mapping[Config, float] = field(default_factory=dict)

    def off(self, config: Config) -> float:
        """How far the time of a config may be off, relative: half its 95% interval where it was measured, else the
        standard deviation of its logarithm. 0 for ATen, whose time is the unit."""
        return 0.0 if config == ATEN else self.intervals.get(config, self.spread.get(config, 0.0))

    def regret(self, config: Config) -> float:
        """How much slower than the best config this one is expected to be: 0.03 is 3%."""
        return self.ratios[config] / self._best - 1

    @lazy
    def _best(self) -> float:
        return min(self.ratios.values())

    @lazy
    def _least(self) -> float:
        """The least that the time of the best config may be, relative to ATen."""
        return min(ratio * math.exp(-BOUND * self.spread[one]) for one, ratio in self.ratios.items())

    @lazy
    def doubt(self) -> Mapping[Config, float]:
        """How far off the expected time of each config may be, relative."""
        return {c: math.expm1(2 * BOUND * spread) + self.far for c, spread in self.spread.items()}

    def loss(self, config: Config) -> float:
        """The stated loss of serving `config` instead of the best config. Nine of ten answers stay within it."""
        return self.ratios[config] * math.exp(BOUND * self.spread[config]) / self._least - 1 + self.far

    def score(self, config: Config) -> float:
        """The expected ratio plus a surcharge for its uncertainty."""
        return self.ratios[config] * math.exp(CAUTION * self.spread[config])

    def candidates(self, count: int) -> list[Config]:
        """The `count` configs other than ATen that are most likely to be the best."""
        return sorted((c for c in self.gains if c != ATEN), key=lambda c: (self.score(c), c.text))[:count]


def measured(ask: Ask) -> Prediction | None:
    """The prediction for a problem that was measured itself; None if no table has a verdict on it."""
    found = find(ask)
    here = timings_of(ask, found[0], ask.problem) if found else None
    if here is None:
        return None
    banned = barred(ask) - {ATEN}
    allowed = (c for c, one in here.pooled.items() if one.servable and c not in banned)
    ratios = {c: here.pooled[c].ratio for c in allowed if objection(ask, c) is None}
    gains = {config: gain(ratio) for config, ratio in ratios.items()}
    exact = dict.fromkeys(ratios, 0.0)
    intervals = {config: here.pooled[config].spread for config in ratios}
    return Prediction("exact", ratios, exact, 0.0, gains, here.aten_us, here.verified, here.table, intervals=intervals)


def predicted(ask: Ask, used: Sequence[tuple[float, Timings]]) -> Prediction:
    """The prediction from the timings at neighbours, nearest first, each with its distance in doublings (> 0).

    `Scale` expects a time of each group. At each neighbour, the excess of a group is its time over the expected time,
    relative to the best group there. The predicted time is the mean excess, weighted by closeness, times the time that
    `Scale` expects at the problem.
    """
    weights = [math.exp(-distance * distance / 2) / (distance + 0.05) for distance, _ in used]
    total = sum(weights)
    weights = [weight / total for weight in weights]
    timings = [one for _, one in used]
    level = sum([weight * one.level for weight, one in zip(weights, timings, strict=True)])
    problem = ask.problem
    scale = Scale.of(problem, ask.device)
    unsafe = frozenset[ConfigGroup]().union(*(one.unsafe for one in timings))
    allowed = _contenders(ask, timings, unsafe)
    around = [_Beside(weight, one.codes, one.least, one.likes) for weight, one in zip(weights, timings, strict=True)]
    blended = {key: _blend(key, used[0][0], around) for key in allowed}
    times, spread, servable, support = _times(blended, allowed, scale, timings)
    aten, nearest = times[ATEN], timings[0]
    ratios = {config: math.exp(log - aten) for config, log in times.items()}
    return Prediction(
        "near",
        ratios,
        spread,
        FAR * used[0][0],
        {c: gain(ratios[c]) for c in servable},
        math.exp(aten + level),
        None if ask.klass is None else all(one.verified for one in timings),
        nearest.table,
        {
            "neighbours": [
                {"problem": one.problem.text, "distance": distance, "table": one.table, "aten_us": one.aten_us}
                for distance, one in used
            ],
            "distance": used[0][0],
            "configs": len(ratios),
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
        if key in codes:
            value, _, timed = codes[key]
            excess = (value - least) * STEP
            weight += share
            first += share * excess
            second += share * excess * excess
            full |= timed
        if like in likes:
            seen += share
            total += share * ((likes[like] - least) * STEP)
    prior = total + (1 - seen) * UNSEEN + UNLIKE
    missing = max(0.0, 1 - weight)
    mean = first + missing * prior
    variance = second - 2 * mean * first + weight * mean * mean
    variance += missing * ((prior - mean) ** 2 + UNLIKE**2) + (OWN * min(1.0, nearest / CLOSE)) ** 2
    return _Blend(mean, math.sqrt(max(0.0, variance)), full > 0)


def _contenders(
    ask: Ask, timings: Sequence[Timings], unsafe: Collection[ConfigGroup]
) -> dict[ConfigGroup, list[Config]]:
    """The groups that came closest to the best somewhere, are not unsafe, and carry over, with their configs that may
    be served; and ATen's."""
    problem, device = ask.problem, ask.device
    behind = _behind(timings)
    banned = unfit(ask)
    found = {group_of(ATEN, problem, device): [ATEN]}
    most = math.inf
    for key in sorted(behind, key=behind.__getitem__):
        if behind[key] * STEP > most or len(found) > CONTENDERS:
            break
        if key in unsafe or key in found or not _carries(key, problem, timings):
            continue
        configs = [c for c in members(key, problem, device) if c not in banned and not objection(ask, c)]
        if configs:
            found[key] = configs
            most = min(most, behind[key] * STEP + math.log1p(BEHIND))
    return found


def _behind(timings: Iterable[Timings]) -> dict[ConfigGroup, int]:
    """How far each group is behind the best, where it came closest to that (in STEPs)."""
    found: dict[ConfigGroup, int] = {}
    for one in timings:
        for key, behind in one.behind.items():
            if key not in found or behind < found[key]:
                found[key] = behind
    return found


def _carries(key: ConfigGroup, problem: Problem, timings: Iterable[Timings]) -> bool:
    """Whether the code of the config of a group that was measured is, at `problem`, that of one of the problems where
    it was."""
    config = key.config
    compiled = config.spec.compiled
    if compiled is alike:
        return True
    wanted = compiled(config, problem)
    return any(key in one.codes and compiled(config, one.problem) == wanted for one in timings)


def _times(
    blended: Mapping[ConfigGroup, _Blend],
    allowed: Mapping[ConfigGroup, Sequence[Config]],
    scale: Scale,
    timings: Sequence[Timings],
) -> tuple[dict[Config, float], dict[Config, float], set[Config], Supports]:
    """The logarithms of the times, up to the level; their standard deviations; which were measured in full; and what
    single neighbours say."""
    times: dict[Config, float] = {}
    spread: dict[Config, float] = {}
    servable: set[Config] = set()
    origins: dict[Config, tuple[ConfigGroup, float]] = {}
    aten = math.log(scale.us(ATEN))
    for key, (mean, own, full) in blended.items():
        for config in allowed[key]:
            expected = math.log(scale.us(config))
            if config not in times or mean + expected < times[config]:
                times[config], spread[config] = mean + expected, own
                origins[config] = key, expected
            if full:
                servable.add(config)
    return times, spread, servable, Supports(timings, origins, aten)
