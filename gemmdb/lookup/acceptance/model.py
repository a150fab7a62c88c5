"""Rung `model`: serves a cost model candidate only if its expected gain over ATen far exceeds the model's error."""

from __future__ import annotations

import math

from gemmdb.cost.misaligned import is_misaligned
from gemmdb.kernels.config import ATEN
from gemmdb.lookup import cost_model
from gemmdb.lookup.acceptance import confirming
from gemmdb.lookup.ask import Ask, Candidate, Step
from gemmdb.lookup.bounds import margin
from gemmdb.rejected import Rejected


def model(ask: Ask) -> Step:
    """Rung `model`: serve the top candidate of a modelled table, else of the model's ranking. Its expected gain over
    ATen must be a certain gain and at least the policy's `model_gain`, or less if the caller benchmarks it first."""
    if not ask.policy.model:
        return Step("model", None, "switched off by the policy")
    tabled = cost_model.modelled(ask)
    best = tabled[0] if tabled else cost_model.ranked(ask)
    if isinstance(best, Rejected):
        return Step("model", None, best.reason)
    rejected = _rejection(ask, best) if best.config != ATEN else None
    if rejected is None:
        return best.step("model")
    reason = f"{best.reason}; {rejected}"
    if tabled and ask.policy.on_miss != "live":
        return best.held_back(_needed(ask, best)).step("model", reason)
    return Step("model", None, reason, best.evidence)


def _rejection(ask: Ask, found: Candidate) -> Rejected | None:
    """Return why a candidate is not served."""
    if ask.policy.on_miss == "live":
        return Rejected("live tuning decides among the candidates")
    own, needed = ask.problem.epilogue, _needed(ask, found)
    if own is not None and own.reads and not confirming(ask):
        return Rejected("ATen is served: the model was not validated on kernels whose epilogue reads other tensors")
    if math.isinf(needed):
        if is_misaligned(ask.problem):
            return Rejected("ATen is served: for such rows the times are a guess, which only a compile can confirm")
        op = ask.problem.op
        return Rejected(f"ATen is served: the model was not validated on held-out GEMMs of the op {op}")
    return Rejected(f"ATen is served: an expected gain of {needed:.0%} is needed") if found.gain < needed else None


def _needed(ask: Ask, found: Candidate) -> float:
    """Return the minimum expected gain for a config: that of unverified rows if the caller benchmarks it first, else
    the larger of the policy's `model_gain` and the margin for a certain gain."""
    if confirming(ask):
        return max(ask.policy.min_gain, ask.policy.unverified_gain)
    if is_misaligned(ask.problem):  # Its times are a rough guess.
        return math.inf
    return max(ask.policy.model_gain, math.expm1(margin(ask, found.config)))
