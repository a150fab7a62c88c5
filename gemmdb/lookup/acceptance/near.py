"""Rungs `near` and `sku`: serve predictions from neighbours and from other SKUs.

`near` declines if the neighbours are too far away, or if the prediction is too uncertain for the policy and not
certainly faster than ATen. `sku` declines if the bounds of its scaling disagree about the best config.
"""

from __future__ import annotations

import math

from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.lookup import from_neighbours, other_sku, tree_correction
from gemmdb.lookup.acceptance import confirming, exact, required_gain
from gemmdb.lookup.acceptance.extern import left_to_extern
from gemmdb.lookup.ask import Ask, Candidate, Step
from gemmdb.lookup.bounds import Certainty
from gemmdb.lookup.neighbours import unfit
from gemmdb.lookup.prediction import Prediction, measured
from gemmdb.rejected import Rejected
from gemmdb.table.verdict import TIE

SWITCHED_OFF = "switched off by the policy"


def near_unless_measured(ask: Ask) -> Step:
    """Rung `near`, except where an extern kernel of rung `epilogue` saves more, and for problems that another SKU
    measured: these go to `sku`. Neighbours on an H100 gave a speedup of 1.865x over ATen, where rows of the same
    problems on an H200 gave 1.896x (77 problems, `benchmarks.offtable sku`). If ATen won there, the fastest kernel may
    have been missing from the candidates, so a kernel that was not tried there is still served."""
    other = elsewhere(ask)
    if rejected := left_to_sku(other):
        return Step("near", None, rejected.reason)
    step = left_to_extern(ask, near(ask))
    if other is None or other.hit is None or step.hit is None or not _lost(ask, step.hit.config):
        return step
    return Step("near", None, f"{step.reason}; but another SKU measured it, and ATen won", step.evidence)


def near(ask: Ask) -> Step:
    """Rung `near`: serve the best config timed at the neighbours, if the policy allows its expected loss; else miss."""
    if not ask.policy.near:
        return Step("near", None, SWITCHED_OFF)
    if ask.problem.spec.batched and confirming(ask):
        return _of_nearest_batch(ask)
    prediction = predict(ask)
    if isinstance(prediction, Rejected):
        return Step("near", None, prediction.reason)
    return _confirmed(ask, prediction) if confirming(ask) else _certain(ask, prediction)


def predict(ask: Ask) -> Prediction | Rejected:
    """Return the prediction from neighbours, corrected by the trees if the policy uses the cost model."""
    return tree_correction.predict_corrected(ask) if ask.policy.model else from_neighbours.predict(ask)


def choose(ask: Ask, prediction: Prediction, certainty: Certainty | None = None) -> Config:
    """Return the config to serve: the cheapest to compile among those tied with the best by expected time and
    uncertainty. With `certainty`, only configs that are certainly faster than ATen qualify. ATen if no expected gain is
    large enough."""
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


def _certain(ask: Ask, prediction: Prediction) -> Step:
    """Serve the best config that is certainly faster than ATen, else ATen; miss if it may lose too much."""
    certainty = Certainty(ask, prediction)
    best = choose(ask, prediction, certainty)
    found = _candidate(prediction, best, certainty)
    sure = best != ATEN and ask.policy.on_miss != "live"
    if sure or prediction.loss(best) <= ask.policy.near_loss:
        return found.step("near")
    return Step("near", None, f"{found.reason}, over the policy's {ask.policy.near_loss:.1%}", prediction.evidence)


def _confirmed(ask: Ask, prediction: Prediction) -> Step:
    """Serve the best config, which the caller benchmarks first, if the policy allows its expected loss; else miss."""
    best = choose(ask, prediction)
    for config in dict.fromkeys((best, ATEN)):
        if prediction.loss(config) <= ask.policy.near_loss:
            return _candidate(prediction, config).step("near")
    found = _candidate(prediction, best)
    reason = f"{found.reason}, over the policy's {ask.policy.near_loss:.1%}"
    if best != ATEN and ask.policy.on_miss != "live":
        return found.step("near", f"{reason}, but expected to be faster than ATen")
    return Step("near", None, reason, prediction.evidence)


def _candidate(prediction: Prediction, config: Config, certainty: Certainty | None = None) -> Candidate:
    log, spread, _ = prediction.estimates[config]
    loss, ratio = prediction.loss(config), math.exp(log)
    evidence = {
        **prediction.evidence,
        "expected_loss": loss,
        "regret": prediction.regret(config),
        "spread": spread,
        "verified": prediction.verified,
    }
    if certainty is not None and config != ATEN:
        evidence["least_gain"] = math.expm1(-certainty.most(config))
    number = len(evidence["neighbours"])
    reason = (
        f"from {number} neighbour{'s' * (number != 1)}, the nearest {evidence['distance']:.2f} doublings away:"
        f" {config.name} is expected at {math.exp(-log):.3f}x ATen and a loss of at most {loss:.1%}"
    )
    us = prediction.aten_us
    return Candidate(config, ratio * us, 1 / ratio, us, prediction.table, evidence, reason)


