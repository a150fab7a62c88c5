"""Rung `epilogue`: serves a GEMM whose epilogue was not measured, from rows with another epilogue or with none.

The caller confirms the config where it can. Otherwise a kernel is served only if it is about as fast as ATen even with
no epilogue: its fused epilogue is then unlikely to lose to ATen plus a separate kernel. Transposed stores were never
measured on a CPU. An extern kernel that was measured without an epilogue needs no confirmation. Experts have the same
kernels with a light epilogue and without one, so that rows of either serve the other.
"""

from __future__ import annotations

from dataclasses import replace

from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.epilogue import LIGHT
from gemmdb.key.problem import Problem
from gemmdb.lookup import from_neighbours
from gemmdb.lookup.acceptance import confirming, exact, required_gain
from gemmdb.lookup.acceptance.extern import extern
from gemmdb.lookup.acceptance.near import elsewhere, left_to_sku, near
from gemmdb.lookup.acceptance.ranges import ranged
from gemmdb.lookup.ask import Ask, Step
from gemmdb.lookup.evidence import barred
from gemmdb.lookup.other_epilogue import charged, is_light_experts, same_but_constant, stand_ins
from gemmdb.lookup.prediction import Prediction, measured
from gemmdb.lookup.symbolic import Bucket, sizes
from gemmdb.rejected import Rejected

MOST_RETRIES = 3
"""Number of further configs to try if the best cannot run with the epilogue. Each takes as long as a lookup."""


def epilogue(ask: Ask) -> Step:
    """Rung `epilogue`: serve the config for a stand-in with another epilogue, or none, if it can be confirmed or
    assumed to be valid."""
    others = stand_ins(ask.problem, ask.device.kind, fixed=not ask.symbolic)
    if not others:
        return Step("epilogue", None, "the problem has no epilogue")
    if ask.policy.on_miss == "error" and not ask.symbolic:  # Only some sizes of a range are ever measured.
        return Step("epilogue", None, "strict mode serves what was measured with its own epilogue")
    if found := extern(ask):
        return found
    if rejected := left_to_sku(elsewhere(ask)):
        return Step("epilogue", None, rejected.reason)
    doubts: list[str] = []
    first: Hit | None = None
    for problem in others:
        step = _answer(ask, ask.at(problem))
        if step is None or step.hit is None:
            continue
        hit = charged(ask, problem, step.hit)
        first = first or hit
        rows = f"{problem.op} fusion={problem.fusion}"
        doubt = _rejection(ask, problem, hit)
        if doubt is None:
            evidence = {**hit.evidence, "measured_as": hit.rung, "measured_fusion": problem.fusion}
            served = replace(hit, rung="epilogue", evidence=evidence)
            return Step("epilogue", served, f"measured as {rows}: {step.reason}", evidence)
        doubts.append(f"{rows}: {doubt}")
    if first is None:
        return Step("epilogue", None, "no rows of the same GEMM with another epilogue, or with none, answer")
    reason = "; ".join(doubts)
    # Other rungs handle the light epilogue, and experts without one.
    if ask.policy.on_miss == "live" or ask.problem.epilogue == LIGHT or is_light_experts(ask.problem):
        return Step("epilogue", None, reason, first.evidence)
    told = "reason" if first.config == ATEN else "why"  # Another kernel was refused.
    aten = Hit("epilogue", ATEN, first.expected_us * first.speedup, 1.0, first.table, {**first.evidence, told: reason})
    return Step("epilogue", aten, f"ATen: {reason}", aten.evidence)


def _answer(ask: Ask, at: Ask) -> Step | None:
    """Return the result for another problem, from its own rows or its neighbors', without configs that cannot run with
    this epilogue."""
    # What neighbors with an epilogue are certain of may not hold without one.
    by_neighbours = ask.problem.epilogue is not None or not is_light_experts(ask.problem)
    step = _measured(at, by_neighbours)
    for _ in range(MOST_RETRIES):
        hit = None if step is None else step.hit
        if hit is None or hit.branches or hit.config == ATEN:
            break
        rejected = ask.rejection(hit.config)
        if rejected is None:
            break
        at = replace(at, left_out={**at.left_out, hit.config: rejected})
        step = _measured(at, by_neighbours)
    return step


def _measured(ask: Ask, by_neighbours: bool) -> Step | None:
    rungs = (ranged,) if ask.symbolic else (exact, near) if by_neighbours else (exact,)
    return next((step for rung in rungs if (step := rung(ask)).hit), None)


def _rejection(ask: Ask, problem: Problem, hit: Hit) -> Rejected | None:
    """Return why the hit for the stand-in `problem` is not served here."""
    if hit.branches:  # Nothing is fused into kernels that are chosen at run time.
        return None
    own = ask.problem.epilogue
    if hit.config == ATEN:
        if problem.op != ask.problem.op:
            return Rejected("ATen, but a bias takes ATen longer than a kernel")
        known = problem.fusion != "none" or (own is not None and own.kept) or same_but_constant(ask.problem, problem)
        return None if known else Rejected("ATen, but these rows do not tell what fusing saves")
    name = hit.config.name
    if hit.config in barred(ask):
        return Rejected(f"{name} was wrong or crashed with this epilogue")
    if rejected := ask.rejection(hit.config):
        return rejected
    if confirming(ask):
        return None
    if own is not None and own.order == "transposed" and ask.device.kind != "cuda":
        return Rejected(f"{name} may lose by its transposed store")
    needed = required_gain(ask.policy, False)
    if hit.speedup - 1 < needed:
        return Rejected(f"{name} gains {hit.speedup - 1:.1%}, and with another epilogue {needed:.1%} is needed")
    if problem.op == ask.problem.op and problem.epilogue == own:
        return None  # The rows differ only in the size of the stored result, or in where the weight comes from.
    if is_light_experts(ask.problem):
        return None
    return None if _holds_alone(ask, hit.config) else Rejected(f"{name} may be slower than ATen without an epilogue")


def _holds_alone(ask: Ask, config: Config) -> bool:
    """Return whether, in rows without an epilogue, `config` is slower than ATen by at most the policy's regret at every
    size of the query."""
    at, loss = ask.at(replace(ask.problem, fusion="none")), ask.policy.range_regret
    found = [Bucket(one, _predict(at.at(one))) for one in sizes(at)]
    return all(bucket.log_ratio(config, loss) is not None for bucket in found)


def _predict(ask: Ask) -> Prediction | None:
    found: Prediction | Rejected | None = measured(ask)
    if found is None and ask.policy.near:
        found = from_neighbours.predict(ask)
    return found if isinstance(found, Prediction) else None
