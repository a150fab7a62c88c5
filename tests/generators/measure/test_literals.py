"""Strides and offsets of layout classes: what is made has the class that was asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdb.errors import InputError
from gemmdb.generators.measure.literals import literal, literal_bias
from gemmdb.key.layout import Layout, classify
from gemmdb.key.operands import Bias, Operand

DTYPES = st.sampled_from(["fp32", "bf16", "int8", "uint8"])
SIZES = st.integers(1, 70)


@given(DTYPES, SIZES, SIZES, st.integers(0, 40), st.integers(0, 24), st.booleans())
def test_every_real_matrix_has_a_twin(dtype, rows, columns, gap, offset, transposed):
    strides = (1, rows + gap) if transposed else (columns + gap, 1)
    operand = Operand(dtype, classify((rows, columns), strides, offset, dtype))
    assert literal(operand, rows, columns).operand == operand


@pytest.mark.parametrize("sizes", [(0, 8), (8, 0), (1, 1), (1, 9), (9, 1)])
def test_degenerate_sizes(sizes):
    operand = Operand("fp32", classify(sizes, (max(sizes[1], 1), 1), 0, "fp32"))
    assert literal(operand, *sizes).operand == operand


@pytest.mark.parametrize("order", ["broadcast", "strided"])
def test_classes_without_rows_in_memory(order):
    operand = Operand("fp32", Layout(order, 1))
    assert literal(operand, 6, 7).operand == operand


def test_an_impossible_class_is_named():
    with pytest.raises(InputError, match=r"\[4, 3\].*fp32:row:4"):
        literal(Operand("fp32", Layout("row", 4)), 4, 3)


@pytest.mark.parametrize(("kind", "sizes"), [("1d", (24,)), ("full", (6, 24)), ("column", (6, 1))])
def test_bias(kind, sizes):
    align = 8 if kind != "column" else 1
    tensor = literal_bias(Bias(kind, "bf16", align), 6, 24)
    assert tensor.sizes == sizes


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from(["1d", "full"]))
def test_a_bias_can_be_misaligned(align, kind):
    tensor = literal_bias(Bias(kind, "bf16", align), 6, 24)
    assert classify((1, 24) if kind == "1d" else (6, 24), (24, 1), tensor.offset, "bf16").align == align
