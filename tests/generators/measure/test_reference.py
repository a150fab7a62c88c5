"""Right and wrong results, on torch's own eager GEMMs."""

from dataclasses import replace

import pytest
import torch

from gemmdb.generators.measure import program
from gemmdb.generators.measure.correctness import poison, reference
from gemmdb.generators.measure.operands import operands
from gemmdb.generators.measure.program import Product
from gemmdb.generators.measure.tolerance import acceptable, tolerance
from gemmdb.key.layout import Layout, classify
from gemmdb.key.operands import Numerics, Operand
from gemmdb.key.problem import Problem

CPU = torch.device("cpu")
GEMM = Problem.gemm
SIZES = {"m": 24, "n": 48, "k": 64}
PROBLEMS = [
    *(
        GEMM("mm", **SIZES, dtype=dtype, layout=layout)
        for dtype in ("fp32", "fp16", "bf16", "fp64")
        for layout in ("nn", "nt", "tn", "tt")
    ),
    *(GEMM("addmm", **SIZES, dtype="bf16", bias=bias, fusion="pointwise") for bias in ("1d", "full", "column")),
    *(replace(GEMM("addmm", **SIZES, dtype="fp32"), scalars=scalars) for scalars in ("beta0", "general")),
    GEMM("int_mm", **SIZES),
    GEMM("int_mm", **SIZES, fusion="scale"),
    *(
        GEMM("mixed_mm", **SIZES, dtype=dtype, weight_dtype=weight, fusion=fusion, constant_weight=constant)
        for dtype in ("fp16", "bf16")
        for weight in ("int8", "uint8")
        for fusion in ("none", "scale")
        for constant in (False, True)
    ),
    GEMM("mixed_mm", **SIZES, bias="1d"),
    GEMM("mixed_mm", **SIZES, bias="1d", fusion="scale"),
    GEMM("mm", m=1, n=1, k=1, dtype="fp32"),
    GEMM("mm", m=0, n=8, k=8, dtype="fp32"),
    GEMM("mm", m=8, n=8, k=0, dtype="fp32"),
    replace(GEMM("mm", **SIZES, dtype="fp32"), a=Operand("fp32", Layout("row-padded", 2))),
    replace(GEMM("mm", **SIZES, dtype="fp32"), a=Operand("fp32", Layout("broadcast", 1))),
    replace(GEMM("mm", **SIZES, dtype="fp32"), b=Operand("fp32", Layout("strided", 1))),
    *(
        GEMM("bmm", batch=3, **SIZES, dtype=dtype, layout=layout)
        for dtype in ("fp32", "bf16")
        for layout in ("nn", "nt", "tn")
    ),
    GEMM("bmm", batch=3, **SIZES, dtype="fp16", fusion="pointwise"),
    GEMM("bmm", batch=1, m=1, n=1, k=1, dtype="fp32"),
    GEMM("bmm", batch=0, **SIZES, dtype="fp32"),
    GEMM("bmm", batch=2, m=0, n=8, k=8, dtype="fp32"),
    replace(GEMM("bmm", batch=3, **SIZES), b=Operand("bf16", Layout("col", 8, "broadcast"))),
    replace(GEMM("bmm", batch=3, **SIZES), b=Operand("bf16", Layout("col-padded", 4, "interleaved"))),
    *(GEMM("grouped_mm", **SIZES, dtype=dtype, layout=layout, groups=5)
      for dtype in ("bf16", "fp16") for layout in ("nn", "nt", "tn")),
    *(GEMM("grouped_mm", **SIZES, dtype=dtype, layout="tn", ragged="k", groups=5) for dtype in ("bf16", "fp16")),
    GEMM("grouped_mm", m=3, n=48, k=64, groups=9, fusion="pointwise:math"),
    GEMM("grouped_mm", **SIZES, groups=5, constant_weight=True),
    GEMM("scaled_mm", m=1, n=1, k=1),
    GEMM("scaled_mm", m=0, n=8, k=8),
    *(GEMM("scaled_mm", m=m, n=48, k=64, scales=scales, fast_accum=fast, constant_weight=fast)
      for m in (1, 17) for scales in ("tensor", "row") for fast in (False, True)),
    GEMM("scaled_mm", m=17, n=48, k=64, dtype="fp8_e5m2", weight_dtype="fp8_e4m3", bias="1d", fusion="pointwise"),
    GEMM("scaled_mm", m=17, n=48, k=64, out_dtype="fp32", scales="row"),
    replace(GEMM("scaled_mm", m=17, n=48, k=64, scales="row", bias="1d", constant_weight=True),
            a=Operand("fp8_e4m3", Layout("row-padded", 8)), b=Operand("fp8_e5m2", Layout("col-padded", 16))),
]  # fmt: skip


