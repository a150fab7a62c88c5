"""Rung `near`: answers a problem that was not measured from nearby problems that were.

Neighbours share the device, the op and the family: dtypes, layout and alignment classes, bias, fusion context and
numerics. The rung does not copy a neighbour's winner: `from_neighbours.predicted` predicts the time of each config, and
`tree_correction.corrected` adds what trees fitted on the arch know. The rung declines if the neighbours are too far
away, or if the prediction is too uncertain for the policy and not certainly faster than ATen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.lookup.ask import Ask, Step
from gemmdb.lookup.certainty import Certainty
from gemmdb.lookup.claims import least_of
from gemmdb.lookup.exact import exact
from gemmdb.lookup.from_neighbours import predicted
from gemmdb.lookup.neighbours import MOST, REACH, Neighbour, neighbours, unfit
from gemmdb.lookup.policy_filter import objection, required_gain
from gemmdb.lookup.prediction import Prediction
from gemmdb.lookup.remembering import remembered
from gemmdb.lookup.timings import Timings, timings_of
from gemmdb.lookup.tree_correction import corrected
from gemmdb.table.verdict import TIE

FARTHEST = {"cuda": 2.0}
"""The largest distance to the nearest neighbour, in doublings, by kind of device. Farther problems get no answer."""
UNTRIED = 0.6
"""The same for other kinds, where no table was large enough to test a larger distance."""


def near(ask: Ask) -> Step:
    """The best of the configs timed at the neighbours, if the policy allows its expected loss; else None."""
    if not ask.policy.near:
        return Step("near", None, "switched off by the policy")
    if ask.problem.spec.batched and ask.confirming:
        return _of_a_batch(ask)
    prediction = predict_corrected(ask)
    if isinstance(prediction, str):
        return Step("near", None, prediction)
    return _confirming(ask, prediction) if ask.confirming else _certain(ask, prediction)


def _certain(ask: Ask, prediction: Prediction) -> Step:
    """The best of the configs that are faster than ATen for certain, else ATen; None if it may lose too much."""
    certainty = Certainty(ask, prediction)
    best = choose(ask, prediction, certainty)
    reason = _reason(prediction, best)
    sure = best != ATEN and ask.policy.on_miss != "live"
    if sure or prediction.loss(best) <= ask.policy.near_loss:
        return _serve(prediction, best, reason, certainty)
    return Step("near", None, f"{reason}, over the policy's {ask.policy.near_loss:.1%}", prediction.evidence)


def _confirming(ask: Ask, prediction: Prediction) -> Step:
    """The best config, which the caller times beside ATen, if the policy allows its expected loss; else None."""
    best = choose(ask, prediction)
    for config in dict.fromkeys((best, ATEN)):
        if prediction.loss(config) <= ask.policy.near_loss:
            return _serve(prediction, config, _reason(prediction, config))
    reason = f"{_reason(prediction, best)}, over the policy's {ask.policy.near_loss:.1%}"
    if best != ATEN and ask.policy.on_miss != "live":
        return _serve(prediction, best, f"{reason}, but expected to be faster than ATen")
    return Step("near", None, reason, prediction.evidence)


def _of_a_batch(ask: Ask) -> Step:
    """What won at the nearest product of a batch, which the caller times beside ATen. On held-out H200 rows, that finds
    more gains than a prediction, which is uncertain where few configs were timed."""
    query, most = ask.problem, FARTHEST.get(ask.device.kind, UNTRIED)
    first = next(neighbours(ask), None)
    hit = exact(ask.at(first.problem)).hit if first is not None and first.distance <= most else None
    if first is None or hit is None:
        return Step("near", None, "no similar product of a batch was measured near this one")
    nearest, distance = first.problem, first.distance
    config = hit.config if objection(ask, hit.config) is None and hit.config not in unfit(ask) else ATEN
    if config == ATEN and ask.policy.on_miss == "live":
        return Step("near", None, f"ATen won {nearest.head}, {distance:.2f} doublings away")
    speedup = hit.speedup if config != ATEN else 1.0
    aten_us = hit.expected_us * hit.speedup * query.flops / nearest.flops
    evidence = {"neighbours": [nearest.text], "distance": distance}
    reason = f"as for {nearest.head}, {distance:.2f} doublings away"
    return Step("near", Hit("near", config, aten_us / speedup, speedup, hit.table, evidence), reason, evidence)


def predict_near(ask: Ask) -> Prediction | str:
    """The prediction from the nearest neighbours, or the reason why there is none."""
    return remembered(ask, "near", _predict)


def predict_corrected(ask: Ask) -> Prediction | str:
    """The same, corrected by the trees."""
    return remembered(ask, "corrected", _correct)


def _correct(ask: Ask) -> Prediction | str:
    prediction = predict_near(ask)
    return prediction if isinstance(prediction, str) else corrected(ask, prediction)


def _predict(ask: Ask) -> Prediction | str:
    used = _timings(ask, neighbours(ask))
    if used and used[0][0] <= FARTHEST.get(ask.device.kind, UNTRIED):
        return _bounded(ask, predicted(ask, used))
    around = list(neighbours(ask))
    if not around:
        return (
            "no similar problem (same op, dtypes and layouts, and the same sizes of 1 and alignment of the output) was"
            f" measured near this one on {ask.device.sku}"
        )
    closest = around[0]
    return (
        f"too far: the nearest of {len(around)} neighbours is m={closest.problem.m} n={closest.problem.n}"
        f" k={closest.problem.k}, {closest.distance:.2f} doublings away"
    )


def _bounded(ask: Ask, prediction: Prediction) -> Prediction | str:
    """The prediction without times that the device cannot reach, which a packed table could bring about by what it says
    that the cost model expects; the reason why there is none if ATen's is one."""
    least = math.log(least_of(ask) / prediction.aten_us)
    if least > 0:
        return f"the neighbours predict a time of ATen that no {ask.device.sku} can reach"
    possible = {config: one for config, one in prediction.estimates.items() if one.log >= least}
    return prediction if len(possible) == len(prediction.estimates) else replace(prediction, estimates=possible)


