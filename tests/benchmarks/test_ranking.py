"""What rankings of cuBLASLt's algorithms are worth: gains with the first few, folds, and the nearest rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.common import ROOT, json_lines
from benchmarks.dense import ranking
from gemmdb.generators.fit.cublaslt import Explored, of_times
from gemmdb.key.problem import Problem

WAYS: tuple[tuple[int, ...], ...] = ((10, 1, 2, 1), (10, 1, 4, 1), (10, 3, 2, 1), (12, 0, 2, 1), (12, 0, 4, 2))
LINES = ROOT / "benchmarks" / "results" / "h200" / "dense" / "explored-2026-11-28.jsonl.xz"


def explored(m: int, *ratios: float) -> Explored:
    found = of_times(Problem.gemm("mm", m=m, n=4096, k=4096), 132, dict(zip(WAYS, ratios, strict=True)))
    assert found is not None
    return found


def test_the_gain_is_that_of_the_best_so_far_and_never_below_atens() -> None:
    one = explored(64, 1.1, 0.5, 0.9, 0.8, 1.0)
    found = ranking.gains(one, np.array([0.0, 4.0, 1.0, 2.0, 3.0]))
    assert [math.exp(value) for value in found] == pytest.approx([1.0, 1 / 0.9, 1 / 0.8, 2.0, 2.0, 2.0])


def test_a_problem_is_scored_by_a_fit_to_the_other_folds() -> None:
    group = [explored(m, 1.0, 0.5, 0.9, 0.8, 1.0) for m in (17, 20, 40, 300)]
    seen = ranking.folded(group, lambda problems: [one.problem.m for one in problems], ranking.by_rows)
    assert [seen(one.problem) for one in group] == [[40, 300], [40, 300], [17, 20, 300], [17, 20, 40]]
    assert {ranking.by_sizes(one.problem) for one in group} == {ranking.by_sizes(group[0].problem)}


def test_algorithms_of_the_nearest_rows_come_first() -> None:
    near, far = explored(100, 1.0, 0.5, 0.9, 0.8, 1.0), explored(4000, 0.1, 0.5, 0.9, 0.8, 1.0)
    score = ranking.nearest_first(
        [near, explored(127, 1.0, 0.7, 0.95, 0.9, 1.0), far], lambda one: np.zeros(len(one.ways))
    )
    found = score(explored(63, *[1.0] * 5))
    assert found.max() < 1.0  # What only `far` says would be first.
    assert np.argsort(found).tolist() == np.argsort(near.losses).tolist() == [1, 3, 2, 0, 4]
    assert set(ranking.nearest_first([], lambda one: np.zeros(5))(near)) == {ranking.LAST}


def test_the_polynomial_learns_which_algorithms_are_slow() -> None:
    group = [explored(m, 1.0, 1.5, 1.2, 2.0, 1.7) for m in range(17, 60)]
    found = ranking.polynomial(group)(explored(33, *[1.0] * 5))
    assert np.argsort(found).tolist() == [0, 2, 1, 4, 3]


def test_the_exploration_has_the_gemms_that_the_page_counts() -> None:
    found = list(ranking.of_lines(json_lines(LINES)))
    assert [sum(low <= one.problem.m <= high for one in found) for low, high in ((17, 64), (65, 256))] == [30, 30]
