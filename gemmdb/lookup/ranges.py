"""Symbolic sizes: one kernel serves a whole range, so its worst regret over the range decides."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product, takewhile
from typing import Any

from gemmdb.errors import InputError
from gemmdb.hit import LARGEST, Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.lookup import dispatching
from gemmdb.lookup.ask import Ask, Step
from gemmdb.lookup.certainty import certain
from gemmdb.lookup.exact import exact
from gemmdb.lookup.near import near, predict_corrected
from gemmdb.lookup.policy_filter import required_gain
from gemmdb.lookup.prediction import Prediction, measured
from gemmdb.lookup.remembering import remembered

MOST_BUCKETS = 64
"""The most buckets that are compared. Several symbolic sizes may give more; ATen serves those."""


@dataclass(frozen=True, slots=True)
class _Bucket:
    problem: Problem
    prediction: Prediction


def ranged(ask: Ask) -> Step:
    """The answer for the whole range of the symbolic sizes, in four cases.

    1. One config other than ATen, if its regret in every bucket is within `Policy.range_regret` and it gains enough at
       the hint.
    2. Else, if only M is symbolic, a few configs, ATen possibly among them, each for one interval of the range.
    3. Else ATen, if the hint has an answer; the evidence says why.
    4. None, if the hint has no answer.

    The classes of the problem, alignment among them, are assumed to hold over the range. Raises InputError for an empty
    range, or one of a size other than m, n and k.
    """
    return remembered(ask, f"range {_ranges(ask)}", _ranged)


def _ranged(ask: Ask) -> Step:
    problems = buckets(ask)
    hint = exact(ask)
    hint = hint if hint.hit else near(ask)
    if hint.hit is None:
        return Step("range", None, f"the hint has no answer: {hint.reason}")
    if len(problems) > MOST_BUCKETS:
        return _aten(ask, hint.hit, f"more than {MOST_BUCKETS} buckets are not compared")
    found = list(takewhile(lambda one: one is not None, _answers(ask, problems)))
    answered = [_Bucket(problem, known) for problem, known in zip(problems, found, strict=False) if known]
    if len(answered) == len(problems):
        step = _one_config(ask, hint.hit, answered)
    else:
        missing = problems[len(answered)]
        step = _aten(ask, hint.hit, f"no measured or near answer at m={missing.m} n={missing.n} k={missing.k}")
    return step if step.hit and step.hit.config != ATEN else _divided(ask, hint.hit, step)


def buckets(ask: Ask) -> list[Problem]:
    """The problem at the end points, at the powers of two of each range, and at the hint; at most MOST_BUCKETS + 1.

    An open range ends at LARGEST or at the hint. A size of 0 is left out, since there is nothing to compute.
    """
    sizes = {name: {int(getattr(ask.problem, name))} for name in ("m", "n", "k")}
    for name, (low, high) in ask.query.ranges.items():
        if name not in sizes or low < 0 or (high is not None and high < low):
            raise InputError(f"no such range: {name} from {low} to {high}")
        top = max(low, *sizes[name], LARGEST if high is None else min(high, LARGEST))
        powers = {2**exponent for exponent in range(top.bit_length())}
        sizes[name] |= {size for size in powers | {low, top} if size >= max(low, 1)}
    grid = product(*(sorted(values) for values in sizes.values()))
    return [ask.problem.resized(m, n, k) for m, n, k in islice(grid, MOST_BUCKETS + 1)]


def unmeasured(ask: Ask) -> list[Problem]:
    """The problems that a build has to measure before the range can have another answer than ATen: those of the range,
    or of its division, that no table answers. Empty if there is an answer other than ATen, or if what is measured rules
    one out. Raises what `ranged` raises."""
    problems = buckets(ask)
    found = ranged(ask).hit
    if len(problems) > MOST_BUCKETS or (found is not None and found.config != ATEN and not found.branches):
        return []
    known = list(_answers(ask, problems))
    missing = [problem for problem, one in zip(problems, known, strict=True) if one is None]
    if missing and _may_fit(ask, [one for one in known if one is not None]):
        return missing
    if (problem := divisible(ask)) is None:
        return []
    at = ask.at(problem)
    parts = buckets(at)
    return [part for part, one in zip(parts, _answers(at, parts), strict=True) if one is None]


def divisible(ask: Ask) -> Problem | None:
    """The problem whose rows decide how a range of M is divided among several kernels; None if it cannot be divided."""
    if ask.symbolic != ("m",) or ask.policy.batch_invariant:
        return None
    return dispatching.unfused(ask.problem)


def _may_fit(ask: Ask, known: list[Prediction]) -> bool:
    """Whether some config other than ATen is good enough in all buckets that are answered."""
    if not known:
        return True
    configs = set(known[0].ratios).intersection(*(one.ratios for one in known)) - {ATEN}
    return any(all(one.regret(config) <= ask.policy.range_regret for one in known) for config in configs)


def _answers(ask: Ask, problems: list[Problem]) -> Iterator[Prediction | None]:
    """The prediction of each bucket; None if there is none. Between measured problems, of the configs that are faster
    than ATen for certain."""
    for problem in problems:
        found = remembered(ask.at(problem), "size of a range", _answer)
        yield found if isinstance(found, Prediction) else None


def _answer(at: Ask) -> Prediction | str:
    """The same for one size, or the reason why there is none."""
    prediction = measured(at)
    if prediction is not None:
        return prediction
    guess = predict_corrected(at) if at.policy.near else "switched off by the policy"
    return guess if isinstance(guess, str) else certain(at, guess)


def _divided(ask: Ask, hint: Hit, otherwise: Step) -> Step:
    """The range of M divided among a few configs; `otherwise` if that is impossible or gains nothing."""
    problem = divisible(ask)
    if problem is None:
        return otherwise
    at = ask.at(problem)
    problems = buckets(at)
    found = [
        dispatching.Bucket(one.m, prediction) for one, prediction in zip(problems, _answers(at, problems), strict=True)
    ]
    intervals = dispatching.divide(at, found)
    if [interval.config for interval in intervals] == [ATEN]:
        return otherwise
    hit = dispatching.hit(ask, hint, found, intervals)
    told = ", ".join(f"{interval.config.name} up to m={found[interval.last].m}" for interval in intervals)
    return Step("range", hit, f"{otherwise.reason}; divided: {told}", hit.evidence)


def _one_config(ask: Ask, hint: Hit, answered: list[_Bucket]) -> Step:
    """Among the configs whose regret is within the policy in every bucket, the one with the smallest total time
    relative to ATen."""
    at_hint = next(one.prediction for one in answered if one.problem == ask.problem)
    verified = False if any(one.prediction.verified is False for one in answered) else at_hint.verified
    needed = required_gain(ask.policy, verified)
    enough = [c for c, gained in at_hint.gains.items() if c != ATEN and gained >= needed]
    worst = {config: _worst_regret(ask, config, answered) for config in enough}
    fits = [config for config in enough if worst[config] <= ask.policy.range_regret]
    if not fits:
        least = min(worst.values(), default=math.inf)
        reason = (
            f"the least worst regret of any config is {least:.1%}" if worst else "no config gains enough at the hint"
        )
        return _aten(ask, hint, reason)
    best = min(fits, key=lambda c: (sum(math.log(one.prediction.ratios[c]) for one in answered), c.text))
    rungs = {one.prediction.rung for one in answered}
    evidence = {
        "range": _ranges(ask),
        "worst_regret": worst[best],
        "buckets": [_bucket(one, best) for one in answered],
        "spread": at_hint.off(best),
        "verified": verified,
    }
    ratio = at_hint.ratios[best]
    rung = "exact" if rungs == {"exact"} else "near"
    hit = Hit(rung, best, ratio * at_hint.aten_us, 1 / ratio, at_hint.table, evidence)
    reason = f"{best.name} loses at most {worst[best]:.1%} in each of {len(answered)} buckets"
    return Step("range", hit, reason, evidence)


def _worst_regret(ask: Ask, config: Config, answered: list[_Bucket]) -> float:
    """The config's largest regret; infinite if a bucket lacks it or doubts it more than the policy allows."""
    worst = 0.0
    for one in answered:
        if one.prediction.doubt.get(config, math.inf) > ask.policy.near_loss:
            return math.inf
        worst = max(worst, one.prediction.regret(config))
    return worst


def _aten(ask: Ask, hint: Hit, reason: str) -> Step:
    """ATen for the range. The hint's answer tells ATen's time, also if it is another config."""
    evidence = {"range": _ranges(ask), "reason": reason, "hint": dict(hint.evidence)}
    hit = Hit(hint.rung, ATEN, hint.expected_us * hint.speedup, 1.0, hint.table, evidence)
    return Step("range", hit, f"ATen for the range: {reason}", evidence)


def _ranges(ask: Ask) -> dict[str, list[int | None]]:
    return {name: [low, high] for name, (low, high) in ask.query.ranges.items()}


def _bucket(one: _Bucket, config: Config) -> dict[str, Any]:
    sizes = {"m": one.problem.m, "n": one.problem.n, "k": one.problem.k}
    return {**sizes, "rung": one.prediction.rung, "regret": one.prediction.regret(config)}
