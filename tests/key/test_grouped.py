"""Products of groups in the vocabulary: which size the groups divide, and how much work they are together."""

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


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ({"ragged": "n"}, "divide one of the sizes m, k, got 'n'"),
        ({"groups": -1}, "groups must be an integer of at least 0"),
        ({"dtype": "fp32"}, "cannot multiply fp32 by fp32"),
        ({"out_dtype": "fp32"}, "the output has the dtype of A, bf16, not fp32"),
        ({"bias": "1d"}, "takes none"),
        ({"fusion": "scale"}, "no scale can be fused"),
        ({"batch": 2}, "only bmm takes a batch"),
        ({"scales": "row"}, "only scaled_mm and grouped_mm of fp8 have scales"),
        ({"fast_accum": True}, "only scaled_mm and grouped_mm of fp8 have scales"),
        ({"dtype": "fp8_e5m2"}, "cannot multiply fp8_e5m2 by fp8_e5m2"),
        ({"dtype": "fp8_e4m3", "scales": "tensor"}, "have scales of rows and columns, got 'tensor'"),
        ({"dtype": "fp8_e4m3", "ragged": "k"}, "groups of fp8 divide M"),
        ({"dtype": "fp8_e4m3", "out_dtype": "fp16"}, "the output of groups of fp8 is bf16, not fp16"),
        ({"dtype": "fp8_e4m3", "layout": "nn"}, "B lies by columns in memory, not row"),
        ({"dtype": "fp8_e4m3", "layout": "tt"}, "A lies by rows in memory, not col"),
    ],
)
def test_what_is_no_product_of_groups_is_refused_with_the_reason(rest, reason):
    with pytest.raises(InputError, match=reason):
        grouped(**rest)


@pytest.mark.parametrize("rest", [{"groups": 4}, {"ragged": "m"}])
def test_no_other_op_has_groups(rest):
    with pytest.raises(InputError, match="only grouped_mm has groups"):
        Problem.gemm("mm", m=16, n=64, k=32, **rest)


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
def test_all_groups_together_do_the_work_of_one_product(m, n, k, groups):
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
