"""The splits that a grouped_mm is measured on: what they cover, and what a candidate counts as on them."""

import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.gpu import make

from gemmdb.generators.measure.correctness import reference, tolerance
from gemmdb.generators.measure.cuda import bench, session
from gemmdb.generators.measure.literals import splits
from gemmdb.generators.measure.operands import operands
from gemmdb.generators.measure.program import Product
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


def test_they_are_balanced_skewed_and_sparse():
    balanced, skewed, sparse = map(sizes, splits(experts(4096)))
    assert set(balanced) == {512}
    assert max(skewed) > 3 * statistics.fmean(skewed)
    assert min(skewed) > 0
    assert sorted(sparse) == [0] * 6 + [2048] * 2


def test_few_rows_reach_as_many_groups_as_there_are_rows():
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


def test_rows_beyond_the_last_group_may_hold_anything():
    problem = experts()
    made = replace(operands(problem, CPU, 1), offsets=torch.tensor([0, 3, 3, 9, 20, 20, 31, 40], dtype=torch.int32))
    result = torch.full((64, 48), float("nan"), dtype=torch.bfloat16)
    result[:40] = torch._grouped_mm(made.a, made.b, offs=made.offsets)[:40]
    expected = reference(problem, made)
    assert expected.error(result) <= tolerance(problem)
    result[39, 0] = float("nan")
    assert expected.error(result) == float("inf")


def test_a_group_without_depth_is_zero():
    problem = experts(ragged="k", layout="tn")
    made = replace(operands(problem, CPU, 1), offsets=torch.tensor([0, 9, 9, 30, 30, 40, 50, 64], dtype=torch.int32))
    result = torch._grouped_mm(made.a, made.b, offs=made.offsets)
    expected = reference(problem, made)
    assert expected.error(result) <= tolerance(problem)
    result[2, -1, -1] = 0.1
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


def test_a_candidate_that_is_slower_on_one_split_counts_as_there():
    """Here it is twice as fast as ATen on one split and a tenth slower on the other: it must not win."""
    tile = make("grouped")
    us = {ATEN: [[10.0, 30.0], [10.0, 30.0], [10.4, 30.0]], tile: [[5.0, 33.0], [5.0, 33.3], [5.0, 32.7]]}
    found = session._over_splits(us)
    assert found[ATEN] == pytest.approx([20.0, 20.0, 20.2])
    assert found[tile] == pytest.approx([22.0, 22.2, 21.8])


def test_one_that_is_slower_on_none_takes_the_mean_as_aten_does():
    """Programs divide their groups in all ways, so the best on average is the best of those that lose nowhere."""
    even, typical = make("grouped"), make("tile")
    us = {
        ATEN: [[10.0, 30.0]] * 3, even: [[9.4, 28.0], [9.4, 28.2], [9.4, 27.8]],
        typical: [[10.0, 20.0], [10.1, 20.0], [10.05, 20.2]],
    }  # fmt: skip
    found = session._over_splits(us)
    assert found[even] == pytest.approx([18.7, 18.8, 18.6])
    assert found[typical] == pytest.approx([15.0, 15.05, 15.125])
    us[even] = [[10.11, 15.0]] * 3  # More than 1% slower on one of them.
    assert session._over_splits(us)[even] == pytest.approx([20.22] * 3)
    us[even] = [[10.09, 15.0]] * 3
    assert session._over_splits(us)[even] == pytest.approx([12.545] * 3)


def test_without_splits_samples_stay_as_they_are():
    tile = make("tile")
    found = session._over_splits({ATEN: [[10.0], [11.0], [12.0]], tile: [[5.0], [7.0], [6.0]]})
    assert found[ATEN] == [10.0, 11.0, 12.0]
    assert found[tile] == pytest.approx([5.0, 7.0, 6.0])
