"""Candidates to benchmark on a miss: configs for live tuning, and the fastest kernel where one is required."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from gemmdb.cost.features import TREE_OPS
from gemmdb.hit import Hit
from gemmdb.kernels.config import Config
from gemmdb.lookup import cost_model, from_neighbours
from gemmdb.lookup.acceptance.near import predict
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.other_epilogue import stand_ins
from gemmdb.lookup.prediction import Prediction, measured
from gemmdb.lookup.ranking import LIVE_CANDIDATES, TREE_CANDIDATES, rank
from gemmdb.lookup.similar import similar, usual
from gemmdb.lookup.tree_correction import corrected
from gemmdb.rejected import Rejected

TUNING_FACTOR = 2
"""Multiplier for the number of ranked candidates relative to a lookup. It takes a millisecond, far less than measuring
them."""
MOST_KERNELS = 64
"""Maximum number of kernels that the caller of `best_kernel` may exclude."""


def best_kernel(ask: Ask) -> Hit | None:
    """Return the fastest expected kernel that the caller does not exclude: among those measured for the problem, else
    near it, else by the cost model. None if there is none."""
    for prediction in _predictions(ask):
        for config in prediction.candidates(MOST_KERNELS):
            if ask.excluded is None or not ask.excluded(config, None):
                ratio = prediction.ratios[config]
                return Hit(prediction.rung, config, ratio * prediction.aten_us, 1 / ratio, prediction.table)
    ranking = rank(ask, TREE_CANDIDATES) if ask.policy.model else None
    if ranking is None or isinstance(ranking, Rejected):
        return None
    for one in ranking.best:
        if ask.excluded is None or not ask.excluded(one.config, None):
            return Hit("model", one.config, one.us, ranking.aten_us / one.us, "")
    return None


def _predictions(ask: Ask) -> Iterator[Prediction]:
    if own := measured(ask):
        yield own
    nearby = predict(ask) if ask.policy.near else None
    if isinstance(nearby, Prediction):
        yield nearby


def candidates(ask: Ask) -> list[Config]:
    """Return servable configs other than ATen, most promising first; empty without data.

    The best configs of the same GEMM with another epilogue, or with none, come first if that was measured. Trees rank
    the candidates of neighbours and of the cost model together. Without trees, the two lists alternate: each has
    configs that the other lacks, and the top configs of one list are similar to each other.
    """
    others = [ask.at(problem) for problem in stand_ins(ask.problem, ask.device.kind)]
    known = [config for at in others if (rows := measured(at)) for config in rows.candidates(LIVE_CANDIDATES)]
    return list(dict.fromkeys([*known, *_predicted(ask, others)]))


def _predicted(ask: Ask, others: Sequence[Ask]) -> list[Config]:
    guesses = (from_neighbours.predict(at) for at in (ask, *others))
    found = next((guess for guess in guesses if isinstance(guess, Prediction)), None)
    prediction = corrected(ask, found, TUNING_FACTOR) if found and ask.policy.model else found
    nearby = prediction.candidates(len(prediction.gains)) if prediction else []
    return nearby if prediction is not found else _in_turns(nearby, _expected(ask))


def _in_turns(*lists: Sequence[Config]) -> list[Config]:
    """Interleave the lists, without repeats."""
    return list(dict.fromkeys(config for turn in zip_longest(*lists) for config in turn if config is not None))


def _expected(ask: Ask) -> list[Config]:
    """Return the configs in a modelled table, whose kernels were compiled for the device, then the model's ranking. If
    both are empty, return the best configs on similar problems. For ops with their own trees, the ranking and these
    alternate, which gained more on held-out problems than either (docs/contributing/lookup.md). For block scales,
    return the menu: the rows are older than half of it."""
    if ask.problem.scales == "block":
        return usual(ask)
    ranking = rank(ask, TREE_CANDIDATES * TUNING_FACTOR)
    best = [] if isinstance(ranking, Rejected) else [one.config for one in ranking.best]
    if ask.problem.op in TREE_OPS:
        best = _in_turns(best, similar(ask))
    tabled = [one.config for one in cost_model.modelled(ask)[:-1]]
    return list(dict.fromkeys((*tabled, *best))) or similar(ask) or usual(ask)
