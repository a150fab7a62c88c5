"""Corrects predictions from neighbours with trees on top of the cost model, and adds the cost model's candidates.

Close neighbours rank their configs best. The trees account for the problem's own sizes, and for configs that no
neighbour timed. Both are off by a few percent, mostly independently, so their mean is better than either.
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
"""Standard deviation of the trees' predicted log times, after removing the problem's common level."""
TREE_SPREAD_BESIDE = 0.16
"""The same if some neighbour differs only in M. Its ranking of configs is then better than the trees', so the trees get
a quarter of the weight."""
CORRECTED_CONFIGS = 3
"""Number of the prediction's configs that the trees correct."""
ADDED_CONFIGS = 6
"""Number of cost model candidates to add."""
ENOUGH_GROUPS, ENOUGH_PEERS = 12, 2
"""Adding is skipped if some neighbour differs only in M, and ENOUGH_PEERS neighbours of the same M class each timed at
least ENOUGH_GROUPS config groups. Good configs are then among these groups (benchmarks/results/offtable), unless, for
example, all of them have 128 rows and this problem has 131: a tile of 128 rows wastes half."""
LEVEL_DECAY = 0.1
"""In the common level, a config that the neighbours predict this log distance behind the best has the weight 1/e."""
LOSS_PER_DOUBLING = 0.02
"""Added to the estimated loss per doubling of distance to the nearest neighbour. Nine out of ten held-out predictions
stay within the estimated loss (benchmarks/results/offtable)."""


def predict_corrected(ask: Ask) -> Prediction | Rejected:
    """Return the corrected prediction from the nearest neighbours."""
    return remembered(ask, "corrected", _predict, shared=True)


def _predict(ask: Ask) -> Prediction | Rejected:
    prediction = predict(ask)
    return prediction if isinstance(prediction, Rejected) else corrected(ask, prediction)


def corrected(ask: Ask, prediction: Prediction, times_more: int = 1) -> Prediction:
    """Return the prediction, corrected by the trees and extended by the cost model's best candidates. `times_more`:
    multiplier for the number of both; a lookup has time for 1. The prediction is unchanged if no trees were fitted for
    the arch, or the cost model does not cover the problem. Ops with their own trees also stay unchanged: trees do not
    improve these predictions (docs/contributing/lookup.md)."""
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
    """Return whether enough was timed nearby to skip the model's candidates."""
    rows = _row_class(problem)
    peers = [one for one in prediction.around if len(one.codes) >= ENOUGH_GROUPS and _row_class(one.problem) == rows]
    return prediction.beside and len(peers) >= ENOUGH_PEERS


def _row_class(problem: Problem) -> int:
    """Return the class of M: up to 16 rows (the smallest tile), then one class per power of two."""
    return max(4, (problem.m - 1).bit_length())


def _own(ask: Ask, setting: Setting, unsafe: Collection[ConfigGroup], count: int) -> Iterator[Ranked]:
    """Return the cost model's top candidates that were neither wrong nor crashed at a neighbour."""
    fit = (one for one in allowed(ask, setting)
           if not unsafe or group_of(one.config, ask.problem, ask.device) not in unsafe)  # fmt: skip
    return islice(fit, count)


def _with(prediction: Prediction, estimates: Mapping[Config, Estimate]) -> Prediction:
    """Return the prediction with these estimates, renormalized to ATen's new estimate."""
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
    """Return the log offset of the neighbours' level over the trees', weighted towards the fastest configs. `pairs`:
    each config's log time by the neighbours and by the trees."""
    best = min(pairs)[0]
    weights = [math.exp((best - log) / LEVEL_DECAY) for log, _ in pairs]
    return sum([weight * (log - time) for weight, (log, time) in zip(weights, pairs, strict=True)]) / sum(weights)


def _mean(one: Estimate, log: float, spread: float) -> Estimate:
    """Return the precision-weighted mean of two estimates of a config. A standard deviation of 0 means a certain
    value."""
    a, b = one.spread**2, spread**2
    share = b / (a + b)
    return Estimate(one.log * share + log * (1 - share), math.sqrt(a * b / (a + b)), one.full)
