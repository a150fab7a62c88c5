"""Corrects a prediction from neighbours by trees on top of the cost model, and adds the cost model's candidates.

Close neighbours show best how their configs compare. The trees take the problem's own sizes into account, and configs
that no neighbour timed. Both are wrong by a few percent, mostly independently, so their mean is better than either.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from gemmdb.cost.machine import machine
from gemmdb.cost.transfer import ConfigGroup, group_of, tile
from gemmdb.cost.trees import Corrected
from gemmdb.cost.work import Setting
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.from_neighbours import predict
from gemmdb.lookup.prediction import Estimate, Prediction, remembered
from gemmdb.lookup.ranking import Ranked, allowed, uncovered
from gemmdb.rejected import Rejected

TREE_SPREAD = 0.08
"""Standard deviation of the logarithm of a time that the trees predict, after the problem's common level is removed."""
TREE_SPREAD_BESIDE = 0.16
"""The same if some neighbour differs in M only. Its order of configs is then better than that of the trees, so the
trees get a quarter of the weight."""
CORRECTED_CONFIGS = 3
"""How many of the prediction's configs the trees correct."""
ADDED_CONFIGS = 6
"""How many of the cost model's candidates are added."""
ENOUGH_GROUPS, ENOUGH_PEERS = 12, 2
"""They are left out if some neighbour differs in M only, and at ENOUGH_PEERS neighbours of the same class of M so many
groups of configs were timed. Then what is good here is among these groups (benchmarks/results/offtable), unless all of
them have 128 rows where this problem has 131: a tile of 128 rows wastes half."""
LEVEL_DECAY = 0.1
"""For the common level, a config that the neighbours predict this far behind the best (in logarithms) has the weight
1/e."""
LOSS_PER_DOUBLING = 0.02
"""Added to the stated loss per doubling of the distance to the nearest neighbour. Nine of ten held-out answers stay
within the stated loss (benchmarks/results/offtable)."""


def predict_corrected(ask: Ask) -> Prediction | Rejected:
    """The prediction from the nearest neighbours, corrected."""
    return remembered(ask, "corrected", _predict)


def _predict(ask: Ask) -> Prediction | Rejected:
    prediction = predict(ask)
    return prediction if isinstance(prediction, Rejected) else corrected(ask, prediction)


def corrected(ask: Ask, prediction: Prediction, times_more: int = 1) -> Prediction:
    """The prediction, corrected by the trees and with the best of the cost model's candidates. `times_more`: multiplies
    how many of both are used; a lookup has time for 1. The prediction is unchanged if no trees were fitted on the arch,
    or the cost model does not cover the problem. Ops with trees of their own stay as they
    are: trees do not make these predictions better (docs/contributing/lookup.md)."""
    known = machine(ask.device)
    if known is None or uncovered(ask.problem):
        return prediction
    setting = Setting.shared(ask.problem, known)
    corrected = Corrected.of(setting)
    if corrected is None:
        return prediction
    estimates, level = dict(prediction.estimates), math.log(prediction.aten_us)
    nearby = prediction.candidates(CORRECTED_CONFIGS * times_more)
    times = {config: math.log(corrected.us(shape)) - level for config in nearby if (shape := tile(config))}
    own = math.log(corrected.aten_us()) - level
    shift = _shift([(estimates[config].log, log) for config, log in times.items()] or [(0.0, own)])
    times[ATEN] = own
    unsure = TREE_SPREAD_BESIDE if prediction.beside else TREE_SPREAD
    for config, log in times.items():
        estimates[config] = _mean(estimates[config], log + shift, unsure)
    if times_more > 1 or ask.symbolic or not _explored(ask.problem, prediction):
        for one in _own(ask, setting, prediction.unsafe, ADDED_CONFIGS * times_more):
            if one.config not in estimates:
                log = math.log(corrected.us(one.tile)) - level + shift
                estimates[one.config] = Estimate(log, unsure, True)
    return _with(prediction, estimates)


def _explored(problem: Problem, prediction: Prediction) -> bool:
    """Whether so much was timed nearby that the model's candidates are needless."""
    rows = _row_class(problem)
    peers = [one for one in prediction.around if len(one.codes) >= ENOUGH_GROUPS and _row_class(one.problem) == rows]
    return prediction.beside and len(peers) >= ENOUGH_PEERS


def _row_class(problem: Problem) -> int:
    """The class of M: up to 16 rows, which the smallest tile has, and from one power of two to the next."""
    return max(4, (problem.m - 1).bit_length())


def _own(ask: Ask, setting: Setting, unsafe: Collection[ConfigGroup], count: int) -> Iterator[Ranked]:
    """The first of the cost model's candidates that were neither wrong nor crashed at a neighbour."""
    fit = (one for one in allowed(ask, setting)
           if not unsafe or group_of(one.config, ask.problem, ask.device) not in unsafe)  # fmt: skip
    return islice(fit, count)


def _with(prediction: Prediction, estimates: Mapping[Config, Estimate]) -> Prediction:
    """The prediction with these estimates, relative to the time that it had for ATen."""
    aten = estimates[ATEN].log
    return replace(
        prediction,
        estimates={config: Estimate(log - aten, spread, full) for config, (log, spread, full) in estimates.items()},
        far=LOSS_PER_DOUBLING * prediction.evidence["distance"],
        aten_us=prediction.aten_us * math.exp(aten),
        evidence={**prediction.evidence, "configs": len(estimates), "corrected": True},
        corrected=True,
    )


def _shift(pairs: Sequence[tuple[float, float]]) -> float:
    """How far the neighbours' level is above that of the trees (in logarithms), weighted towards the fastest configs.
    `pairs`: of each config what the neighbours say, and what the trees do."""
    best = min(pairs)[0]
    weights = [math.exp((best - log) / LEVEL_DECAY) for log, _ in pairs]
    return sum([weight * (log - time) for weight, (log, time) in zip(weights, pairs, strict=True)]) / sum(weights)


def _mean(one: Estimate, log: float, spread: float) -> Estimate:
    """The mean of an estimate and of another one of its config, weighted by precision. A standard deviation of 0 means
    a certain value."""
    a, b = one.spread**2, spread**2
    share = b / (a + b)
    return Estimate(one.log * share + log * (1 - share), math.sqrt(a * b / (a + b)), one.full)
