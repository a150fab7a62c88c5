"""What live tuning should try: the configs that rungs `near` and `model` expect to be fastest, in one order."""

from __future__ import annotations

from itertools import zip_longest

from gemmdb.kernels.config import Config
from gemmdb.ladder.ask import Ask
from gemmdb.ladder.model import FIRST, rank, tabled
from gemmdb.ladder.near import predict_near
from gemmdb.ladder.similar import similar
from gemmdb.ladder.tree_correction import corrected
from gemmdb.ladder.unmodelled import usual

TIMES_MORE = 2
"""How many times as many candidates as in a lookup are ranked. It takes a millisecond, far less than measuring them."""


def candidates(ask: Ask) -> list[Config]:
    """Configs other than ATen that may be served, the most promising first; empty if nothing is known.

    Trees put the candidates of both rungs into one order. Without trees, the two lists alternate: each has configs that
    the other lacks, and the first few of one list are much alike.
    """
    found = predict_near(ask)
    prediction = found if isinstance(found, str) else corrected(ask, found, TIMES_MORE)
    measured = [] if isinstance(prediction, str) else prediction.candidates(len(prediction.gains))
    if prediction is not found:
        return measured
    turns = (config for pair in zip_longest(measured, _expected(ask)) for config in pair if config is not None)
    return list(dict.fromkeys(turns))


def _expected(ask: Ask) -> list[Config]:
    """First the configs of a modelled table, whose kernels were compiled for the device, then the model's ranking. If
    both are empty: configs that were the best on similar problems."""
    modelled = rank(ask, FIRST * TIMES_MORE)
    best = [] if isinstance(modelled, str) else [one.config for one in modelled.best]
    return list(dict.fromkeys((*tabled(ask), *best))) or similar(ask) or usual(ask)
