"""The splits that a grouped_mm is measured on: what they cover, and what a candidate counts as on them."""

import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.gpu import make

from gemmdb.generators.measure.correctness import reference
from gemmdb.generators.measure.cuda import bench, session
from gemmdb.generators.measure.literals import splits
from gemmdb.generators.measure.operands import operands
from gemmdb.generators.measure.program import Product
from gemmdb.generators.measure.tolerance import tolerance
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem

CPU = torch.device("cpu")


def experts(m: int = 64, groups: int = 8, **rest) -> Problem:
    return Problem.gemm("grouped_mm", **{"m": m, "n": 48, "k": 64, "groups": groups, **rest})


def sizes(ends: list[int]) -> list[int]:
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


@given(st.integers(0, 3000), st.integers(1, 300), st.sampled_from("mk"))
def test_each_split_divides_everything(total, groups, ragged):
    problem = experts(groups=groups, ragged=ragged, **{ragged: total})
    found = splits(problem)
    assert 1 <= len(found) <= 3
    assert len(set(map(tuple, found))) == len(found)
    for ends in found:
        assert (len(ends), ends[-1]) == (groups, total)
        assert min(sizes(ends)) >= 0


def test_they_are_balanced_skewed_and_sparse_and_few_rows_reach_as_many_groups():
    balanced, skewed, sparse = map(sizes, splits(experts(4096)))
    assert set(balanced) == {512}
    assert max(skewed) > 3 * statistics.fmean(skewed)
    assert min(skewed) > 0
    assert sorted(sparse) == [0] * 6 + [2048] * 2
    balanced, skewed, sparse = map(sizes, splits(experts(8, 128)))
    assert sorted(balanced)[-8:] == [1] * 8
    assert 2 < len([size for size in skewed if size]) < 8
    assert sorted(sparse)[-3:] == [0, 4, 4]


def test_other_ops_are_not_divided():
    problem = Problem.gemm("mm", m=8, n=8, k=8)
    made = operands(problem, CPU, 1)
    assert splits(problem) == []
    assert bench.divided(problem, made) == [made]


@pytest.mark.parametrize("problem", [experts(), experts(3, 16), experts(ragged="k", layout="tn")], ids=str)
def test_each_split_has_its_own_exact_result(problem):
    ways = bench.divided(problem, operands(problem, CPU, 1))
    assert len(ways) > 1
    for one in ways:
        product = Product(problem, one)
        result = product(*product.inputs)
        assert reference(problem, one).error(result) <= tolerance(problem)
        others = [other for other in ways if other is not one]
        assert all(reference(problem, other).error(result) > tolerance(problem) for other in others)


@pytest.mark.parametrize("ragged", ["m", "k"])
def test_rows_beyond_the_last_group_may_hold_anything_and_a_group_without_depth_is_zero(ragged):
    problem = experts() if ragged == "m" else experts(ragged="k", layout="tn")
    ends = [0, 3, 3, 9, 20, 20, 31, 40] if ragged == "m" else [0, 9, 9, 30, 30, 40, 50, 64]
    made = replace(operands(problem, CPU, 1), offsets=torch.tensor(ends, dtype=torch.int32))
    result = torch._grouped_mm(made.a, made.b, offs=made.offsets)
    if ragged == "m":
        result[40:] = float("nan")
    expected = reference(problem, made)
    assert expected.error(result) <= tolerance(problem)
    result[(39, 0) if ragged == "m" else (2, -1, -1)] = float("nan") if ragged == "m" else 0.1
    assert expected.error(result) == float("inf")


@pytest.mark.parametrize(("copies", "count"), [(1, 3), (2, 3), (3, 3), (7, 6), (20, 18)])
def test_the_copies_take_turns_over_the_splits(copies, count):
    problem = experts()
    ways = bench.divided(problem, operands(problem, CPU, 1))
    made = [{name: tensor.clone() for name, tensor in ways[0].named.items()} for _ in range(copies)]
    found = bench._over(ways, made)
    assert len(found) == count
    for place, tensors in enumerate(found):
        assert tensors["offsets"].tolist() == ways[place % 3].offsets.tolist()
        assert tensors["B"] is made[place % copies]["B"]


ATENS = [[10.0, 30.0]] * 3


@pytest.mark.parametrize(("aten", "ours", "counted"), [
    # Twice as fast as ATen on one split and a tenth slower on the other: it must not win.
    ([[10.0, 30.0], [10.0, 30.0], [10.4, 30.0]], [[5.0, 33.0], [5.0, 33.3], [5.0, 32.7]], [22.0, 22.2, 21.8]),
    # Slower on none: the mean, as of ATen. Programs divide their groups in all ways, so the best on average is best.
    (ATENS, [[9.4, 28.0], [9.4, 28.2], [9.4, 27.8]], [18.7, 18.8, 18.6]),
    (ATENS, [[10.0, 20.0], [10.1, 20.0], [10.05, 20.2]], [15.0, 15.05, 15.125]),
    (ATENS, [[10.11, 15.0]] * 3, [20.22] * 3),  # More than 1% slower on one of them.
    (ATENS, [[10.09, 15.0]] * 3, [12.545] * 3),
    # Without splits, samples stay as they are.
    ([[10.0], [11.0], [12.0]], [[5.0], [7.0], [6.0]], [5.0, 7.0, 6.0]),
])  # fmt: skip
def test_a_candidate_that_is_slower_on_one_split_counts_as_there(aten, ours, counted):
    found = session._over_splits({ATEN: aten, make("grouped"): ours})
    assert found[ATEN] == pytest.approx(list(map(statistics.fmean, aten)))
    assert found[make("grouped")] == pytest.approx(counted)
