"""Products of fp8 operands with scales in the vocabulary: what the key says of them, and what it refuses."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdb.errors import InputError
from gemmdb.kernels.registry import INDUCTOR_ALONE, KERNELS
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Bias, Numerics, Operand, TensorInfo
from gemmdb.key.ops import OPS
from gemmdb.key.problem import Problem

SIZES = st.integers(1, 70)
TEXT = (
    "scaled_mm m=16 n=64 k=32 a=fp8_e4m3:row:16 b=fp8_e4m3:col:16 out=bf16 bias=none scalars=unit fusion=none fp32=ieee"
    " acc=fp32 reduced=0 deterministic=0 constant=0 scales=tensor fast=0"
)

KEY, FAMILY_KEY = 7611889790269407975, 8819782471592254901
"""As tables have them: they must never change."""


def scaled(m: int = 16, n: int = 64, k: int = 32, **rest) -> Problem:
    return Problem.gemm("scaled_mm", m=m, n=n, k=k, **rest)


def test_the_text_ends_with_the_scales_and_the_accumulation():
    problem = scaled()
    assert problem.text == TEXT
    assert Problem.parse(TEXT) == problem
    assert f"{problem.head} {problem.family}" == problem.text
    assert (problem.key, problem.family_key) == (KEY, FAMILY_KEY)


def test_everything_that_tells_products_apart_is_in_the_key_and_the_family():
    others = [
        scaled(scales="row"), scaled(fast_accum=True), scaled(scales="row", fast_accum=True), scaled(dtype="fp8_e5m2"),
        scaled(weight_dtype="fp8_e5m2"), scaled(out_dtype="fp16"), scaled(bias="1d"), scaled(fusion="pointwise"),
        scaled(constant_weight=True),
    ]  # fmt: skip
    found = [scaled(), *others]
    assert len({problem.key for problem in found}) == len({problem.family_key for problem in found}) == len(found)
    assert all(Problem.parse(problem.text) == problem for problem in found)


CHANGES = [
    (" scales=tensor fast=0", ""), (" fast=0", ""), ("scales=tensor", "scales=block"), ("scales=tensor", "scales="),
    ("fast=0", "fast=2"), ("scales=tensor fast=0", "fast=0 scales=tensor"), ("scaled_mm", "mm"), ("fast=0", "fast=0 "),
    ("b=fp8_e4m3:col", "b=fp8_e4m3:row"), ("b=fp8_e4m3", "b=int8"), ("a=fp8_e4m3", "a=fp8_e4m3fnuz"),
    ("out=bf16", "out=fp8_e4m3"), ("scalars=unit", "scalars=general"), ("fusion=none", "fusion=scale"),
    ("bias=none", "bias=full:bf16:8"), ("bias=none", "bias=1d:fp64:2"), ("fp32=ieee", "fp32=tf32"),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_other_texts_are_refused(change):
    assert change[0] in TEXT
    with pytest.raises(InputError):
        Problem.parse(TEXT.replace(*change))


@pytest.mark.parametrize("op", ["mm", "addmm", "int_mm", "mixed_mm", "bmm"])
def test_the_other_ops_have_neither_scales_nor_a_fast_accumulation(op):
    for rest in ({"scales": "row"}, {"fast_accum": True}):
        with pytest.raises(InputError, match="only scaled_mm has scales"):
            Problem.gemm(op, m=1, n=8, k=8, **rest)
    text = Problem.gemm(op, m=1, n=8, k=8).text
    with pytest.raises(InputError):
        Problem.parse(f"{text} scales=tensor fast=0")


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ({"scales": "block"}, "one of the kinds tensor, row, got 'block'"),
        ({"dtype": "bf16"}, "cannot multiply bf16 by bf16"),
        ({"weight_dtype": "int8"}, "cannot multiply fp8_e4m3 by int8"),
        ({"weight_dtype": "fp8"}, "unknown dtype 'fp8'"),
        ({"out_dtype": "fp8_e4m3"}, "the output is one of bf16, fp16, fp32"),
        ({"out_dtype": "int32"}, "the output is one of"),
        ({"layout": "nn"}, "B lies by columns in memory, not row"),
        ({"layout": "tt"}, "A lies by rows in memory, not col"),
        ({"bias": "full"}, "a bias is 1d"),
        ({"fusion": "scale"}, "no scale can be fused"),
        ({"tf32": True}, "TF32 applies to fp32 inputs"),
        ({"batch": 2}, "only bmm takes a batch"),
    ],
)
def test_what_no_hardware_takes_is_refused_with_the_reason(rest, reason):
    with pytest.raises(InputError, match=reason):
        scaled(**rest)


@given(m=SIZES, n=SIZES, k=SIZES, kind=st.sampled_from(["tensor", "row"]))
def test_gemm_is_from_tensors_of_a_linear(m, n, k, kind):
    a, b = TensorInfo("fp8_e4m3", (m, k), (k, 1)), TensorInfo("fp8_e4m3", (k, n), (1, k))
    assert scaled(m, n, k, scales=kind) == Problem.from_tensors("scaled_mm", a, b, scales=kind)


def test_padded_rows_are_rows():
    problem = replace(
        scaled(), a=Operand("fp8_e5m2", Layout("row-padded", 16)), b=Operand("fp8_e4m3", Layout("col-padded", 1)),
        bias=Bias("1d", "fp16", 1), numerics=Numerics(fast=True),
    )  # fmt: skip
    assert Problem.parse(problem.text) == problem


def test_bytes_count_the_scales():
    moved = 16 * 32 + 32 * 64 + 2 * 16 * 64
    assert scaled().bytes == moved + 4 * 2
    assert scaled(scales="row").bytes == moved + 4 * (16 + 64)
    assert scaled().flops == 2 * 16 * 64 * 32


def test_the_ops_that_inductor_alone_solves_are_those_without_a_kernel_of_ours():
    ours = {op for (backend, name), kernel in KERNELS.items() for op in kernel.ops
            if backend in ("triton", "cutlass") and not name.startswith("inductor_")}  # fmt: skip
    assert set(OPS) - ours == set(INDUCTOR_ALONE)