def made(problem):
    """Operands and the exact result."""
    given = operands(problem, CPU, seed=1)
    return given, reference(problem, given)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.text)
def test_operands_have_their_classes_eager_is_right_and_one_wrong_element_is_not(problem):
    given, expected = made(problem)
    for tensor, operand in ((given.a, problem.a), (given.b, problem.b)):
        assert classify(tensor.shape, tensor.stride(), tensor.storage_offset(), operand.dtype) == operand.layout
    product = Product(problem, given)
    result = product(*product.inputs)
    error = expected.error(result)
    assert acceptable(problem, error, error)
    assert result.dtype == product(*product.inputs).dtype
    if result.numel() and problem.k:
        wrong = result.clone()
        last = (-1,) * wrong.ndim
        wrong[last] += 1 if problem.out == "int32" else 0.05 * float(expected.magnitude[-1, -1] + wrong[last].abs())
        assert not acceptable(problem, expected.error(wrong), error)


def test_the_last_k_blocks_must_be_summed():
    # What a kernel gets wrong that copies EVEN_K from another K: the tail of the sum is missing.
    problem = GEMM("mm", m=8, n=8, k=1000, dtype="bf16")
    given, expected = made(problem)
    assert expected.error(given.a[:, :992] @ given.b[:992]) > tolerance(problem)


def test_infinite_numbers_and_other_shapes_are_never_right():
    given, expected = made(GEMM("mm", **SIZES, dtype="fp32"))
    result = given.a @ given.b
    assert expected.error(result[:, :-1]) == float("inf")
    for bad in (float("nan"), float("inf")):
        result[3, 3] = bad
        assert expected.error(result) == float("inf")


def test_a_candidate_must_not_be_much_less_accurate_than_aten():
    problem = GEMM("mm", m=8, n=8, k=4096, dtype="fp32")
    assert acceptable(problem, 1e-5, 5e-6)
    assert not acceptable(problem, 1e-5, 2e-6)
    assert acceptable(problem, 1e-7, 0.0)  # two roundings of the output are always allowed
    assert not acceptable(problem, 1e-3, 1e-3)


@pytest.mark.parametrize("k", [16, 256, 4096])
@pytest.mark.parametrize("fusion", ["none", "pointwise", "pointwise:reads1", "pointwise:math"])
def test_sums_in_order_are_right_however_exact_aten_is(k, fusion):
    """Splitting a sum makes it more exact, not the one that is not split wrong."""
    problem = GEMM("addmm", m=32, n=512, k=k, dtype="fp32", fusion=fusion)
    given, expected = made(problem)
    product = torch.zeros(problem.m, problem.n)
    for place in range(k):
        product.addcmul_(given.a[:, place, None], given.b[place])
    epilogue = None if fusion == "none" else problem.epilogue
    (result,) = program.follow(epilogue, problem.n, product + given.bias, list(given.reads))
    error = expected.error(result)
    assert acceptable(problem, error, 0.0)
    assert error > tolerance(problem) / 40  # It is what plain sums lose: ATen's error is a fifth of it at K = 4096.


