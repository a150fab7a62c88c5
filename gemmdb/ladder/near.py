"""Rung `near`: answers a problem that was not measured from nearby problems that were.

Neighbours share the device, the op and the family: dtypes, layout and alignment classes, bias, fusion context and
numerics. The rung does not copy a neighbour's winner: `prediction.predicted` predicts the time of every config, and
`tree_correction.corrected` adds what trees fitted on the arch know. The rung declines if the neighbours are too far
away, or if the prediction is too uncertain for the policy and not certainly faster than ATen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice, takewhile
from operator import itemgetter
from typing import NamedTuple

from gemmdb.hit import Hit
from gemmdb.kernels import aten
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.ladder.ask import Ask, Step
from gemmdb.ladder.certainty import Certainty
from gemmdb.ladder.distance import distances, same_side
from gemmdb.ladder.exact import barred, exact
from gemmdb.ladder.policy_filter import objection, required_gain
from gemmdb.ladder.prediction import Prediction, predicted
from gemmdb.ladder.remembering import remembered
from gemmdb.ladder.timings import Timings, timings_of
from gemmdb.ladder.tree_correction import corrected
from gemmdb.table.reader import Table
from gemmdb.table.verdict import TIE

FARTHEST = {"cuda": 2.0}
"""The largest distance to the nearest neighbour, in doublings, by kind of device. Farther problems get no answer."""
UNTRIED = 0.6
"""The same for other kinds, where no table was large enough to test a larger distance."""
REACH = 3.0
"""The largest distance to any neighbour that is used, in doublings."""
MOST = 8
"""The most neighbours that one prediction uses."""
WITHIN = (32.0, 8.0, 8.0)
"""The largest ratios of M, N and K to those of a neighbour. A table is searched no farther."""
CANDIDATES = 64
"""The most neighbours that are read from each table."""


_Place = tuple[float, str, int, Problem, Table]
"""The distance to a problem, its text, the place of a table that holds it, the problem, and the table."""
_TEXT = itemgetter(1)


class _Neighbour(NamedTuple):
    problem: Problem
    tables: Sequence[Table]
    distance: float


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
    certainty = Certainty.of(ask, prediction)
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
    """What won at the nearest product of a batch, which the caller times beside ATen. How batches carry over to other
    sizes was not measured, so nothing is predicted but that the gain is the same."""
    query, most = ask.problem, FARTHEST.get(ask.device.kind, UNTRIED)
    apart = sorted((_apart(query, one), one.problem.text, one.problem) for one in _neighbours(ask, _places(ask)))
    distance, text, nearest = apart[0] if apart else (math.inf, "", query)
    hit = exact(ask.at(nearest)).hit if distance <= most else None
    if hit is None:
        return Step("near", None, "no similar product of a batch was measured near this one")
    config = hit.config if objection(ask, hit.config) is None and hit.config not in barred(ask) else ATEN
    if config == ATEN and ask.policy.on_miss == "live":
        return Step("near", None, f"ATen won {nearest.head}, {distance:.2f} doublings away")
    speedup = hit.speedup if config != ATEN else 1.0
    aten_us = hit.expected_us * hit.speedup * query.flops / nearest.flops
    evidence = {"neighbours": [text], "distance": distance}
    reason = f"as for {nearest.head}, {distance:.2f} doublings away"
    return Step("near", Hit("near", config, aten_us / speedup, speedup, hit.table, evidence), reason, evidence)


def _apart(query: Problem, one: _Neighbour) -> float:
    """The distance to a neighbour in doublings. The number of matrices changes less than their sizes."""
    return one.distance + abs(math.log2(query.batch / max(one.problem.batch, 1))) / 4


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
    if ask.problem.spec.batched:  # Nobody has measured how batches carry over to other sizes.
        return f"for products of the op {ask.problem.op} it is unknown what a change of size does"
    places = _places(ask)
    used = _timings(ask, _neighbours(ask, places))
    if used and used[0][0] <= FARTHEST.get(ask.device.kind, UNTRIED):
        return predicted(ask, used)
    neighbours = list(_neighbours(ask, places))
    if not neighbours:
        return (
            "no similar problem (same op, dtypes and layouts, and the same sizes of 1 and alignment of the output) was"
            f" measured near this one on {ask.device.sku}"
        )
    closest = neighbours[0]
    return (
        f"too far: the nearest of {len(neighbours)} neighbours is m={closest.problem.m} n={closest.problem.n}"
        f" k={closest.problem.k}, {closest.distance:.2f} doublings away"
    )


def choose(ask: Ask, prediction: Prediction, certainty: Certainty | None = None) -> Config:
    """The config to serve: the cheapest to compile among those tied with the best by expected time and certainty. With
    `certainty`, only configs that are faster than ATen for certain count. ATen if no expected gain is large enough."""
    needed = required_gain(ask.policy, prediction.verified)
    gaining = (c for c, gained in prediction.gains.items() if c != ATEN and gained >= needed)
    scores = sorted((prediction.score(c), c.spec.cost, c.text, c) for c in gaining)
    most = math.inf
    tied: list[Config] = []
    for score, _, _, config in scores:
        if score > most:
            break
        if certainty is None or certainty.most(config) < 0:
            most = min(most, score * (1 + TIE))
            tied.append(config)
    return min(tied, key=lambda c: (c.spec.cost, c.text), default=ATEN)


def _places(ask: Ask) -> list[_Place]:
    """The problems nearby in all tables, nearest first, and those that several tables hold in the order of these."""
    query = ask.problem
    if query.empty:
        return []
    distance = distances(query, ask.device.kind)
    found: list[_Place] = []
    for place, table in enumerate(ask.tables):
        problems = ask.read(Table.neighbours, table, query, ask.device, ask.query.l2, CANDIDATES, WITHIN) or ()
        found += [(distance(*one.doublings), one.text, place, one, table) for one in problems]
    found.sort()  # No two have all of the first three in common.
    return found


def _neighbours(ask: Ask, places: Iterable[_Place]) -> Iterator[_Neighbour]:
    """The neighbours among `places`, nearest first. A problem that several tables hold comes from the first that can
    be read. On a GPU, the output's rows start at multiples of 16 bytes in all of them or in none: cuBLAS has separate
    kernels."""
    query, gpu = ask.problem, ask.device.kind == "cuda"
    own, apart = query.text, gpu and aten.stored_apart(query)
    for text, same in groupby(places, key=_TEXT):
        first, *others = same
        problem = first[3]
        if text != own and same_side(query, problem) and (not gpu or aten.stored_apart(problem) == apart):
            yield _Neighbour(problem, (first[4], *(one[4] for one in others)), first[0])


def _first(ask: Ask, one: _Neighbour) -> Timings | None:
    return next((known for table in one.tables if (known := timings_of(ask, table, one.problem))), None)


def _timings(ask: Ask, neighbours: Iterable[_Neighbour]) -> list[tuple[float, Timings]]:
    """The nearest neighbours with a steady ATen row. Without one, there is nothing to compare their configs with."""
    near = takewhile(lambda one: one.distance <= REACH, neighbours)
    read = ((one.distance, _first(ask, one)) for one in near)
    return list(islice(((distance, here) for distance, here in read if here and here.steady_aten), MOST))


def _serve(prediction: Prediction, config: Config, reason: str, certainty: Certainty | None = None) -> Step:
    hit = _hit(prediction, config, certainty)
    return Step("near", hit, reason, hit.evidence)


def _hit(prediction: Prediction, config: Config, certainty: Certainty | None) -> Hit:
    ratio = prediction.ratios[config]
    evidence = {
        **prediction.evidence,
        "expected_loss": prediction.loss(config),
        "regret": prediction.regret(config),
        "spread": prediction.spread[config],
        "verified": prediction.verified,
    }
    if certainty is not None and config != ATEN:
        evidence["least_gain"] = math.expm1(-certainty.most(config))
    return Hit("near", config, ratio * prediction.aten_us, 1 / ratio, prediction.table, evidence)


def _reason(prediction: Prediction, config: Config) -> str:
    count, distance = len(prediction.evidence["neighbours"]), prediction.evidence["distance"]
    return (
        f"from {count} neighbour(s), the nearest {distance:.2f} doublings away: {config.name} is expected at"
        f" {1 / prediction.ratios[config]:.3f}x ATen and a loss of at most {prediction.loss(config):.1%}"
    )
