"""Bounds of expected times: how many outcomes stay below them."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdb.generators.fit import bounds
from gemmdb.generators.fit.bounds import Bounds, Outcome

values = st.lists(st.floats(-2, 2), min_size=1, max_size=200)


@given(values, st.sampled_from([0.5, 0.9, 0.98]))
def test_a_shift_leaves_at_most_the_share_above(missed, level):
    found = bounds.shift(missed, level)
    if math.isfinite(found):
        assert sum(value > found for value in missed) <= (1 - level) * len(missed)
    else:
        assert len(missed) < level / (1 - level)


def test_too_few_outcomes_bound_nothing():
    assert bounds.shift([0.0] * 48, 0.98) == math.inf
    assert bounds.shift([0.0] * 49, 0.98) == 0.0


def test_a_margin_is_never_negative():
    assert bounds.margins(("mm", -0.5, -0.9) for _ in range(100)) == {"mm": 0.0}
    assert bounds.margins([("mm", -0.5, -0.3)] * 100) == {"mm": pytest.approx(0.2)}


def test_a_bound_adds_what_the_features_weigh():
    one = Outcome("mm", 0, -0.5, -0.4, (1.0, 0.2))
    assert Bounds({"mm": 0.1}, (0.05, 0.5)).of(one) == pytest.approx(-0.5 + 0.1 + 0.05 + 0.1)


def outcomes(count, seed):
    """Errors that grow with the first feature and do not depend on the second."""
    source = random.Random(seed)
    for place in range(count):
        features = source.random(), source.random()
        expected = -source.random()
        yield Outcome("mm", place % 5, expected, expected + abs(source.gauss(0, 0.02 + 0.2 * features[0])), features)


def test_the_fit_finds_what_makes_a_time_uncertain_and_holds_for_others():
    pytest.importorskip("scipy")
    fitted = bounds.fit(list(outcomes(1000, 1)), 0.95)
    assert fitted.weights[0] > 0.2
    assert fitted.weights[1] < 0.05
    others = list(outcomes(2000, 2))
    share = sum(one.measured <= fitted.of(one) for one in others) / len(others)
    assert 0.93 < share < 0.98