def rounded(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """fp32 numbers with the precision of `dtype`. TF32 has 10 bits of fraction."""
    if dtype == "tf32":
        return ((tensor.view(torch.int32) + 2**12) & ~(2**13 - 1)).view(torch.float32)
    return tensor.to(getattr(torch, dtype)).float()


@pytest.mark.parametrize("k", [16, 256, 4096, 65536])
@pytest.mark.parametrize("how", ["tf32", "bfloat16", "float16"])
def test_inputs_of_less_precision_are_wrong_in_fp32_though_tf32_is_allowed_and_aten_uses_none(k, how):
    problem = GEMM("mm", m=8, n=64, k=k, dtype="fp32")
    given, expected = made(problem)
    error = expected.error(rounded(given.a, how) @ rounded(given.b, how))
    assert not acceptable(problem, error, error)
    assert not acceptable(replace(problem, numerics=Numerics("tf32")), error, 1e-6)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_sums_in_fp16_are_wrong(dtype):
    problem = GEMM("mm", m=8, n=64, k=512, dtype=dtype)
    given, right = made(problem)
    sums = torch.zeros(problem.m, problem.n, dtype=torch.float16)
    for place in range(problem.k):
        sums.addcmul_(given.a[:, place, None].half(), given.b[place].half())
    assert not acceptable(problem, right.error(sums.to(given.a.dtype)), right.error(given.a @ given.b))


def test_integers_are_exact_and_tf32_is_given_its_rounding():
    problem, plain = GEMM("int_mm", **SIZES), GEMM("mm", **SIZES, dtype="fp32")
    assert tolerance(problem) == 0.0
    assert not acceptable(problem, 1e-12, 1e-12)
    assert tolerance(replace(plain, numerics=Numerics("tf32"))) > 100 * tolerance(plain)


def test_large_gemms_are_checked_on_some_rows_the_ends_among_them():
    problem = GEMM("mm", m=4000, n=4096, k=4096, dtype="bf16")
    rows = reference(problem, operands(replace(problem, n=8, k=8, m=4000), CPU, 1)).rows
    assert 2 <= len(rows) < 4000
    assert {0, 3999} <= set(rows.tolist())
    assert len(set(rows.tolist())) == len(rows)


def test_of_a_large_batch_some_rows_of_some_matrices_are_checked():
    problem = GEMM("bmm", batch=100, m=50, n=8, k=8, dtype="fp32")
    given = operands(problem, CPU, 1)
    whole = reference(problem, given)
    assert {0, 99} <= {row // 50 for row in whole.rows.tolist()}
    assert len({row // 50 for row in whole.rows.tolist()}) == 64
    part = reference(replace(problem, n=2**14, k=2**12), given)
    rows = part.rows.tolist()
    assert {0, 49, 99 * 50, 100 * 50 - 1} <= set(rows)
    assert len(set(rows)) == len(rows) < 500
    product = given.a @ given.b
    assert whole.error(product) <= tolerance(problem)
    product[99] = product[98]
    assert whole.error(product) > tolerance(problem)
    assert whole.error(product.flatten(0, 1)) == float("inf")


def test_equal_seeds_give_equal_operands_and_torch_s_own_random_state_is_left_alone():
    problem = GEMM("mixed_mm", **SIZES, fusion="scale")
    state = torch.get_rng_state()
    first, second = operands(problem, CPU, 7), operands(problem, CPU, 7)
    reference(replace(problem, n=2**17, k=2**14), first)
    poison(problem, CPU)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.a, second.a)
    assert torch.equal(first.b, second.b)
    assert not torch.equal(first.a, operands(problem, CPU, 8).a)


def test_numbers_too_small_for_their_dtype_may_be_rounded():
    problem = GEMM("mm", **SIZES, dtype="fp16")
    given = operands(problem, CPU, seed=1)
    given.a.mul_(1e-6)
    assert reference(problem, given).error(given.a @ given.b) <= tolerance(problem)
    wrong = (given.a @ given.b) * 1.5
    assert reference(problem, given).error(wrong) > tolerance(problem)
