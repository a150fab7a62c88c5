"""Grouped GEMMs in the key: which size the groups divide, and how much work they are together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdb.errors import InputError
from gemmdb.kernels import names
from gemmdb.key.operands import TensorInfo
from gemmdb.key.problem import Problem

SIZES = st.integers(1, 300)


def grouped(m: int = 16, n: int = 64, k: int = 32, **rest) -> Problem:
    return Problem.gemm("grouped_mm", m=m, n=n, k=k, **rest)


def test_literal_tensors_say_which_size_is_divided():
    a, experts = TensorInfo("bf16", (16, 32), (32, 1)), TensorInfo("bf16", (8, 32, 64), (2048, 1, 32))
    assert Problem.from_tensors("grouped_mm", a, experts) == grouped()
    turned, b = TensorInfo("bf16", (16, 32), (1, 16)), TensorInfo("bf16", (32, 64), (64, 1))
    found = Problem.from_tensors("grouped_mm", turned, b, groups=8, ragged="k")
    assert found == grouped(ragged="k", layout="tn")
    with pytest.raises(InputError, match="K differs"):
        Problem.from_tensors("grouped_mm", TensorInfo("bf16", (16, 48), (48, 1)), experts)
    with pytest.raises(InputError, match="two dimensions"):
        Problem.from_tensors("grouped_mm", experts, experts)


def test_groups_that_are_not_dense_are_no_problem():
    one = TensorInfo("bf16", (8, 32, 64), (0, 1, 32))
    with pytest.raises(InputError, match="follow each other"):
        Problem.from_tensors("grouped_mm", TensorInfo("bf16", (16, 32), (32, 1)), one)


@given(SIZES, SIZES, SIZES, st.integers(1, 40))
def test_all_groups_together_do_the_work_of_one_gemm(m, n, k, groups):
    by_rows, by_depth = grouped(m, n, k, groups=groups), grouped(m, n, k, groups=groups, ragged="k")
    assert by_rows.flops == by_depth.flops == 2 * m * n * k
    assert by_rows.shapes == ((m, k), (groups, k, n), (m, n))
    assert by_depth.shapes == ((m, k), (k, n), (groups, m, n))
    # As many weights are read as there are rows to use them, at most.
    assert by_rows.bytes == 2 * (m * k + min(groups, m) * k * n + m * n)
    assert by_depth.bytes == 2 * (m * k + k * n + groups * m * n)


@given(SIZES, SIZES, SIZES, st.integers(1, 40))
def test_fp8_takes_half_the_bytes_and_has_scales(m, n, k, groups):
    problem = grouped(m, n, k, groups=groups, dtype="fp8_e4m3")
    assert (problem.scaled, problem.scales, problem.out) == (True, "row", "bf16")
    assert problem.scale_sizes == ((m,), (groups, n))
    assert problem.bytes == m * k + min(groups, m) * k * n + 2 * m * n + 4 * (m + groups * n)
    assert not grouped(m, n, k, groups=groups).scaled


@pytest.mark.parametrize("sizes", [{"groups": 0}, {"m": 0}, {"n": 0}, {"k": 0}])
def test_without_a_size_there_is_nothing_to_multiply(sizes):
    assert grouped(**sizes).empty
    assert not grouped().empty


def test_its_short_name_says_how_many_groups_there_are():
    assert names.short(grouped()) == "grouped_mm 16x64x32 bf16 8 groups of M"
    assert names.short(grouped(ragged="k", groups=3)) == "grouped_mm 16x64x32 bf16 3 groups of K"
