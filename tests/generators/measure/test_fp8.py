"""Products of fp8 operands with scales as the generator makes them: data, reference, tolerance."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from gemmdb.generators.measure.correctness import reference
from gemmdb.generators.measure.cuda import bench
from gemmdb.generators.measure.operands import Operands, blank, operands
from gemmdb.generators.measure.program import SPELLINGS, Product
from gemmdb.generators.measure.tolerance import acceptable, tolerance
from gemmdb.key.operands import Numerics
from gemmdb.key.problem import Problem

CPU = torch.device("cpu")


def scaled(m: int = 24, n: int = 48, k: int = 256, **rest) -> Problem:
    return Problem.gemm("scaled_mm", m=m, n=n, k=k, **rest)


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("scales", ["tensor", "row"])
def test_data_are_quantised_to_the_whole_range_of_the_dtype(dtype, scales):
    made = operands(scaled(dtype=dtype, scales=scales), CPU, 1)
    most, sizes = torch.finfo(made.a.dtype).max, [(), ()] if scales == "tensor" else [(24, 1), (1, 48)]
    assert made.scale_a.dtype == made.scale_b.dtype == torch.float32
    assert [tuple(one.shape) for one in (made.scale_a, made.scale_b)] == sizes
    for tensor, dim in ((made.a, 1), (made.b, 0)):
        assert (tensor.float().abs().amax((0, 1) if scales == "tensor" else dim) == most).all()
    # What it stands for is random data whose products are near 1.
    assert 0.5 < exact_of(made).std() < 2


@pytest.mark.parametrize(("m", "n", "k"), [(24, 384, 512), (1, 144, 400), (130, 48, 128)])
def test_blocks_have_scales_of_their_own(m, n, k):
    problem = scaled(m, n, k, scales="block", out_dtype="fp32")
    made, again = operands(problem, CPU, 1), blank(problem, CPU)
    deep, wide = -(-k // 128), -(-n // 128)
    assert (tuple(made.scale_a.shape), tuple(made.scale_b.shape)) == ((m, deep), (deep, wide))
    # As torch wants them: along M, and along K with room for a multiple of four.
    assert made.scale_a.stride() == again.scale_a.stride() == (1, m)
    assert made.scale_b.stride() == again.scale_b.stride() == (1, -(-deep // 4) * 4)
    a, b = made.a.double(), made.b.double()
    exact = torch.zeros(m, n, dtype=torch.float64)
    for row, column in product(range(deep), range(wide)):
        inner, outer = slice(128 * row, 128 * row + 128), slice(128 * column, 128 * column + 128)
        assert a[:, inner].abs().amax() == b[inner, outer].abs().amax() == 448
        part = a[:, inner] @ b[inner, outer]
        exact[:, outer] += part * made.scale_a[:, row, None].double() * made.scale_b[row, column].double()
    expected = reference(problem, made)
    assert expected.error(exact) < 1e-12
    assert 0.5 < exact.std() < 4
    if deep > 1:
        moved = replace(made, scale_b=made.scale_b.roll(1, 0))
        assert reference(problem, moved).error(exact) > tolerance(problem)


def exact_of(made: Operands) -> torch.Tensor:
    return (made.a.double() * made.scale_a) @ (made.b.double() * made.scale_b)


@pytest.mark.parametrize("scales", ["tensor", "row"])
def test_a_scale_that_is_left_out_or_taken_twice_is_wrong(scales):
    problem = scaled(scales=scales, out_dtype="fp32")
    made = operands(problem, CPU, 1)
    expected, exact = reference(problem, made), exact_of(made)
    assert expected.error(exact) < 1e-12
    for wrong in (exact / made.scale_a, exact * made.scale_b, exact * 1.05):
        assert expected.error(wrong) > tolerance(problem)


@pytest.mark.parametrize("m", [2, 3, 8, 128])
@pytest.mark.parametrize("k", [64, 14336])
def test_the_scale_of_another_row_or_column_is_wrong(m, k):
    problem = scaled(m=m, n=16, k=k, scales="row", fast_accum=True)
    made = operands(problem, CPU, 1)
    expected, sums = reference(problem, made), made.a.double() @ made.b.double()
    a, b = made.scale_a, made.scale_b
    wrong = [(a[0], b), (a, b[:, :1])]
    wrong += [(a.roll(shift, 0), b) for shift in (1, 16, 64) if shift % m]
    wrong += [(a, b.roll(shift, 1)) for shift in (1, 16, 64) if shift % 16]
    assert all(expected.error(sums * one * other) > 2 * tolerance(problem) for one, other in wrong)


def test_rows_of_a_sample_have_their_own_scales():
    problem = scaled(m=4000, n=16, k=16, scales="row", out_dtype="fp32")
    made = operands(problem, CPU, 1)
    few = reference(replace(problem, n=2**14, k=2**14), made)
    assert 2 <= len(few.rows) < 4000
    exact = exact_of(made)
    assert (exact[few.rows] - few.exact).abs().max() < 1e-12


def rounded(value: torch.Tensor, bits: int) -> torch.Tensor:
    """`value` cut off after as many bits, as Hopper's matrix unit leaves its sums."""
    mantissa, exponent = torch.frexp(value)
    return torch.ldexp((mantissa * 2**bits).trunc() / 2**bits, exponent)


