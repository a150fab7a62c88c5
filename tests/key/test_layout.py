"""Layout classes, and alignment: the examples of row S22 (docs/contributing), and what holds for every tensor."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gemmdb.errors import InputError
from gemmdb.key.layout import ALIASES, ITEM_SIZES, Layout, alignment, classify, contiguous, dtype_name
from gemmdb.key.operands import Operand

DTYPES = st.sampled_from(sorted(ITEM_SIZES))


@pytest.mark.parametrize(
    ("dtype", "sizes", "strides", "offset", "expected"),
    [
        ("fp16", (1, 2, 4), (0, 4, 1), 0, 4),
        ("fp16", (1, 4, 2), (0, 1, 4), 0, 4),
        ("fp16", (2, 4, 2), (23, 1, 4), 0, 1),
        ("fp16", (1, 2, 4), (0, 4, 1), 6, 2),
        ("fp16", (2, 2, 8), (32, 8, 1), 24, 8),
        ("fp32", (2, 2, 8), (32, 8, 1), 24, 4),
    ],
)
def test_s22_alignment(dtype, sizes, strides, offset, expected):
    assert alignment(sizes, strides, offset, dtype) == expected


@pytest.mark.parametrize(
    ("sizes", "strides", "offset", "expected"),
    [
        pytest.param((16, 64), (64, 1), 0, "row:8", id="dense"),
        pytest.param((16, 64), (1, 16), 0, "col:8", id="transposed"),
        pytest.param((16, 64), (72, 1), 0, "row-padded:8", id="padded leading dimension"),
        pytest.param((16, 64), (65, 1), 0, "row-padded:1", id="odd leading dimension"),
        pytest.param((16, 64), (192, 1), 64, "row-padded:8", id="K of a fused QKV projection"),
        pytest.param((16, 64), (192, 1), 65, "row-padded:1", id="a slice that starts at an odd element"),
        pytest.param((64, 16), (1, 192), 128, "col-padded:8", id="V of a fused QKV, transposed"),
        pytest.param((16, 60), (60, 1), 0, "row:4", id="rows of 120 bytes"),
        pytest.param((1, 64), (64, 1), 0, "row:8", id="one row"),
        pytest.param((1, 64), (7, 1), 0, "row:8", id="one row, its stride never used"),
        pytest.param((64, 1), (1, 1), 0, "row:8", id="one column"),
        pytest.param((64, 1), (8, 1), 0, "row-padded:1", id="one column out of eight"),
        pytest.param((16, 64), (0, 1), 0, "broadcast:8", id="one row, expanded"),
        pytest.param((16, 64), (1, 0), 0, "broadcast:8", id="one column, expanded"),
        pytest.param((16, 64), (128, 2), 0, "strided:1", id="every other element"),
        pytest.param((16, 64), (8, 1), 0, "strided:8", id="overlapping rows"),
        pytest.param((1, 1), (5, 9), 0, "row:1", id="one element"),
        pytest.param((0, 64), (64, 1), 0, "row:8", id="no rows"),
        pytest.param((16, 0), (0, 1), 0, "row:8", id="no columns"),
        pytest.param((4, 16, 64), (1024, 64, 1), 0, "row:8", id="one after the other"),
        pytest.param((4, 64, 16), (1024, 1, 64), 0, "col:8", id="transposed"),
        pytest.param((4, 16, 64), (1025, 64, 1), 0, "row:1", id="with a gap that moves the rows"),
        pytest.param((4, 16, 64), (4096, 64, 1), 8, "row:8", id="every fourth one"),
        pytest.param((4, 16, 64), (3072, 192, 1), 64, "row-padded:8", id="K of a fused projection"),
        pytest.param((4, 16, 64), (0, 64, 1), 0, "row:8:broadcast", id="one weight for all"),
        pytest.param((4, 16, 64), (64, 256, 1), 0, "row-padded:8:interleaved", id="heads of [tokens, heads, size]"),
        pytest.param((4, 64, 16), (64, 1, 256), 0, "col-padded:8:interleaved", id="the same, transposed"),
        pytest.param((4, 16, 60), (60, 240, 1), 0, "row-padded:4:interleaved", id="heads of 120 bytes"),
        pytest.param((4, 1, 64), (64, 7, 1), 0, "row:8", id="heads of one token"),
        pytest.param((1, 16, 64), (3, 64, 1), 0, "row:8", id="a batch of one"),
        pytest.param((0, 16, 64), (0, 64, 1), 0, "row:8", id="no batch at all"),
        pytest.param((4, 16, 1), (16, 1, 5), 0, "row:8", id="columns"),
    ],
)
def test_layout_classes(sizes, strides, offset, expected):
    assert Operand("bf16", classify(sizes, strides, offset, "bf16")).text == f"bf16:{expected}"


@given(data=st.data(), dtype=DTYPES, other=st.integers(1, 64), offset=st.integers(0, 64))
def test_the_stride_of_a_size_1_dimension_does_not_count(data, dtype, other, offset):
    step = data.draw(st.integers(1, 16))
    one, two = data.draw(st.integers(0, 4096)), data.draw(st.integers(0, 4096))
    assert classify((1, other), (one, step), offset, dtype) == classify((1, other), (two, step), offset, dtype)
    assert classify((other, 1), (step, one), offset, dtype) == classify((other, 1), (step, two), offset, dtype)


@given(dtype=DTYPES, rows=st.integers(1, 40), columns=st.integers(1, 40), pad=st.integers(0, 9), data=st.data())
def test_alignment_divides_every_row_start(dtype, rows, columns, pad, data):
    offset = data.draw(st.integers(0, 64))
    transposed = data.draw(st.booleans())
    length, count = (rows, columns) if transposed else (columns, rows)
    assume(length > 1)
    leading = length + pad
    strides = (1, leading) if transposed else (leading, 1)
    align = classify((rows, columns), strides, offset, dtype).align
    assert align * ITEM_SIZES[dtype] <= 16
    assert all((offset + row * leading) % align == 0 for row in range(count))
    assert length % align == 0


@given(dtype=DTYPES, rows=st.integers(2, 60), columns=st.integers(2, 60))
def test_a_transposed_view_is_the_other_order_with_the_same_alignment(dtype, rows, columns):
    stored = contiguous(columns, rows, dtype)
    view = contiguous(rows, columns, dtype, transposed=True)
    assert (stored.order, view.order) == ("row", "col")
    assert stored.align == view.align


@pytest.mark.parametrize(
    ("sizes", "strides", "dtype", "reason"),
    [
        ((2, 3, 4, 5), (60, 20, 5, 1), "bf16", "has two dimensions or three"),
        ((2, 3), (1,), "bf16", "has two dimensions or three"),
        ((2, 3), (3, 1), "complex64", "unknown dtype"),
        ((4, 16, 64), (64, 64, 1), "bf16", "overlap"),
        ((4, 16, 64), (32, 256, 1), "bf16", "overlap"),
        ((4, 16, 64), (64, 200, 1), "bf16", "overlap"),
        ((4, 16, 64), (1, 512, 8), "bf16", "overlap"),
        ((4, 1, 64), (8, 0, 1), "bf16", "overlap"),
    ],
)
def test_what_is_no_matrix_or_batch_is_refused(sizes, strides, dtype, reason):
    with pytest.raises(InputError, match=reason):
        classify(sizes, strides, 0, dtype)


@pytest.mark.parametrize("fields", [("diagonal", 8), ("row", 3), ("row", 32), ("row", 8, "repeated")])
def test_layouts_outside_the_classes_are_refused(fields):
    with pytest.raises(InputError, match="no such layout"):
        Layout(*fields)
    with pytest.raises(InputError, match="that are row cannot be interleaved"):
        Layout("row", 8, "interleaved")


@pytest.mark.parametrize(("alias", "name"), sorted(ALIASES.items()))
def test_torchs_names_of_dtypes_are_those_of_the_key(alias, name):
    torch = pytest.importorskip("torch")
    assert dtype_name(alias) == dtype_name(f"torch.{alias}") == dtype_name(getattr(torch, alias)) == name
    assert getattr(torch, alias).itemsize == ITEM_SIZES[name]


@given(DTYPES)
def test_the_keys_own_names_stay(name):
    assert dtype_name(name) == name


@pytest.mark.parametrize("name", ["", "fp7", "float", "torch.fp7", "torch.", "BF16", "torch.torch.bfloat16"])
def test_other_names_of_dtypes_are_left_for_the_error_to_name(name):
    assert dtype_name(name) == name
