"""Rung `epilogue`: answers a product with an epilogue of a class that was not measured from rows of the same product
without its bias, with another epilogue, or with none.

Such rows tell which kernels multiply fastest. They do not tell what this epilogue costs inside a kernel. So the caller
confirms the answer, where it can. Without that, a kernel is served only if it multiplies about as fast as ATen also
with no epilogue at all: then a fused epilogue can be assumed not to lose to ATen and a kernel after it. What another
epilogue costs beyond the one that was measured is charged: exponentials, which default mode hides behind the memory's
time, and a transposed store. On a CPU nobody has measured such a store.
"""

from __future__ import annotations

from dataclasses import replace

from gemmdb.cost.roofline import extra_us
from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.epilogue import LIGHT
from gemmdb.key.problem import Problem
from gemmdb.lookup import dispatching
from gemmdb.lookup.ask import Ask, Step
from gemmdb.lookup.exact import barred, exact
from gemmdb.lookup.near import near, predict_near
from gemmdb.lookup.policy_filter import objection, required_gain
from gemmdb.lookup.prediction import Prediction, measured
from gemmdb.lookup.ranges import buckets, ranged
from gemmdb.lookup.sku import left_to_sku

BIAS = 0.14
"""The share of a kernel's time that a bias is charged on a GPU, and that of a wider result. Of 169 configs that beat
ATen without a bias on an H200, one in twenty lost more of that by a bias, and half of them 1.6% (`python -m
benchmarks.h200 biases`)."""

OTHERS = 3
"""How many more configs are looked at where the best cannot run with the epilogue: each takes as long as a lookup."""


def stand_ins(problem: Problem, kind: str) -> tuple[Problem, ...]:
    """The problems whose rows tell about the kernel of a problem with an epilogue, the most telling first: on a GPU
    without the bias, with the light epilogue, then without any. If the product is stored anyway, fusing saves little,
    and the light epilogue does not tell. Empty for a problem without an epilogue. `kind`: that of the device.

    On a GPU a scaled integer product that leaves fp32 to what follows has the rows of one that stores bf16: where
    Inductor fuses what follows, that is stored."""
    own = problem.epilogue
    if own is None:
        wide = problem.spec.integer and problem.fusion == "scale" and problem.out == "fp32"
        return (replace(problem, out="bf16"),) if wide and kind == "cuda" else ()
    found = [_unbiased(problem)] if kind == "cuda" and _biased(problem) else []
    if own != LIGHT and not own.kept:
        found.append(replace(problem, fusion=LIGHT.text))
    return (*found, _alone(problem))


def epilogue(ask: Ask) -> Step:
    """The answer for a problem with another epilogue, or none, if it can be confirmed or assumed to hold."""
    others = stand_ins(ask.problem, ask.device.kind)
    if not others:
        return Step("epilogue", None, "the problem has no epilogue")
    if ask.policy.on_miss == "error" and not ask.symbolic:  # Of a range, only some sizes are ever measured.
        return Step("epilogue", None, "strict mode serves what was measured with its own epilogue")
    if left := left_to_sku(ask):
        return Step("epilogue", None, left)
    doubts: list[str] = []
    first: Hit | None = None
    for problem in others:
        step = _answer(ask, ask.at(problem))
        if step is None or step.hit is None:
            continue
        hit = _charged(ask, problem, step.hit)
        first = first or hit
        doubt = _doubt(ask, problem, hit)
        if doubt is None:
            return _serve(problem, hit, f"measured as {_told(problem)}: {step.reason}")
        doubts.append(f"{_told(problem)}: {doubt}")
    if first is None:
        return Step("epilogue", None, "no rows of the same product with another epilogue, or with none, answer")
    reason = "; ".join(doubts)
    if ask.policy.on_miss == "live" or ask.problem.epilogue == LIGHT:  # Other rungs know of the light one itself.
        return Step("epilogue", None, reason, first.evidence)
    aten = Hit("epilogue", ATEN, first.expected_us * first.speedup, 1.0, first.table, {**first.evidence, "why": reason})
    return Step("epilogue", aten, f"ATen: {reason}", aten.evidence)


