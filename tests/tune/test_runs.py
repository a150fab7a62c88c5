"""The interval of a gain from a few runs, and when it is looked at after each of them."""

from __future__ import annotations

import math
import random

import pytest

from gemmdb.table.stats import Gain
from gemmdb.tune.runs import LEAST, MOST, gain, is_certain, quantile


@pytest.mark.parametrize(("freedom", "chance", "value"), [
    (2, 0.05, 4.3027), (4, 0.05, 2.7764), (14, 0.05, 2.1448), (2, 0.025, 6.2053), (14, 0.001, 4.1405),
])  # fmt: skip
def test_quantiles_are_those_of_the_printed_tables(freedom: int, chance: float, value: float) -> None:
    assert quantile(freedom, chance) == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize(("found", "certain"), [
    (Gain(1.3, 1.1, 1.5), True), (Gain(0.8, 0.7, 0.9), True), (Gain(1.3, 0.99, 1.8), False),
    (Gain(1.0, 0.99, 1.01), True), (Gain(1.0, 1.0, 1.0), True), (Gain(1.0, 0.97, 1.01), False),
])  # fmt: skip
def test_no_more_runs_where_they_would_say_no_more(found: Gain, certain: bool) -> None:
    assert is_certain(found) is certain


def stopped(source: random.Random, speedup: float, spread: float) -> tuple[int, Gain]:
    """Return the runs and the gain of a program that is timed until that is certain."""
    before, after = [], []
    found = Gain(1.0, 1.0, 1.0)
    for runs in range(1, MOST + 1):
        before.append(math.exp(source.gauss(0, spread)))
        after.append(math.exp(source.gauss(0, spread)) / speedup)
        if runs >= LEAST and is_certain(found := gain(before, after, looks=True)):
            break
    return len(before), found


@pytest.mark.parametrize(("speedup", "spread"), [(1.0, 0.02), (1.0, 0.1), (1.05, 0.02)])
def test_an_interval_holds_although_it_decides_when_to_stop(speedup: float, spread: float) -> None:
    source = random.Random(1)
    found = [stopped(source, speedup, spread)[1] for _ in range(1000)]
    assert sum(one.low <= speedup <= one.high for one in found) > 930  # At least 950 are expected.


def test_a_large_gain_needs_few_runs() -> None:
    source = random.Random(1)
    runs = [stopped(source, 1.35, 0.02) for _ in range(200)]
    assert all(one.verdict == "faster" for _, one in runs)
    assert sum(number for number, _ in runs) / len(runs) < 2.1
