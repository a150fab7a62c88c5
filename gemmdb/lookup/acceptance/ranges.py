"""Rung `range`: one kernel serves a whole range of sizes, chosen by its worst regret over the range."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from gemmdb.cost.roofline import work_us
from gemmdb.hit import Hit
from gemmdb.kernels import default_mode
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import symbolic
from gemmdb.lookup.acceptance import exact, required_gain
from gemmdb.lookup.acceptance.near import SWITCHED_OFF, near, predict
from gemmdb.lookup.ask import Ask, Candidate, Step
from gemmdb.lookup.bounds import certain
from gemmdb.lookup.prediction import Prediction, measured, remembered
from gemmdb.lookup.symbolic import MOST_BUCKETS, Bucket, Interval
from gemmdb.outcome import DISTURBED, FASTER_AT, GOOD_UP_TO, NO_KERNEL
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy

BOUND_LINE = "torch._dynamo.mark_dynamic(x, 0, min=2, max=...)"
"""What gives the first size of a tensor an upper bound."""
MAX_TIMED_S = 10.0
"""A size of a range is not measured if its timed calls are expected to take longer than this, in seconds: all work on
it, from compiling to confirming, takes several times as long."""
QUICK_CALLS = 120
"""Number of timed calls of a size in a quick build on a CPU: 30 of ATen and of each of three kernels."""


def ranged(ask: Ask) -> Step:
    """Rung `range`: serve the whole range of the symbolic sizes, in four cases.

    1. One config other than ATen, if its regret in every bucket is within `Policy.range_regret` and it gains enough at
       the hint.
    2. Else, if only M is symbolic, a few configs, possibly including ATen, each for one interval of the range.
    3. Else ATen, if the hint has a hit; the evidence gives the reason.
    4. A miss, if the hint has no hit.

    The problem's classes, including alignment, are assumed to hold over the range. Raises InputError for an empty
    range, or a range for a size other than m, n and k.
    """
    return remembered(ask, f"range {symbolic.ranges_of(ask)}", lambda ask: _with_bound(ask, _ranged(ask)))


def _ranged(ask: Ask) -> Step:
    problems = symbolic.sizes(ask)
    hint = exact(ask)
    hint = hint if hint.hit else near(ask)
    if hint.hit is None:
        return Step("range", None, f"the hint has no answer: {hint.reason}")
    if len(problems) > MOST_BUCKETS:
        return _aten(ask, hint.hit, f"more than {MOST_BUCKETS} buckets are not compared")
    known = list(takewhile(lambda one: one.prediction is not None, _buckets(ask, problems)))
    if len(known) < len(problems):
        missing = problems[len(known)]
        reason = f"no measured or near answer at m={missing.m} n={missing.n} k={missing.k}"
        if _is_ruled_out(ask, problems):
            reason = NO_KERNEL
        return _divided(ask, hint.hit, _aten(ask, hint.hit, _or_busy(ask, hint.hit, reason), known))
    best = _best(ask, known)
    if isinstance(best, Rejected):
        reason = best.reason if divisible(ask) else f"{NO_KERNEL}: {best.reason}"
        return _divided(ask, hint.hit, _aten(ask, hint.hit, _or_busy(ask, hint.hit, reason), known))
    return Step("range", best.hit(_rung(known)), best.reason, best.evidence)


def _or_busy(ask: Ask, hint: Hit, reason: str) -> str:
    """Return the reason why ATen serves a range, or that some of its sizes were timed only on a busy machine: another
    build times them again, but not those of a packed table."""
    own = {str(table.path) for table in ask.tables if not table.packed}
    if not own or hint.rung != "exact":
        return reason
    known = ((problem, measured(ask.at(problem))) for problem in symbolic.sizes(ask))
    busy = [problem for problem, one in known if one is not None and one.disturbed and one.table in own]
    if not busy:
        return reason
    sizes = ", ".join(" ".join(f"{name}={getattr(one, name)}" for name in ask.symbolic) for one in busy)
    return f"{DISTURBED}, at {sizes}"


def _best(ask: Ask, known: Sequence[Bucket]) -> Candidate | Rejected:
    """Return the config that serves sizes of which all have a prediction, among them the hint."""
    at_hint = next(one.prediction for one in known if one.problem == ask.problem)
    verified = False if symbolic.unverified(known) or at_hint is None else at_hint.verified
    needed, policy = required_gain(ask.policy, verified), ask.policy
    return symbolic.best_of_all(ask, known, needed, policy.range_regret, policy.near_loss)


def _with_bound(ask: Ask, step: Step) -> Step:
    """Add to the evidence of ATen where kernels are faster, and up to which M a single one is good."""
    hit = step.hit
    if hit is None or not str(hit.evidence.get("reason", "")).startswith(NO_KERNEL):
        return step
    known = [one for one in _buckets(ask, symbolic.sizes(ask)) if one.prediction is not None]
    faster = sorted({one.problem.m for one in known if one.prediction and _gains(ask, one.prediction)})
    found = {FASTER_AT: faster, GOOD_UP_TO: _good_up_to(ask, known) if faster else None}
    evidence = {**hit.evidence, **{name: fact for name, fact in found.items() if fact}}
    return replace(step, hit=replace(hit, evidence=evidence), evidence=evidence)


def _gains(ask: Ask, found: Prediction) -> bool:
    """Whether a kernel gains enough over ATen at a size."""
    needed = required_gain(ask.policy, found.verified)
    return any(config != ATEN and gained >= needed for config, gained in found.gains.items())


def _good_up_to(ask: Ask, known: Sequence[Bucket]) -> int | None:
    """Return the largest M below the upper end of a range up to which a kernel serves the known sizes; None without
    one, or if not only M is symbolic."""
    if ask.symbolic != ("m",):
        return None
    least = max(ask.query.ranges["m"][0], 1)
    for size in sorted((one.problem.m for one in known), reverse=True)[1:]:
        inside = [one for one in known if one.problem.m <= size]
        at = ask.at(max((one.problem for one in inside if one.problem.m <= ask.problem.m), key=lambda one: one.m))
        if size > least and not isinstance(_best(at, inside), Rejected):
            return size
    return None


def _is_ruled_out(ask: Ask, problems: Sequence[Problem]) -> bool:
    """Whether the sizes that were measured show that no kernel can serve the range, whatever the others' times are: a
    constant weight is packed for one kernel."""
    return ask.problem.constant and not symbolic.may_fit(_buckets(ask, problems), ask.policy.range_regret)


def _buckets(ask: Ask, problems: Sequence[Problem]) -> Iterator[Bucket]:
    return symbolic.predictions(ask, problems, _predict)


def _predict(ask: Ask) -> Prediction | Rejected:
    """Return the prediction for one size. At unmeasured sizes, keep only configs that are certainly faster than
    ATen."""
    prediction = measured(ask)
    if prediction is not None:
        return prediction
    if default_mode.symbolic_form(ask.problem) is not None:
        return Rejected("ATen was not measured with symbolic rows")
    guess = predict(ask) if ask.policy.near else Rejected(SWITCHED_OFF)
    return guess if isinstance(guess, Rejected) else certain(ask, guess)


def unmeasured(ask: Ask) -> list[Problem]:
    """Return the problems that a build has to measure before the range can be served by anything but ATen: the sizes of
    the range, or of its split, that no table covers. Empty if another config is already served, or if the measurements
    rule one out. Raises the same errors as `ranged`."""
    problems = symbolic.sizes(ask)
    found = ranged(ask).hit
    if len(problems) > MOST_BUCKETS or (found is not None and found.config != ATEN and not found.branches):
        return []
    known = list(_buckets(ask, problems))
    missing = [one.problem for one in known if one.prediction is None]
    if missing and symbolic.may_fit(known, ask.policy.range_regret):
        return missing
    if (problem := divisible(ask)) is None:
        return []
    at = ask.at(problem)
    return [one.problem for one in _buckets(at, symbolic.sizes(at)) if one.prediction is None]


def too_long(ask: Ask, missing: Iterable[Problem], calls: Callable[[Problem], int]) -> Rejected | None:
    """Return why a range is not measured: a size of `missing` takes too long, and one kernel has to serve all sizes.
    None if it is measured. `calls`: returns the number of timed calls of a size."""
    slow = [one for one in missing if not fits(one, ask.device, calls(one))]
    if not slow or divisible(ask) is not None:
        return None
    sizes = " ".join(f"{name}={getattr(slow[-1], name)}" for name in ask.symbolic)
    what = f"{sizes}, which takes more than {MAX_TIMED_S:.0f} s to measure"
    if any(high is None for _, high in ask.query.ranges.values()):
        return Rejected(f"its range has no upper bound and reaches {what}; bound it: {BOUND_LINE}")
    return Rejected(f"its range reaches {what}; make it smaller: {BOUND_LINE}")


def fits(problem: Problem, device: Device, calls: int) -> bool:
    """Whether the timed calls of a size are expected to take no longer than MAX_TIMED_S."""
    return work_us(problem, device) * 1e-6 * calls <= MAX_TIMED_S


def unbuilt(query: Query) -> Rejected | None:
    """Return why a quick build on a CPU does not measure a range; None if it does, and for a GPU."""
    ask = Ask(query, (), Policy(), None)
    return too_long(ask, unmeasured(ask), lambda _: QUICK_CALLS) if query.device.kind == "cpu" else None


def divisible(ask: Ask) -> Problem | None:
    """Return the problem whose rows determine the split of a range of M among several kernels; None if it cannot be
    split."""
    if ask.symbolic != ("m",) or ask.policy.batch_invariant:
        return None
    return symbolic.unfused(ask.problem)


def _divided(ask: Ask, hint: Hit, otherwise: Step) -> Step:
    """Split the range of M among a few configs; return `otherwise` if that is impossible or gains nothing."""
    problem = divisible(ask)
    if problem is None:
        return otherwise
    at = ask.at(problem)
    buckets = list(_buckets(at, symbolic.sizes(at)))
    needed = required_gain(ask.policy, False if symbolic.unverified(buckets) else None)
    configs = {ATEN}.union(*(one.prediction.gains for one in buckets if one.prediction is not None))
    limits = symbolic.Limits(needed, ask.policy.range_regret, ask.policy.range_regret)
    intervals = symbolic.divide(buckets, configs, limits, symbolic.MOST_KERNELS)
    if [interval.config for interval in intervals] == [ATEN]:
        return otherwise
    hit = _hit(ask, hint, buckets, intervals)
    told = ", ".join(f"{interval.config.name} up to m={buckets[interval.last].problem.m}" for interval in intervals)
    return Step("range", hit, f"{otherwise.reason}; divided: {told}", hit.evidence)


def _hit(ask: Ask, hint: Hit, buckets: Sequence[Bucket], intervals: Sequence[Interval]) -> Hit:
    here = next(one.config for one in intervals if buckets[one.last].problem.m >= ask.problem.m)
    at_hint = next(one.prediction for one in buckets if one.problem.m == ask.problem.m)
    ratio = 1.0 if at_hint is None else at_hint.ratios.get(here, 1.0)
    aten_us = hint.expected_us * hint.speedup if at_hint is None else at_hint.aten_us
    evidence: dict[str, Any] = {
        "range": symbolic.ranges_of(ask),
        "kernels": symbolic.kernels(buckets, intervals),
        "sizes": [bucket.facts(one.config) for one in intervals for bucket in buckets[one.first : one.last + 1]],
        "spread": 0.0 if at_hint is None else at_hint.off(here),
        "verified": False if symbolic.unverified(buckets) else hint.evidence.get("verified"),
    }
    branches = symbolic.branches(buckets, intervals)
    return Hit(_rung(buckets), here, ratio * aten_us, 1 / ratio, hint.table, evidence, branches)


def _rung(buckets: Sequence[Bucket]) -> str:
    """Return `exact` if all sizes with a prediction were measured, else `near`."""
    rungs = {one.prediction.rung for one in buckets if one.prediction is not None}
    return "exact" if rungs <= {"exact"} else "near"


def _aten(ask: Ask, hint: Hit, reason: str, known: Sequence[Bucket] = ()) -> Step:
    """Serve ATen for the range. The hint's hit gives ATen's time, even if it serves another config, unless it is among
    the `known` sizes."""
    evidence: dict[str, Any] = {"range": symbolic.ranges_of(ask), "reason": reason, "hint": dict(hint.evidence)}
    if known:
        evidence["sizes"] = [one.facts(ATEN) for one in known]
    at_hint = next((one.prediction for one in known if one.problem == ask.problem), None)
    aten_us = hint.expected_us * hint.speedup if at_hint is None else at_hint.aten_us
    hit = Hit(hint.rung, ATEN, aten_us, 1.0, hint.table, evidence)
    return Step("range", hit, f"ATen for the range: {reason}", evidence)
