"""The kernel that is expected to be the fastest of those that the caller can use, also where ATen is faster."""

from __future__ import annotations

from collections.abc import Iterator

from gemmdb.hit import Hit
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.model import FIRST, rank
from gemmdb.lookup.near import predict_corrected
from gemmdb.lookup.prediction import Prediction, measured

MOST = 64
"""The most kernels that the caller is asked about."""


def best_kernel(ask: Ask) -> Hit | None:
    """The first kernel that the caller does not rule out, in the order of expected times: of those measured for the
    problem, else near it, else by the cost model. None if there is none."""
    for prediction in _predictions(ask):
        for config in prediction.candidates(MOST):
            if ask.excluded is None or not ask.excluded(config, None):
                ratio = prediction.ratios[config]
                return Hit(prediction.rung, config, ratio * prediction.aten_us, 1 / ratio, prediction.table)
    modelled = rank(ask, FIRST) if ask.policy.model else ""
    if isinstance(modelled, str):
        return None
    for one in modelled.best:
        if ask.excluded is None or not ask.excluded(one.config, None):
            return Hit("model", one.config, one.us, modelled.aten_us / one.us, "")
    return None


def _predictions(ask: Ask) -> Iterator[Prediction]:
    if own := measured(ask):
        yield own
    nearby = predict_corrected(ask) if ask.policy.near else None
    if isinstance(nearby, Prediction):
        yield nearby
