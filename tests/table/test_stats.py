"""Medians with their intervals."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdb.table.stats import interval, times


@pytest.mark.parametrize(("count", "ranks"), [(1, (0, 0)), (5, (0, 4)), (6, (0, 5)), (30, (9, 20)), (100, (39, 60))])
def test_known_intervals(count, ranks):
    # Published tables of the 95% interval of a median give ranks 1-6, 10-21 and 40-61 for 6, 30 and 100 samples.
    assert interval(count) == ranks


@given(st.integers(6, 300))
def test_interval_covers_the_median_with_95_percent(count):
    low, high = interval(count)
    covered = sum(math.comb(count, k) for k in range(low + 1, high + 1)) / 2**count
    assert covered >= 0.95
    narrower = sum(math.comb(count, k) for k in range(low + 2, high)) / 2**count
    assert narrower < 0.95


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=60))
def test_times_keep_the_median_inside(samples):
    result = times(samples, [10.0])
    assert result.low_us <= result.median_us <= result.high_us
    assert result.samples == len(samples)
    assert result.aten_us == 10.0
