"""What trees on top of the cost model add to a prediction from neighbours: a second opinion and more candidates.

Neighbours that are close know best how their configs compare; the trees know the problem's own sizes, and configs that
no neighbour timed. Both are wrong by a few percent, and mostly not by the same, so their mean is better than either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

from gemmdb.cost.machine import machine
from gemmdb.cost.transfer import group_of, tile
from gemmdb.cost.trees import Corrected
from gemmdb.cost.work import Setting
from gemmdb.kernels.config import ATEN, Config
from gemmdb.ladder.ask import Ask
from gemmdb.ladder.model import allowed, uncovered
from gemmdb.ladder.policy_filter import gain
from gemmdb.ladder.prediction import Prediction

SPREAD = 0.08
"""Standard deviation of the logarithm of a time that the trees expect, beside the level of the problem."""
BESIDE = 0.16
"""The same where a neighbour differs in M alone: the order of its configs is then better than that of the trees, so
that these count a quarter."""
NEARBY = 3
"""How many of the prediction's configs the trees look at."""
OWN = 6
"""And of the cost model's."""
FADES = 0.1
"""Configs that are so much behind the best of the neighbours' order, in logarithms, count 1/e for the common level."""
FAR = 0.02
"""Loss allowed for per doubling of the distance to the nearest neighbour, in the place of `prediction.FAR`: nine of ten
held-out answers keep what is stated (benchmarks/results/offtable)."""


def corrected(ask: Ask, prediction: Prediction, times_more: int = 1) -> Prediction:
    """The prediction as trees correct it, and with the best of the cost model's candidates, `times_more` of both than a
    lookup has time for; as it was where no trees were fitted on the arch, the model does not cover the problem, or the
    policy has switched it off."""
    known = machine(ask.device)
    if known is None or not ask.policy.model or uncovered(ask.problem):
        return prediction
    setting = Setting.of(ask.problem, known)
    corrected = Corrected.of(setting)
    nearby = [config for config in prediction.candidates(NEARBY * times_more) if tile(config) is not None]
    if corrected is None:
        return prediction
    times = {config: math.log(corrected.us(shape)) for config in nearby if (shape := tile(config))}
    times[ATEN] = math.log(corrected.aten_us())
    expected = {config: math.log(ratio * prediction.aten_us) for config, ratio in prediction.ratios.items()}
    shift = _shift(expected, times, nearby or [ATEN])
    logs, spread = dict(expected), dict(prediction.spread)
    unsure = BESIDE if prediction.beside else SPREAD
    for config, log in times.items():
        logs[config], spread[config] = _mean((logs[config], spread[config]), (log + shift, unsure))
    own = (one for one in allowed(ask, setting)
           if group_of(one.config, ask.problem, ask.device) not in prediction.unsafe)  # fmt: skip
    for one in islice(own, OWN * times_more):
        if one.config not in logs:
            us = corrected.of_work(one.tile, one.work, one.us)
            logs[one.config], spread[one.config] = math.log(us) + shift, unsure
    return _with(prediction, logs, spread)


def _with(prediction: Prediction, logs: Mapping[Config, float], spread: Mapping[Config, float]) -> Prediction:
    """The prediction by these logarithms of microseconds. What no neighbour timed may be served as well: trees are told
    of configs, and by how much they are off."""
    aten = logs[ATEN]
    ratios = {config: math.exp(log - aten) for config, log in logs.items()}
    served = (c for c in logs if c in prediction.gains or c not in prediction.ratios)
    return replace(
        prediction,
        ratios=ratios,
        spread=spread,
        far=FAR * prediction.evidence["distance"],
        gains={config: gain(ratios[config]) for config in served},
        aten_us=math.exp(aten),
        evidence={**prediction.evidence, "configs": len(ratios), "corrected": True},
    )


def _shift(expected: Mapping[Config, float], times: Mapping[Config, float], nearby: Sequence[Config]) -> float:
    """By how much the neighbours' level is above that of the trees, mostly by the configs that are ahead."""
    best = min(expected[config] for config in nearby)
    weights = {config: math.exp((best - expected[config]) / FADES) for config in nearby}
    return sum(weight * (expected[c] - times[c]) for c, weight in weights.items()) / sum(weights.values())


def _mean(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """The mean of two values, weighed by their standard deviations, and its own; a value without one is certain."""
    a, b = one[1] ** 2, other[1] ** 2
    share = b / (a + b)
    return one[0] * share + other[0] * (1 - share), math.sqrt(a * b / (a + b))
