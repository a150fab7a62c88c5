"""What live tuning should try: the configs that rungs `near` and `model` expect to be the fastest, in one order."""

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
"""How many times as many candidates as in a lookup are looked at: a millisecond is nothing beside measuring them."""


def candidates(ask: Ask) -> list[Config]:
    """Configs other than ATen that may be served, the most likely ones first; none where nothing is known of any.

    Trees put the candidates of both into one order. Without them the two are taken in turns: each knows what the other
    misses, and the first few of either are much alike.
    """
    found = predict_near(ask)
    prediction = found if isinstance(found, str) else corrected(ask, found, TIMES_MORE)
    measured = [] if isinstance(prediction, str) else prediction.candidates(len(prediction.gains))
    if prediction is not found:
        return measured
    turns = (config for pair in zip_longest(measured, _expected(ask)) for config in pair if config is not None)
    return list(dict.fromkeys(turns))


def _expected(ask: Ask) -> list[Config]:
    """What a modelled table has, whose kernels were compiled for the device, then what the model puts first; of a
    problem that neither knows, what was the best on others of its kind."""
    modelled = rank(ask, FIRST * TIMES_MORE)
    best = [] if isinstance(modelled, str) else [one.config for one in modelled.best]
    return list(dict.fromkeys((*tabled(ask), *best))) or similar(ask) or usual(ask)
