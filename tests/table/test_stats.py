"""Medians with their intervals."""

import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdb.table.stats import Span, gain, interval, paired, span, times, turns


@pytest.mark.parametrize(("count", "ranks"), [(1, (0, 0)), (5, (0, 4)), (6, (0, 5)), (30, (9, 20)), (100, (39, 60))])
def test_known_intervals(count, ranks):
    # Published tables of the 95% interval of a median give ranks 1-6, 10-21 and 40-61 for 6, 30 and 100 samples.
    assert interval(count) == ranks


@given(st.integers(6, 300) | st.integers(1001, 3000))
def test_interval_covers_the_median_with_95_percent(count):
    """Of many samples nearly so."""
    low, high = interval(count)
    covered = sum(math.comb(count, k) for k in range(low + 1, high + 1)) / 2**count
    if count > 1000:
        assert 0.945 < covered < 0.96
    else:
        narrower = sum(math.comb(count, k) for k in range(low + 2, high)) / 2**count
        assert narrower < 0.95 <= covered


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=60))
def test_times_keep_the_median_inside(samples):
    result = times(samples, [10.0])
    assert result.low_us <= result.median_us <= result.high_us
    assert result.samples == len(samples)
    assert result.aten_us == 10.0


SAMPLES = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=40)


@given(SAMPLES, SAMPLES)
def test_a_gain_is_an_interval_around_it(before, after):
    found = gain(span(before), span(after))
    assert found.low <= found.value * (1 + 1e-9)
    assert found.value <= found.high * (1 + 1e-9)
    assert found.verdict in ("faster", "slower", "no difference")
    assert gain(span(after), span(before)).low == pytest.approx(1 / found.high)


@pytest.mark.parametrize(("after", "verdict"), [
    (Span(50, 49, 51), "faster"), (Span(200, 199, 201), "slower"), (Span(50, 49, 95), "no difference"),
    (Span(100, 99, 101), "no difference"),
])  # fmt: skip
def test_a_gain_whose_interval_contains_1_is_no_difference(after, verdict):
    assert gain(Span(100, 94, 106), after).verdict == verdict


@given(st.integers(1, 9), st.integers(0, 5))
def test_each_name_follows_each_other_equally_often(count, begun):
    names = [f"way {place}" for place in range(count)]
    orders = [turns(names, begun * 2 * count + index) for index in range(2 * count)]
    assert all(sorted(order) == names for order in orders)
    followed = Counter(pair for order in orders for pair in pairwise(order))
    assert len(followed) == count * (count - 1)
    assert len(set(followed.values())) <= 1


SERIES = st.integers(1, 4).flatmap(
    lambda rounds: st.lists(st.lists(st.floats(0.01, 1e6), min_size=rounds, max_size=rounds), min_size=1, max_size=4)
)


@given(SERIES)
def test_paired_samples_keep_the_ratios_within_each_round(series):
    found = paired(series)
    for before, after in zip(zip(*series, strict=True), zip(*found, strict=True), strict=True):
        assert [one / after[0] for one in after] == pytest.approx([one / before[0] for one in before])


@given(st.lists(st.floats(0.5, 2.0), min_size=3, max_size=15), st.floats(0.5, 2.0))
def test_what_a_round_shares_is_no_noise(clocks, ratio):
    ours, aten = paired([[ratio * one for one in clocks], clocks])
    assert span(ours).us / span(aten).us == pytest.approx(ratio)
    assert [span(one).low for one in (ours, aten)] == pytest.approx([span(one).high for one in (ours, aten)])


def test_nothing_is_paired_without_samples():
    assert paired([[], []]) == [[], []]
    assert paired([]) == []