def _alone(problem: Problem) -> Problem:
    return replace(problem, fusion="none")


def _told(problem: Problem) -> str:
    return f"{problem.op} fusion={problem.fusion}"


def _biased(problem: Problem) -> bool:
    """Whether a vector is added to the product."""
    return bool(problem.spec.unbiased and problem.scalars == "unit" and problem.bias and problem.bias.kind == "1d")


def _unbiased(problem: Problem) -> Problem:
    return replace(problem, op=problem.spec.unbiased, bias=None)


def _answer(ask: Ask, at: Ask) -> Step | None:
    """What measured rows of another problem say, its own or those of neighbours, without configs that cannot run with
    this epilogue."""
    step = _measured(at)
    for _ in range(OTHERS):
        hit = None if step is None else step.hit
        if hit is None or hit.branches or hit.config == ATEN or not (why := objection(ask, hit.config)):
            break
        at = replace(at, left_out={**at.left_out, hit.config: why})
        step = _measured(at)
    return step


def _measured(ask: Ask) -> Step | None:
    steps = (rung(ask) for rung in ((ranged,) if ask.symbolic else (exact, near)))
    return next((step for step in steps if step.hit), None)


def _charged(ask: Ask, problem: Problem, hit: Hit) -> Hit:
    """The hit with the time of what the other `problem` did not have."""
    if problem.fusion == "none" or hit.branches or hit.config == ATEN:
        return hit  # Rows without an epilogue lack the kernel after ATen as well, which takes at least as long.
    same = problem.epilogue == ask.problem.epilogue
    us = BIAS * hit.expected_us if same else extra_us(ask.problem, ask.device, hit.expected_us)
    if us == 0:
        return hit
    expected = hit.expected_us + us
    evidence = {**hit.evidence, "charged_us": us}
    return replace(hit, expected_us=expected, speedup=hit.speedup * hit.expected_us / expected, evidence=evidence)


def _doubt(ask: Ask, problem: Problem, hit: Hit) -> str | None:
    """Why the answer for the other `problem` is not served here; None if it is."""
    if hit.branches:  # Nothing is fused into kernels that are chosen at run time.
        return None
    own = ask.problem.epilogue
    if hit.config == ATEN:
        if problem.op != ask.problem.op:
            return "ATen, but a bias takes ATen longer than a kernel"
        known = problem.fusion != "none" or (own is not None and own.kept)
        return None if known else "ATen, but these rows do not tell what fusing saves"
    if hit.config in barred(ask):
        return f"{hit.config.name} was wrong or crashed with this epilogue"
    if why := objection(ask, hit.config):
        return why
    if ask.confirming:
        return None
    if own is not None and own.order == "transposed" and ask.device.kind != "cuda":
        return f"{hit.config.name} may lose by its transposed store"
    needed = required_gain(ask.policy, False)
    if hit.speedup - 1 < needed:
        return f"{hit.config.name} gains {hit.speedup - 1:.1%}, and with another epilogue {needed:.1%} is needed"
    if problem.op == ask.problem.op and problem.epilogue == own:
        return None  # The rows differ in the size of what is stored alone.
    alone = _holds_alone(ask, hit.config)
    return None if alone else f"{hit.config.name} may be slower than ATen without an epilogue"


def _holds_alone(ask: Ask, config: Config) -> bool:
    """Whether rows without an epilogue say that `config` is not slower than ATen by more than the policy's regret, at
    every size of the query."""
    at = ask.at(_alone(ask.problem))
    loss = ask.policy.range_regret
    found = [dispatching.Bucket(one.m, _prediction(at.at(one))) for one in buckets(at)]
    return all(bucket.log_ratio(config, loss) is not None for bucket in found)


def _prediction(ask: Ask) -> Prediction | None:
    found: Prediction | str | None = measured(ask)
    if found is None and ask.policy.near:
        found = predict_near(ask)
    return found if isinstance(found, Prediction) else None


def _serve(problem: Problem, hit: Hit, reason: str) -> Step:
    evidence = {**hit.evidence, "measured_as": hit.rung, "measured_fusion": problem.fusion}
    return Step("epilogue", replace(hit, rung="epilogue", evidence=evidence), reason, evidence)
