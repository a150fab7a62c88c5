"""What is said of a GEMM with symbolic sizes holds for the sizes of its calls, or for all sizes of its range."""

import pytest

from gemmdb.lookup import answer
from gemmdb.lookup.over_sizes import expected, gain_of, mean_roofline_us, mean_saving
from gemmdb.settings import Policy
from gemmdb.table.stats import Part

GAINS = {2: 4.0, 8: 3.0, 32: 1.5, 128: 1.0 / 0.9}
TIMES = {2: 100.0, 8: 120.0, 32: 200.0, 128: 800.0}
"""ATen's, which grow with the number of rows."""
RANGE = {"m": (2, 128)}
SIZES = tuple(2**power for power in range(1, 8))


def gain(m):
    return GAINS[max(size for size in GAINS if size <= m)]


@pytest.fixture
def ranged(lab):
    """A lookup of a range with a kernel that gains less the more rows there are."""
    rows = [
        row for m in SIZES
        for row in lab.rows(lab.problem(m=m), {lab.cpp(): 1 / gain(m)}, aten_us=TIMES.get(m, 10.0 * m))
    ]  # fmt: skip
    query = lab.query(lab.problem(m=8), ranges=RANGE)
    hit = answer(query, lab.catalog(rows), Policy())
    assert hit.config == lab.cpp()
    return query, hit


def of(ranged, sizes):
    query, hit = ranged
    shares = {query.problem.resized(m, 256, 256): share for m, share in sizes.items()}
    return expected(query, hit.expected_us, hit.speedup, hit.evidence, shares)


def test_the_gain_is_that_of_the_sizes_that_were_called(ranged):
    """It was that of the recorded size: 2.98x was expected of a program that gained 1.35x."""
    found = of(ranged, {128: 1.0})
    assert found.gain.value == pytest.approx(1 / 0.9, rel=0.01)
    assert found.before == pytest.approx(800, rel=0.01)
    mixed = of(ranged, {8: 0.5, 128: 0.5})
    assert mixed.before == pytest.approx((120 + 800) / 2, rel=0.01)
    assert mixed.gain.value == pytest.approx((120 + 800) / (120 / 3 + 800 * 0.9), rel=0.01)
    assert mixed.gain.low < mixed.gain.value < mixed.gain.high
    assert not mixed.gain.ranged


def test_a_size_between_those_that_were_measured_is_like_the_nearest(ranged):
    assert of(ranged, {100: 1.0}).gain.value == pytest.approx(1 / 0.9, rel=0.01)
    assert of(ranged, {9: 1.0}).gain.value == pytest.approx(3.0, rel=0.01)


def test_where_no_call_was_seen_the_gain_is_a_span_over_the_range(ranged):
    found = of(ranged, {}).gain
    assert found.value == pytest.approx(3.0, rel=0.01)
    assert (found.low, found.high) == pytest.approx((1 / 0.9, 4.0), rel=0.05)
    assert str(found).startswith("3.00x at the recorded sizes, 1.1")
    assert str(found).endswith("x over their ranges")
    assert found.short.endswith(f"x to {found.high:.2f}x")


def test_a_gain_that_is_known_only_at_the_recorded_size_may_be_nothing_elsewhere(ranged):
    query, hit = ranged
    found = expected(query, hit.expected_us, hit.speedup, {}, {}).gain
    assert (found.low, found.value) == (1.0, hit.speedup)
    elsewhere = expected(query, hit.expected_us, hit.speedup, {}, {query.problem.resized(64, 256, 256): 1.0}).gain
    assert elsewhere.low == pytest.approx(1.0)


def test_fixed_sizes_are_as_before(lab):
    query = lab.query(lab.problem(m=8))
    found = expected(query, 50.0, 2.0, {"spread": 0.1}, {})
    assert found == Part.of(100.0, 50.0, 0.1)


def test_an_entry_of_stats_has_the_gain_of_its_range(ranged):
    query, hit = ranged
    one = {
        "problem": query.problem.text, "device": query.device.text, "ranges": {"m": [2, 128]},
        "expected_us": hit.expected_us, "speedup_vs_aten": hit.speedup, "evidence": dict(hit.evidence),
    }  # fmt: skip
    assert gain_of(one) == of(ranged, {}).gain
    assert gain_of({**one, "expected_us": None}) is None


def test_aten_takes_its_time_at_each_size(ranged):
    query, hit = ranged
    aten = hit.with_aten()
    found = expected(query, aten.expected_us, aten.speedup, aten.evidence, {query.problem.resized(128, 256, 256): 1.0})
    assert (found.before, found.after) == pytest.approx((800, 800), rel=0.01)


def test_a_miss_is_weighted_too(lab):
    query = lab.query(lab.problem(m=8), ranges=RANGE)
    large = {query.problem.resized(4096, 256, 256): 1.0}
    assert mean_roofline_us(query, large) > 10 * mean_roofline_us(query, {})
    assert mean_saving(query, large) is None
