"""Problem: the key of everything. What tells two problems apart, and what does not."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import strategies
from kit.devices import H200

from gemmdb.errors import InputError
from gemmdb.key.layout import ITEM_SIZES
from gemmdb.key.operands import Bias, Numerics, TensorInfo, default_numerics
from gemmdb.key.problem import Problem, Query

SIZES = st.integers(0, 300)
LETTERS = st.sampled_from(["nn", "nt", "tn", "tt"])


def dense(rows, columns, dtype, transposed, offset=0):
    return TensorInfo(dtype, (rows, columns), (1, rows) if transposed else (columns, 1), offset)


@pytest.mark.parametrize(("op", "dtype"), [("mm", "bf16"), ("mm", "fp32"), ("int_mm", "int8"), ("mixed_mm", "fp16")])
@given(m=SIZES, n=SIZES, k=SIZES, layout=LETTERS)
def test_gemm_is_from_tensors_of_dense_tensors(op, dtype, m, n, k, layout):
    weight = "uint8" if op == "mixed_mm" else dtype
    described = Problem.gemm(op, m=m, n=n, k=k, dtype=dtype, layout=layout, weight_dtype=weight)
    literal = Problem.from_tensors(op, dense(m, k, dtype, layout[0] == "t"), dense(k, n, weight, layout[1] == "t"))
    assert described == literal
    assert described.text == literal.text


@given(m=SIZES, n=SIZES, k=SIZES)
def test_addmm_from_tensors_with_a_dense_bias(m, n, k):
    described = Problem.gemm("addmm", m=m, n=n, k=k, bias="full")
    bias = Bias("1d" if m == 1 else "full", "bf16", dense(m, n, "bf16", False).operand.layout.align)
    a, b = dense(m, k, "bf16", False), dense(k, n, "bf16", True)
    assert described == Problem.from_tensors("addmm", a, b, bias=bias)


def test_a_full_bias_of_one_row_is_that_of_a_graph():
    assert Problem.gemm("addmm", m=1, n=64, k=64, bias="full") == Problem.gemm("addmm", m=1, n=64, k=64, bias="1d")


BASE = Problem.gemm("addmm", m=16, n=64, k=64, dtype="fp32")
VARIANTS = {
    "m": Problem.gemm("addmm", m=17, n=64, k=64, dtype="fp32"),
    "n and k swapped": Problem.gemm("addmm", m=16, n=32, k=64, dtype="fp32"),
    "tf32": Problem.gemm("addmm", m=16, n=64, k=64, dtype="fp32", tf32=True),
    "dtype": Problem.gemm("addmm", m=16, n=64, k=64, dtype="bf16"),
    "out dtype": Problem.gemm("addmm", m=16, n=64, k=64, dtype="fp32", out_dtype="bf16"),
    "layout": Problem.gemm("addmm", m=16, n=64, k=64, dtype="fp32", layout="nn"),
    "column bias": Problem.gemm("addmm", m=16, n=64, k=64, dtype="fp32", bias="column"),
    "full bias": Problem.gemm("addmm", m=16, n=64, k=64, dtype="fp32", bias="full"),
    "bias alignment": dataclasses.replace(BASE, bias=Bias("1d", "fp32", 1)),
    "bias dtype": dataclasses.replace(BASE, bias=Bias("1d", "bf16", 4)),
    "constant weight": Problem.gemm("addmm", m=16, n=64, k=64, dtype="fp32", constant_weight=True),
    "scale": Problem.gemm("addmm", m=16, n=64, k=64, dtype="fp32", fusion="scale"),
    "pointwise": Problem.gemm("addmm", m=16, n=64, k=64, dtype="fp32", fusion="pointwise"),
    "alpha": dataclasses.replace(BASE, scalars="general"),
    "beta": dataclasses.replace(BASE, scalars="beta0"),
    "accumulate type": dataclasses.replace(BASE, numerics=Numerics(acc="fp16")),
    "reduced": dataclasses.replace(BASE, numerics=Numerics(reduced=True)),
    "deterministic": dataclasses.replace(BASE, numerics=Numerics(deterministic=True)),
}


def test_every_field_of_the_key_tells_problems_apart():
    keys = {name: problem.key for name, problem in VARIANTS.items()} | {"base": BASE.key}
    assert len(set(keys.values())) == len(keys)


def test_offset_and_padding_reach_the_key_through_alignment_and_order():
    b = dense(64, 64, "bf16", True)
    shifted = [Problem.from_tensors("mm", dense(16, 64, "bf16", False, offset), b) for offset in (0, 1, 4, 8)]
    assert shifted[0] == shifted[3]
    assert len({problem.key for problem in shifted}) == 3
    padded = Problem.from_tensors("mm", TensorInfo("bf16", (16, 64), (72, 1)), b)
    sliced = Problem.from_tensors("mm", TensorInfo("bf16", (16, 64), (192, 1), 64), b)
    assert padded == sliced
    assert padded.key != shifted[0].key


def test_one_row_of_a_matrix_is_a_vector():
    """Also at the lower end of a range: a program of one row alone has that key."""
    problem = Problem.gemm("addmm", m=64, n=512, k=256, bias="full")
    assert problem.resized(2, 512, 256) == Problem.gemm("addmm", m=2, n=512, k=256, bias="full")
    assert problem.resized(1, 512, 256) == Problem.gemm("addmm", m=1, n=512, k=256, bias="full")
    assert problem.resized(1, 512, 256).bias.kind == "1d"
    assert problem.resized(64, 512, 256) is problem


@given(data=st.data())
def test_family_is_what_sizes_do_not_change(data):
    problem = data.draw(strategies.problems)
    other = problem.resized(2, 3, 4)
    assert (other.family, other.family_key) == (problem.family, problem.family_key)
    assert problem.text.endswith(problem.family)


@given(data=st.data())
def test_flops_and_bytes_grow_with_every_size(data):
    problem = data.draw(strategies.problems.filter(lambda problem: problem.batch > 0)).resized(8, 8, 8)
    for larger in (problem.resized(9, 8, 8), problem.resized(8, 9, 8), problem.resized(8, 8, 9)):
        assert larger.flops > problem.flops
        assert larger.bytes > problem.bytes


def test_bytes_count_each_operand_once():
    assert Problem.gemm("mm", m=2, n=3, k=5).bytes == 2 * (2 * 5 + 5 * 3 + 2 * 3)
    assert Problem.gemm("addmm", m=2, n=3, k=5).bytes == 2 * (2 * 5 + 5 * 3 + 2 * 3 + 3)
    assert Problem.gemm("mixed_mm", m=2, n=3, k=5).bytes == 2 * (2 * 5) + 5 * 3 + 2 * (2 * 3)


def test_an_unknown_flag_is_a_type_error_that_says_where_the_device_goes():
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'dtpye'; did you mean 'dtype'\?$"):
        Problem.gemm("mm", m=1, n=2, k=3, dtpye="bf16")
    with pytest.raises(TypeError, match=r"'device'; gemmdb\.lookup takes the device and l2"):
        Problem.gemm("mm", m=1, n=2, k=3, device="NVIDIA H200")


def test_inner_sizes_must_agree():
    a, b = dense(4, 5, "bf16", False), dense(6, 7, "bf16", False)
    with pytest.raises(InputError, match=r"K differs: A is \[4, 5\] and B is \[6, 7\]"):
        Problem.from_tensors("mm", a, b)
    with pytest.raises(InputError, match="two dimensions"):
        Problem.from_tensors("mm", TensorInfo("bf16", (4,), (1,)), b)


@pytest.mark.parametrize("dtype", sorted(ITEM_SIZES))
def test_default_numerics_accumulate_at_least_as_wide(dtype):
    numerics = default_numerics(dtype)
    assert numerics.acc == {"fp64": "fp64", "int8": "int32", "uint8": "int32"}.get(dtype, "fp32")
    assert numerics.fp32 == "ieee"


def test_a_size_is_symbolic_that_has_more_than_one_value():
    ranges = {"m": (1, None), "n": (64, 64), "k": (0, 8)}
    assert Query(Problem.gemm("mm", m=8, n=64, k=8), H200, ranges).symbolic == ("m", "k")
    assert Query(Problem.gemm("mm", m=8, n=64, k=8), H200).symbolic == ()