def in_the_matrix_unit(made: Operands, promoted: int, bits: int) -> torch.Tensor:
    """The product whose sums keep `bits` bits after each 32 products, and are added in fp32 after `promoted`."""
    a, b = made.a.double(), made.b.double()
    whole = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    for begin in range(0, a.shape[1], promoted):
        part = torch.zeros_like(whole)
        for at in range(begin, min(begin + promoted, a.shape[1]), 32):
            part = rounded(part + a[:, at : at + 32] @ b[at : at + 32], bits)
        whole = (whole + part).float().double()
    return whole * made.scale_a * made.scale_b


@pytest.mark.parametrize("k", [64, 1024, 4096, 14336])
@pytest.mark.parametrize("fast", [False, True])
def test_sums_of_14_bits_are_tolerated_and_those_of_fewer_are_not(k, fast):
    problem = scaled(m=16, n=32, k=k, fast_accum=fast, out_dtype="fp32")
    made = operands(problem, CPU, 1)
    expected, promoted = reference(problem, made), k if fast else 128
    assert expected.error(in_the_matrix_unit(made, promoted, 14)) <= tolerance(problem)
    assert expected.error(in_the_matrix_unit(made, promoted, 8)) > tolerance(problem)


def test_a_fast_accumulation_is_given_more_and_only_where_k_is_long():
    long, short = scaled(k=14336, out_dtype="fp32"), scaled(k=64, out_dtype="fp32")
    fast = Numerics(fast=True)
    assert tolerance(replace(long, numerics=fast)) > 5 * tolerance(long)
    assert tolerance(replace(short, numerics=fast)) == tolerance(short)
    assert tolerance(replace(long, out="bf16")) < 0.03


def test_the_last_step_of_k_must_be_summed():
    problem = scaled(k=4096, fast_accum=True)
    made = operands(problem, CPU, 1)
    whole, short = (
        SPELLINGS["scaled_mm"](problem, made.a[:, :k], made.b[:k], (made.scale_a, made.scale_b), None)
        for k in (4096, 4064)
    )
    assert reference(problem, made).error(whole) <= 0.01
    assert not acceptable(problem, reference(problem, made).error(short), 0.005)


def experts(m: int = 40, n: int = 48, k: int = 256, groups: int = 5, **rest) -> Problem:
    return Problem.gemm("grouped_mm", m=m, n=n, k=k, groups=groups, dtype="fp8_e4m3", **rest)


def product_of_groups(made: Operands, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """The rows of all groups in float64, with these scales."""
    found, start = torch.zeros(len(made.a), made.b.shape[2], dtype=torch.float64), 0
    for group, end in enumerate(made.offsets.tolist()):
        rows = slice(start, end)
        found[rows] = (made.a[rows].double() * scale_a[rows, None]) @ (made.b[group].double() * scale_b[group])
        start = end
    return found


@pytest.mark.parametrize("groups", [5, 30])
def test_groups_of_fp8_have_a_scale_for_each_row_and_for_each_column_of_each_group(groups):
    problem = experts(groups=groups)
    made = operands(problem, CPU, 1)
    assert (tuple(made.scale_a.shape), tuple(made.scale_b.shape)) == ((40,), (groups, 48)) == problem.scale_sizes
    assert (made.a.float().abs().amax(1) == torch.finfo(made.a.dtype).max).all()
    assert (made.b.float().abs().amax(1) == torch.finfo(made.b.dtype).max).all()
    assert blank(problem, CPU).scale_b.shape == made.scale_b.shape
    for one in bench.divided(problem, made):
        expected, exact = reference(problem, one), product_of_groups(one, one.scale_a, one.scale_b)
        assert expected.error(exact) < 1e-12
        assert 0.5 < exact.std() < 4


@pytest.mark.parametrize("shift", [1, 2, 16])
def test_scales_of_another_row_column_or_group_are_wrong(shift):
    problem = experts(fast_accum=True, n=48)
    made = operands(problem, CPU, 1)
    expected, a, b = reference(problem, made), made.scale_a, made.scale_b
    for wrong in ((a.roll(shift), b), (a, b.roll(shift, 0)), (a, b.roll(shift, 1)), (a, b[:1].expand(5, -1))):
        assert expected.error(product_of_groups(made, *wrong)) > 2 * tolerance(problem)


def test_the_module_of_groups_of_fp8_takes_its_tensors_in_this_order(monkeypatch):
    """torch multiplies them on a GPU alone."""
    problem = experts(fast_accum=True)
    made = operands(problem, CPU, 1)

    def multiply(a, b, scale_a, scale_b, offs, out_dtype, use_fast_accum):
        given = replace(made, a=a, b=b, offsets=offs)
        return product_of_groups(given, scale_a, scale_b).to(out_dtype) if use_fast_accum else None

    monkeypatch.setattr(torch, "_scaled_grouped_mm", multiply)
    module = Product(problem, made)
    assert [tuple(one.shape) for one in module.inputs] == [(40, 256), (40,), (5,), (5, 48, 256), (5, 48)]
    assert reference(problem, made).error(module(*module.inputs)) <= tolerance(problem)
    assert list(made.named) == ["A", "B", "scale_a", "scale_b", "offsets"]
