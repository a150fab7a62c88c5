"""What live tuning should try: the configs that rungs `near` and `model` expect to be fastest, in one order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from gemmdb.cost.features import TREE_OPS
from gemmdb.kernels.config import Config
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.epilogue import stand_ins
from gemmdb.lookup.model import FIRST, LIVE_CANDIDATES, rank, tabled
from gemmdb.lookup.near import predict_near
from gemmdb.lookup.prediction import Prediction, measured
from gemmdb.lookup.similar import similar
from gemmdb.lookup.tree_correction import corrected
from gemmdb.lookup.unmodelled import usual

TIMES_MORE = 2
"""How many times as many candidates as in a lookup are ranked. It takes a millisecond, far less than measuring them."""


def candidates(ask: Ask) -> list[Config]:
    """Configs other than ATen that may be served, the most promising first; empty if nothing is known.

    The best of the same product with another epilogue, or with none, come first where that was measured. Trees put the
    candidates of both rungs into one order. Without trees, the two lists alternate: each has configs that the other
    lacks, and the first few of one list are much alike.
    """
    others = [ask.at(problem) for problem in stand_ins(ask.problem, ask.device.kind)]
    known = [config for at in others if (rows := measured(at)) for config in rows.candidates(LIVE_CANDIDATES)]
    return list(dict.fromkeys([*known, *_predicted(ask, others)]))


def _predicted(ask: Ask, others: Sequence[Ask]) -> list[Config]:
    guesses = (predict_near(at) for at in (ask, *others))
    found = next((guess for guess in guesses if isinstance(guess, Prediction)), None)
    prediction = found and corrected(ask, found, TIMES_MORE)
    nearby = prediction.candidates(len(prediction.gains)) if prediction else []
    if prediction is not found:
        return nearby
    return _in_turns(nearby, _expected(ask))


def _in_turns(*lists: Sequence[Config]) -> list[Config]:
    """The first of each list, then the second of each, without repeats."""
    return list(dict.fromkeys(config for turn in zip_longest(*lists) for config in turn if config is not None))


def _expected(ask: Ask) -> list[Config]:
    """First the configs of a modelled table, whose kernels were compiled for the device, then the model's ranking. If
    both are empty: configs that were the best on similar problems. Where an op has trees of its own, the ranking and
    these alternate, which found more on held-out problems than either (docs/contributing/lookup.md)."""
    modelled = rank(ask, FIRST * TIMES_MORE)
    best = [] if isinstance(modelled, str) else [one.config for one in modelled.best]
    if ask.problem.op in TREE_OPS:
        best = _in_turns(best, similar(ask))
    return list(dict.fromkeys((*tabled(ask), *best))) or similar(ask) or usual(ask)
