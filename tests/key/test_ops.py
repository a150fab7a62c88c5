"""What holds for every op in the key: its text and keys stay, other texts are refused, work is counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdb.errors import InputError
from gemmdb.kernels.registry import INDUCTOR_ALONE, KERNELS
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Bias, Numerics, Operand, TensorInfo
from gemmdb.key.ops import OPS
from gemmdb.key.problem import Problem

GEMM = Problem.gemm
SIZES = st.integers(1, 70)
KNOWN = [
    (
        GEMM("mm", m=16, n=4096, k=4096),
        "mm m=16 n=4096 k=4096 a=bf16:row:8 b=bf16:col:8 out=bf16 bias=none scalars=unit fusion=none fp32=ieee acc=fp32"
        " reduced=1 deterministic=0 constant=0",
        (2761022176758289607, -8703797595669035617),
    ),
    (
        GEMM("addmm", m=17, n=768, k=3072, dtype="fp32", tf32=True, bias="full", layout="nn"),
        "addmm m=17 n=768 k=3072 a=fp32:row:4 b=fp32:row:4 out=fp32 bias=full:fp32:4 scalars=unit fusion=none fp32=tf32"
        " acc=fp32 reduced=0 deterministic=0 constant=0",
        (8028711257133398255, 7811797080582025885),
    ),
    (
        GEMM("int_mm", m=32, n=1024, k=1024, fusion="scale"),
        "int_mm m=32 n=1024 k=1024 a=int8:row:16 b=int8:col:16 out=bf16 bias=none scalars=unit fusion=scale fp32=ieee"
        " acc=int32 reduced=0 deterministic=0 constant=0",
        (-2851230626064513527, -3252825417137539275),
    ),
    (
        GEMM(
            "mixed_mm", m=8, n=28672, k=8192, dtype="fp16", weight_dtype="uint8", fusion="scale", constant_weight=True
        ),
        "mixed_mm m=8 n=28672 k=8192 a=fp16:row:8 b=uint8:col:16 out=fp16 bias=none scalars=unit fusion=scale fp32=ieee"
        " acc=fp32 reduced=1 deterministic=0 constant=1",
        (1603748191937709216, 2729445066446064672),
    ),
    (
        replace(GEMM("mm", m=7, n=1001, k=777, fusion="pointwise"), a=Operand("bf16", Layout("row-padded", 4))),
        "mm m=7 n=1001 k=777 a=bf16:row-padded:4 b=bf16:col:1 out=bf16 bias=none scalars=unit fusion=pointwise"
        " fp32=ieee acc=fp32 reduced=1 deterministic=0 constant=0",
        (-7320931416204573644, -5963475392637449229),
    ),
    (
        GEMM("bmm", batch=8, m=16, n=64, k=32),
        "bmm batch=8 m=16 n=64 k=32 a=bf16:row:8 b=bf16:col:8 out=bf16 bias=none scalars=unit fusion=none fp32=ieee"
        " acc=fp32 reduced=1 deterministic=0 constant=0",
        (398846198604720952, 4704970266830218440),
    ),
    (
        GEMM("scaled_mm", m=16, n=64, k=32),
        "scaled_mm m=16 n=64 k=32 a=fp8_e4m3:row:16 b=fp8_e4m3:col:16 out=bf16 bias=none scalars=unit fusion=none"
        " fp32=ieee acc=fp32 reduced=0 deterministic=0 constant=0 scales=tensor fast=0",
        (7611889790269407975, 8819782471592254901),
    ),
    (
        GEMM("grouped_mm", m=16, n=64, k=32),
        "grouped_mm m=16 n=64 k=32 a=bf16:row:8 b=bf16:col:8 out=bf16 bias=none scalars=unit fusion=none fp32=ieee"
        " acc=fp32 reduced=1 deterministic=0 constant=0 groups=8 ragged=m",
        (-1931761060684522004, -8037713692959490307),
    ),
    (
        GEMM("grouped_mm", m=16, n=64, k=32, dtype="fp8_e4m3", fast_accum=True),
        "grouped_mm m=16 n=64 k=32 a=fp8_e4m3:row:16 b=fp8_e4m3:col:16 out=bf16 bias=none scalars=unit fusion=none"
        " fp32=ieee acc=fp32 reduced=0 deterministic=0 constant=0 scales=row fast=1 groups=8 ragged=m",
        (-3404619192179986201, 3070925328501185016),
    ),
]
"""A problem of each op with its text and keys as tables have them: they must never change."""


@pytest.mark.parametrize(("problem", "text", "keys"), KNOWN, ids=lambda value: getattr(value, "op", None))
def test_texts_and_keys_never_change(problem, text, keys):
    assert problem.text == text
    assert f"{problem.head} {problem.family}" == text
    assert (problem.key, problem.family_key) == keys
    assert Problem.parse(text) == problem


def test_every_op_is_among_them():
    assert {problem.op for problem, _, _ in KNOWN} == set(OPS)


def _scaled(**rest):
    return GEMM("scaled_mm", m=16, n=64, k=32, **rest)


def _bmm(batch=8):
    return GEMM("bmm", batch=batch, m=16, n=64, k=32)


def _grouped(**rest):
    return GEMM("grouped_mm", m=16, n=64, k=32, **rest)


APART = {
    "bmm": [_bmm(), _bmm(9), GEMM("mm", m=16, n=64, k=32)],
    "scaled_mm": [
        _scaled(), _scaled(scales="row"), _scaled(fast_accum=True), _scaled(scales="row", fast_accum=True),
        _scaled(dtype="fp8_e5m2"), _scaled(weight_dtype="fp8_e5m2"), _scaled(out_dtype="fp16"), _scaled(bias="1d"),
        _scaled(fusion="pointwise"), _scaled(constant_weight=True),
    ],
    "grouped_mm": [
        _grouped(), _grouped(groups=9), _grouped(ragged="k"), _grouped(dtype="fp16"), _grouped(layout="nn"),
        _grouped(fusion="pointwise"), _grouped(constant_weight=True), GEMM("mm", m=16, n=64, k=32),
        _grouped(dtype="fp8_e4m3"), _grouped(dtype="fp8_e4m3", fast_accum=True), _scaled(scales="row"),
    ],
}  # fmt: skip
"""By op, problems that differ in one thing each."""


@pytest.mark.parametrize("op", APART)
def test_everything_that_tells_gemms_apart_is_in_the_key(op):
    assert len({problem.key for problem in APART[op]}) == len(APART[op])
    assert all(Problem.parse(problem.text) == problem for problem in APART[op])


def test_the_family_is_everything_but_the_sizes():
    """The batch is one of them."""
    assert len({problem.family_key for problem in APART["scaled_mm"]}) == len(APART["scaled_mm"])
    assert _bmm().family_key == _bmm(9).family_key


VALID = {
    "bmm": replace(_bmm(), b=Operand("bf16", Layout("col", 8, "broadcast"))).text,
    "scaled_mm": _scaled().text,
    "grouped_mm": _grouped().text,
    "grouped_mm of fp8": _grouped(dtype="fp8_e4m3").text,
}
SPOILT = {
    "bmm": [
        ("bmm batch=8", "mm batch=8"), ("bmm batch=8", "mm batch=1"), ("bmm batch=8", "bmm"), ("batch=8", "batch=08"),
        ("batch=8", "batch=1"), ("batch=8", "batch=4294967296"),
    ],
    "scaled_mm": [
        (" scales=tensor fast=0", ""), (" fast=0", ""), ("scales=tensor", "scales=none"), ("scales=tensor", "scales="),
        ("fast=0", "fast=2"), ("scales=tensor fast=0", "fast=0 scales=tensor"), ("scaled_mm", "mm"),
        ("fast=0", "fast=0 "), ("b=fp8_e4m3:col", "b=fp8_e4m3:row"), ("b=fp8_e4m3", "b=int8"),
        ("a=fp8_e4m3", "a=fp8_e4m3fnuz"), ("out=bf16", "out=fp8_e4m3"), ("scalars=unit", "scalars=general"),
        ("fusion=none", "fusion=scale"), ("bias=none", "bias=full:bf16:8"), ("bias=none", "bias=1d:fp64:2"),
        ("fp32=ieee", "fp32=tf32"),
    ],
    "grouped_mm": [
        (" groups=8 ragged=m", ""), (" ragged=m", ""), ("ragged=m", "ragged=n"), ("ragged=m", "ragged="),
        ("groups=8 ragged=m", "ragged=m groups=8"), ("groups=8", "groups=08"), ("groups=8", "groups=4294967296"),
        ("groups=8", "groups=-1"), ("grouped_mm", "mm"), ("grouped_mm m", "grouped_mm batch=2 m"),
        ("out=bf16", "out=fp32"), ("a=bf16", "a=fp32"), ("b=bf16", "b=fp16"),
        ("b=bf16:col:8", "b=bf16:col:8:broadcast"),
        ("scalars=unit", "scalars=general"), ("fusion=none", "fusion=scale"), ("bias=none", "bias=1d:bf16:8"),
        (" groups=8", " scales=tensor fast=0 groups=8"), (" groups=8", " scales=row fast=0 groups=8"),
    ],
    "grouped_mm of fp8": [
        (" scales=row fast=0", ""), ("scales=row", "scales=tensor"), ("scales=row", "scales=block"),
        ("scales=row fast=0 groups=8 ragged=m", "groups=8 ragged=m scales=row fast=0"), ("ragged=m", "ragged=k"),
        ("b=fp8_e4m3:col", "b=fp8_e4m3:row"), ("b=fp8_e4m3", "b=fp8_e5m2"), ("out=bf16", "out=fp16"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("op", "change"), [(op, change) for op, changes in SPOILT.items() for change in changes])
def test_other_texts_are_refused(op, change):
    text = VALID[op]
    assert Problem.parse(text).text == text
    assert change[0] in text
    with pytest.raises(InputError):
        Problem.parse(text.replace(*change))


@pytest.mark.parametrize("op", sorted({*OPS} - {"scaled_mm"}))
def test_the_other_ops_have_neither_scales_nor_a_fast_accumulation(op):
    for rest in ({"scales": "row"}, {"fast_accum": True}):
        with pytest.raises(InputError, match="only scaled_mm and grouped_mm of fp8 have scales"):
            GEMM(op, m=1, n=8, k=8, **rest)
    text = GEMM(op, m=1, n=8, k=8).text
    with pytest.raises(InputError):
        Problem.parse(f"{text} scales=tensor fast=0")


@given(batch=st.integers(0, 9), m=SIZES, n=SIZES, k=SIZES)
def test_gemm_is_from_tensors_of_dense_batches(batch, m, n, k):
    a, b = TensorInfo("bf16", (batch, m, k), (m * k, k, 1)), TensorInfo("bf16", (batch, k, n), (k * n, n, 1))
    assert GEMM("bmm", batch=batch, m=m, n=n, k=k, layout="nn") == Problem.from_tensors("bmm", a, b)


@given(m=SIZES, n=SIZES, k=SIZES, kind=st.sampled_from(["tensor", "row"]))
def test_gemm_is_from_tensors_of_an_fp8_linear(m, n, k, kind):
    a, b = TensorInfo("fp8_e4m3", (m, k), (k, 1)), TensorInfo("fp8_e4m3", (k, n), (1, k))
    assert GEMM("scaled_mm", m=m, n=n, k=k, scales=kind) == Problem.from_tensors("scaled_mm", a, b, scales=kind)


@dataclass(frozen=True)
class Work:
    """Floating-point operations and bytes of memory traffic."""

    flops: int
    bytes: int


_MOVED = 16 * 32 + 32 * 64 + 2 * 16 * 64
WORK: Mapping[str, tuple[Problem, Work]] = {
    "a batch": (GEMM("bmm", batch=8, m=2, n=3, k=5), Work(8 * 2 * 2 * 3 * 5, 8 * 2 * (2 * 5 + 5 * 3 + 2 * 3))),
    "one of them": (GEMM("bmm", batch=1, m=2, n=3, k=5), Work(2 * 2 * 3 * 5, 2 * (2 * 5 + 5 * 3 + 2 * 3))),
    "a weight for all, which is read once": (
        replace(GEMM("bmm", batch=8, m=2, n=3, k=5), b=Operand("bf16", Layout("col", 1, "broadcast"))),
        Work(8 * 2 * 2 * 3 * 5, 2 * (8 * 2 * 5 + 5 * 3 + 8 * 2 * 3)),
    ),
    "two scales": (_scaled(), Work(2 * 16 * 64 * 32, _MOVED + 4 * 2)),
    "row scales": (_scaled(scales="row"), Work(2 * 16 * 64 * 32, _MOVED + 4 * (16 + 64))),
}


@pytest.mark.parametrize("name", WORK)
def test_work_counts_batches_and_scales(name):
    problem, work = WORK[name]
    assert Work(problem.flops, problem.bytes) == work


def test_scales_of_blocks():
    problem = GEMM("scaled_mm", m=16, n=144, k=400, scales="block")
    assert problem.text.endswith("scales=block fast=0")
    assert Problem.parse(problem.text) == problem
    assert problem.scale_sizes == ((16, 4), (4, 2))
    assert problem.bytes - GEMM("scaled_mm", m=16, n=144, k=400).bytes == 4 * (16 * 4 + 4 * 2 - 2)


def test_padded_rows_are_rows():
    problem = replace(
        _scaled(), a=Operand("fp8_e5m2", Layout("row-padded", 16)), b=Operand("fp8_e4m3", Layout("col-padded", 1)),
        bias=Bias("1d", "fp16", 1), numerics=Numerics(fast=True),
    )  # fmt: skip
    assert Problem.parse(problem.text) == problem


def test_the_ops_that_inductor_alone_solves_are_those_without_a_kernel_of_ours():
    ours = {op for (backend, name), kernel in KERNELS.items() for op in kernel.ops
            if backend in ("triton", "cutlass") and not kernel.emitted}  # fmt: skip
    assert set(OPS) - ours == set(INDUCTOR_ALONE)