def _of_nearest_batch(ask: Ask) -> Step:
    """Serve the winner of the nearest batched GEMM, which the caller benchmarks first. On held-out H200 rows, this
    finds more gains than a prediction, which is uncertain where few configs were timed."""
    first = from_neighbours.nearest(ask)
    hit = exact(ask.at(first.problem)).hit if first is not None else None
    if first is None or hit is None:
        return Step("near", None, "no similar batched GEMM was measured near this one")
    nearest, distance = first.problem, first.distance
    served = ask.rejection(hit.config) is None and hit.config not in unfit(ask)
    config = hit.config if served else ATEN
    if config == ATEN and ask.policy.on_miss == "live":
        return Step("near", None, f"ATen won {nearest.head}, {distance:.2f} doublings away")
    speedup = hit.speedup if config != ATEN else 1.0
    aten_us = hit.expected_us * hit.speedup * ask.problem.flops / nearest.flops
    evidence = {"neighbours": [nearest.text], "distance": distance}
    reason = f"as for {nearest.head}, {distance:.2f} doublings away"
    return Step("near", Hit("near", config, aten_us / speedup, speedup, hit.table, evidence), reason, evidence)


def sku(ask: Ask) -> Step:
    """Rung `sku`: serve the best config for the same problem, or for its neighbours, on the most similar SKU of the
    arch. If ATen won there, decline if live tuning can decide and neighbours on this SKU predict a gain."""
    step = _sku(ask, _predict_there if ask.policy.near else measured)
    if step.hit is None or step.hit.config != ATEN or ask.policy.on_miss != "live" or not ask.policy.near:
        return step
    here = predict(ask)
    best = ATEN if isinstance(here, Rejected) else choose(ask, here)
    if best == ATEN:
        return step
    reason = f"{step.reason}, but neighbours on {ask.device.sku} expect a gain of {best.name}"
    return Step("sku", None, reason, step.evidence)


def left_to_sku(other: Step | None) -> Rejected | None:
    """Return why a rung with weaker evidence leaves a problem to `sku`, which serves a kernel that won this exact
    problem on another SKU. `other`: the result of `elsewhere`."""
    if other is None or other.hit is None or other.hit.config == ATEN:
        return None
    return Rejected(f"left to rung sku: {other.evidence['sku']} measured this exact problem")


def elsewhere(ask: Ask) -> Step | None:
    """Return the result of `sku` from rows of this exact problem only; None where the policy or symbolic sizes rule
    that out."""
    return _sku(ask, measured) if ask.policy.near and ask.policy.sku and not ask.symbolic else None


def _lost(ask: Ask, config: Config) -> bool:
    """Return whether the most similar SKU that measured this exact problem timed the kernel, and it did not gain."""
    if config == ATEN:
        return False
    found = other_sku.predictions(ask, measured)
    first = None if isinstance(found, Rejected) else next(found, None)
    if first is None or config not in first.prediction.estimates:
        return False
    return first.prediction.gains.get(config, 0.0) < ask.policy.min_gain


def _predict_there(ask: Ask) -> Prediction | Rejected:
    """Return the prediction for another SKU, from rows of the problem itself or of its neighbours."""
    return measured(ask) or from_neighbours.predict(ask)


def _sku(ask: Ask, predict: other_sku.Predict) -> Step:
    """Serve the first of the other SKUs with an acceptable prediction from `predict`."""
    found = other_sku.predictions(ask, predict) if ask.policy.sku else Rejected(SWITCHED_OFF)
    if isinstance(found, Rejected):
        return Step("sku", None, found.reason)
    reason = f"nothing was measured near this problem on another SKU of {ask.device.arch}"
    for scaled in found:
        step = _accept_scaled(ask, scaled)
        if step.hit:
            return step
        reason = step.reason
    return Step("sku", None, reason)


def _accept_scaled(ask: Ask, scaled: other_sku.Scaled) -> Step:
    if len(scaled.prediction.estimates) < 2:
        return Step("sku", None, f"no kernel that was timed on {scaled.device.sku} may be served here")
    best = scaled.best()
    loss, said = scaled.prediction.loss(best.config), best.reason
    if scaled.regret(best.config) > TIE:
        return Step("sku", None, f"{said}: the bounds disagree about the best", best.evidence)
    if loss > ask.policy.near_loss:
        return Step("sku", None, f"{said}, but the answer there may lose {loss:.1%}", best.evidence)
    # Rows of another SKU are as uncertain as those of another toolchain or, without a benchmark, as a model's.
    least = required_gain(ask.policy, False)
    needed = least if confirming(ask) else max(least, ask.policy.model_gain)
    if best.config == ATEN or best.gain >= needed:
        return best.step("sku")
    unless = "" if confirming(ask) else "unless a compile times it first, "
    said = f"{said}; {unless}a gain of {needed:.1%} is needed"
    if best.gain >= least and ask.policy.on_miss == "live":
        return Step("sku", None, said, best.evidence)
    return best.held_back(needed).step("sku", f"{said}: ATen is served")