def choose(ask: Ask, prediction: Prediction, certainty: Certainty | None = None) -> Config:
    """The config to serve: the cheapest to compile among those tied with the best by expected time and certainty. With
    `certainty`, only configs that are faster than ATen for certain count. ATen if no expected gain is large enough."""
    needed = -math.log1p(required_gain(ask.policy, prediction.verified))
    scores = sorted([(one.score, c.spec.cost, c.text, c) for c, one in prediction.estimates.items()
                     if one.log <= needed and one.full and c != ATEN])  # fmt: skip
    most = math.inf
    tied: list[Config] = []
    for score, _, _, config in scores:
        if score > most:
            break
        if certainty is None or certainty.sure(config):
            most = min(most, score + math.log1p(TIE))
            tied.append(config)
    return min(tied, key=lambda c: (c.spec.cost, c.text), default=ATEN)


def _first(ask: Ask, one: Neighbour) -> Timings | None:
    return next((known for table in one.tables if (known := timings_of(ask, table, one.problem))), None)


def _timings(ask: Ask, around: Iterable[Neighbour]) -> list[tuple[float, Timings]]:
    """The nearest neighbours with a steady ATen row. Without one, there is nothing to compare their configs with."""
    found: list[tuple[float, Timings]] = []
    for one in around:
        if one.distance > REACH or len(found) == MOST:
            break
        here = _first(ask, one)
        if here is not None and here.steady_aten:
            found.append((one.distance, here))
    return found


def _serve(prediction: Prediction, config: Config, reason: str, certainty: Certainty | None = None) -> Step:
    hit = _hit(prediction, config, certainty)
    return Step("near", hit, reason, hit.evidence)


def _hit(prediction: Prediction, config: Config, certainty: Certainty | None) -> Hit:
    log, spread, _ = prediction.estimates[config]
    evidence = {
        **prediction.evidence,
        "expected_loss": prediction.loss(config),
        "regret": prediction.regret(config),
        "spread": spread,
        "verified": prediction.verified,
    }
    if certainty is not None and config != ATEN:
        evidence["least_gain"] = math.expm1(-certainty.most(config))
    ratio = math.exp(log)
    return Hit("near", config, ratio * prediction.aten_us, 1 / ratio, prediction.table, evidence)


def _reason(prediction: Prediction, config: Config) -> str:
    count, distance = len(prediction.evidence["neighbours"]), prediction.evidence["distance"]
    return (
        f"from {count} neighbour(s), the nearest {distance:.2f} doublings away: {config.name} is expected at"
        f" {math.exp(-prediction.estimates[config].log):.3f}x ATen and a loss of at most {prediction.loss(config):.1%}"
    )
