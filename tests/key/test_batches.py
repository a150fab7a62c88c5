"""Batches in the key: sizes that must agree, and the classes of their layouts."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gemmdb.errors import InputError
from gemmdb.generators.measure.literals import literal
from gemmdb.key.layout import Layout, classify
from gemmdb.key.operands import Bias, Operand, TensorInfo
from gemmdb.key.problem import Problem

SIZES = st.integers(1, 12)
GEMM = Problem.gemm


def stored(batch, rows, columns, dtype="bf16"):
    return TensorInfo(dtype, (batch, rows, columns), (rows * columns, columns, 1))


def test_batches_must_agree():
    with pytest.raises(InputError, match="the batch differs"):
        Problem.from_tensors("bmm", stored(2, 3, 4), stored(3, 4, 5))
    with pytest.raises(InputError, match="three dimensions"):
        Problem.from_tensors("bmm", TensorInfo("bf16", (3, 4), (4, 1)), stored(3, 4, 5))
    with pytest.raises(InputError, match="two dimensions"):
        Problem.from_tensors("mm", stored(1, 3, 4), stored(1, 4, 5))
    with pytest.raises(InputError, match="addmm takes a bias"):
        replace(GEMM("bmm", m=3, n=4, k=5), bias=Bias("1d", "bf16", 1))


@pytest.mark.parametrize(
    ("flags", "a", "b"),
    [
        ({"interleaved": "ab"}, "row-padded:8:interleaved", "col-padded:8:interleaved"),
        ({"interleaved": "a", "layout": "nn"}, "row-padded:8:interleaved", "row:8"),
        ({"interleaved": "b", "layout": "tn"}, "col:8", "row-padded:8:interleaved"),
        ({"interleaved": "ab", "batch": 1}, "row:8", "col:8"),
        ({"interleaved": "a", "m": 1}, "row:8", "col:8"),
    ],
)
def test_interleaved_matrices_are_described_by_a_flag(flags, a, b):
    problem = GEMM("bmm", **{"batch": 4, "m": 16, "n": 32, "k": 64} | flags)
    assert (problem.a.text, problem.b.text) == (f"bf16:{a}", f"bf16:{b}")


def test_only_a_batch_has_a_layout_of_a_batch():
    weight = Operand("bf16", Layout("col", 8, "broadcast"))
    for problem in (GEMM("mm", m=8, n=8, k=8), GEMM("bmm", m=8, n=8, k=8)):
        with pytest.raises(InputError, match="has a single matrix"):
            replace(problem, b=weight)
    with pytest.raises(InputError, match="malformed operand"):
        Operand.parse("bf16:row:8:")


@given(
    batch=st.integers(2, 5), rows=SIZES, columns=SIZES, gap=st.integers(0, 9), space=st.integers(0, 9),
    offset=st.integers(0, 9), way=st.sampled_from(["", "broadcast", "interleaved"]), turned=st.booleans(),
)  # fmt: skip
def test_every_real_batch_has_a_twin(batch, rows, columns, gap, space, offset, way, turned):
    inner = rows if turned else columns
    leading = inner + gap if way != "interleaved" else (inner + gap) * batch + space
    step = {"": leading * (columns if turned else rows) + space, "broadcast": 0, "interleaved": inner + gap}[way]
    strides = (step, 1, leading) if turned else (step, leading, 1)
    operand = Operand("bf16", classify((batch, rows, columns), strides, offset, "bf16"))
    assume(way != "broadcast" or operand.layout.batch == way)
    assert literal(operand, batch, rows, columns).operand == operand


def test_shapes_have_the_batch_and_none_is_empty():
    eight = replace(GEMM("bmm", batch=8, m=2, n=3, k=5), b=Operand("bf16", Layout("col", 1, "broadcast")))
    assert eight.shapes == ((8, 2, 5), (8, 5, 3), (8, 2, 3))
    assert GEMM("bmm", batch=0, m=2, n=3, k=5).empty
    assert not eight.empty
