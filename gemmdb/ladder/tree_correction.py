"""Corrects a prediction from neighbours by trees on top of the cost model, and adds the cost model's candidates.

Close neighbours show best how their configs compare. The trees take the problem's own sizes into account, and configs
that no neighbour timed. Both are wrong by a few percent, mostly independently, so their mean is better than either.
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
"""Standard deviation of the logarithm of a time that the trees predict, after the problem's common level is removed."""
BESIDE = 0.16
"""The same if some neighbour differs in M only. Its order of configs is then better than that of the trees, so the
trees get a quarter of the weight."""
NEARBY = 3
"""How many of the prediction's configs the trees correct."""
OWN = 6
"""How many of the cost model's candidates are added."""
FADES = 0.1
"""For the common level, a config that the neighbours predict this far behind the best (in logarithms) has the weight
1/e."""
FAR = 0.02
"""Added to the stated loss per doubling of the distance to the nearest neighbour, instead of `prediction.FAR`. With it,
nine of ten held-out answers stay within the stated loss (benchmarks/results/offtable)."""


def corrected(ask: Ask, prediction: Prediction, times_more: int = 1) -> Prediction:
    """The prediction, corrected by the trees and with the best of the cost model's candidates. `times_more`: multiplies
    how many of both are used; a lookup has time for 1. The prediction is unchanged if no trees were fitted on the arch,
    the cost model does not cover the problem, or the policy switches it off."""
    known = machine(ask.device)
    if known is None or not ask.policy.model or uncovered(ask.problem):
        return prediction
    setting = Setting.shared(ask.problem, known)
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
    unsafe = prediction.unsafe
    own = (one for one in allowed(ask, setting)
           if not unsafe or group_of(one.config, ask.problem, ask.device) not in unsafe)  # fmt: skip
    for one in islice(own, OWN * times_more):
        if one.config not in logs:
            logs[one.config], spread[one.config] = math.log(corrected.us(one.tile)) + shift, unsure
    return _with(prediction, logs, spread)


def _with(prediction: Prediction, logs: Mapping[Config, float], spread: Mapping[Config, float]) -> Prediction:
    """The prediction with these logarithms of microseconds. Configs that no neighbour timed may be served as well."""
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
        corrected=True,
    )


def _shift(expected: Mapping[Config, float], times: Mapping[Config, float], nearby: Sequence[Config]) -> float:
    """How far the neighbours' level is above that of the trees (in logarithms), weighted towards the fastest
    configs."""
    best = min(expected[config] for config in nearby)
    weights = {config: math.exp((best - expected[config]) / FADES) for config in nearby}
    return sum(weight * (expected[c] - times[c]) for c, weight in weights.items()) / sum(weights.values())


def _mean(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """The mean of two (value, standard deviation) pairs, weighted by precision, with its standard deviation. A standard
    deviation of 0 means a certain value."""
    a, b = one[1] ** 2, other[1] ** 2
    share = b / (a + b)
    return one[0] * share + other[0] * (1 - share), math.sqrt(a * b / (a + b))
