"""Our Triton kernels as Inductor emits them: right, ours, alone, with their epilogue inside."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.key.layout import Layout

pytestmark = pytest.mark.usefixtures("clean")
BF16, INT8 = torch.bfloat16, torch.int8
Variant = tuple[str, dict[str, str | int]]
TILE: Variant = ("tile", {})
SPLIT: Variant = ("tile", {"split_k": 3, "reduce": "kernel"})
FIXUP: Variant = ("tile", {"split_k": 3, "reduce": "fixup"})
NARROW: Variant = ("narrow", {"split_k": 2})
GEMV: Variant = ("gemv", {"unroll": 2})
TILES: list[Variant] = [
    TILE,
    ("tile", {"swap": 1}),
    SPLIT,
    FIXUP,
    ("tile", {"swap": 1, "split_k": 2, "reduce": "kernel"}),
    ("tile", {"block_m": 64, "block_n": 128, "block_k": 32, "stages": 4}),
    ("narrow", {}),
    NARROW,
]
PERSISTENT: Variant = ("persistent", {})
TMA: list[Variant] = [
    ("tile", {"load": "tma"}),
    ("tile", {"load": "tma", "swap": 1, "split_k": 2, "reduce": "kernel"}),
    PERSISTENT,
    ("persistent", {"swap": 1, "resident": 2}),
]


def run(model: Callable[..., Any], *inputs: Any, config: Config) -> tuple[Any, str]:
    """What the model returns when all its GEMMs take `config`, and the code that Inductor made."""
    from torch._inductor.utils import run_and_get_code

    with gemmdb.inductor.force(config):
        result, codes = run_and_get_code(torch.compile(model), *inputs)
    stats = gemmdb.inductor.stats()
    assert [entry["config"] for entry in stats["products"]] == [config.text], stats["products"]
    assert stats["benchmarked"] == 0
    assert stats["errors"] == []
    assert "extern_kernels." not in codes[0].partition("async_compile.wait")[2]
    assert codes[0].count("@triton_heuristics.template(") == 1
    return result, codes[0]


def check(problem: Problem, config: Config, seed: int = 1) -> str:
    from gemmdb.generators.measure.correctness import poison, reference
    from gemmdb.generators.measure.operands import operands
    from gemmdb.generators.measure.program import FP32_MODES, Product
    from gemmdb.generators.measure.tolerance import tolerance

    torch.set_float32_matmul_precision(FP32_MODES[problem.numerics.fp32])
    try:
        device = torch.device("cuda")
        made = operands(problem, device, seed)
        product = Product(problem, made)
        poison(problem, device)
        result, code = run(product, *product.inputs, config=config)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert result.shape == (problem.m, problem.n)
    error = reference(problem, made).error(result)
    assert error <= tolerance(problem), (error, problem.text, config.text)
    return code


@pytest.mark.parametrize("config", TILES + TMA, ids=str, indirect=True)
@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_mm(layout: str, config: Config) -> None:
    check(Problem.gemm("mm", m=40, n=1008, k=520, layout=layout), config)


@pytest.mark.parametrize("slices", [2, 8, 20])
def test_slices_of_k_are_summed_in_order_by_one_pass(make: Any, slices: int) -> None:
    """No reduction, which Inductor makes from eight on: its threads share the few slices of an element."""
    code = check(Problem.gemm("mm", m=40, n=512, k=2048), make("tile", split_k=slices, reduce="kernel"))
    assert code.count("@triton_heuristics.pointwise(") == 1
    assert "reduction(" not in code


@pytest.mark.parametrize("config", [*TILES, GEMV], ids=str, indirect=True)
def test_odd_sizes(config: Config) -> None:
    check(Problem.gemm("mm", m=7, n=1001, k=777, dtype="fp16", fusion="pointwise"), config)


@pytest.mark.parametrize("order", ["row-padded", "row"])
def test_padded_and_offset_operands(kit: Any, make: Any, order: str) -> None:
    """`order` is the weight's, as it is stored."""
    problem = Problem.gemm("mm", m=8, n=504, k=520)
    for align in (1, 8):
        a = replace(problem.a, layout=Layout("row-padded", align))
        b = replace(problem.b, layout=Layout(order.replace("row", "col"), align))
        for config in (make("tile"), make("tile", swap=1), make("narrow"), make("gemv")):
            kit.anew()
            check(replace(problem, a=a, b=b), config)


@pytest.mark.parametrize("kernel", ["tile", "narrow", "persistent"])
@pytest.mark.parametrize("tf32", [False, True])
def test_fp32(make: Any, tf32: bool, kernel: str) -> None:
    check(Problem.gemm("mm", m=40, n=512, k=512, dtype="fp32", tf32=tf32), make(kernel, block_k=32))


def test_a_vector_kernel_rounds_nothing_where_tf32_is_allowed(make: Any) -> None:
    """Without the matrix unit products are in full fp32, as Inductor's own are that it makes of a single row."""
    x, w = torch.randn(2, 4096, device="cuda"), torch.randn(512, 4096, device="cuda")
    wanted = x.double() @ w.double().t()
    torch.set_float32_matmul_precision("high")
    try:
        found, _ = run(lambda x, w: x @ w.t(), x, w, config=make("gemv", block_n=4, block_k=512))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert " fp32=tf32 " in gemmdb.inductor.stats()["products"][0]["problem"]
    assert (found - wanted).abs().max() <= 1e-6 * wanted.abs().max()


@pytest.mark.parametrize("config", [TILE, SPLIT, FIXUP, NARROW, PERSISTENT, GEMV], ids=str, indirect=True)
@pytest.mark.parametrize("bias", ["1d", "full", "column"])
@pytest.mark.parametrize("scalars", ["unit", "beta0", "general"])
def test_addmm(scalars: str, bias: str, config: Config) -> None:
    check(replace(Problem.gemm("addmm", m=5, n=512, k=776, bias=bias), scalars=scalars), config)


def test_a_bias_times_zero_is_not_read(kit: Any, make: Any) -> None:
    x, w = torch.randn(16, 512, device="cuda", dtype=BF16), torch.randn(256, 512, device="cuda", dtype=BF16) / 16
    nothing = torch.full((256,), torch.nan, device="cuda", dtype=BF16)
    for config in (make("tile"), make("tile", split_k=3, reduce="kernel")):
        kit.anew()
        found, _ = run(lambda x, w, b: torch.addmm(b, x, w.t(), alpha=3, beta=0), x, w, nothing, config=config)
        wanted = 3 * x.double() @ w.double().t()
        assert (found.double() - wanted).abs().max() <= 0.01 * wanted.abs().max()


@pytest.mark.parametrize("config", TILES + TMA, ids=str, indirect=True)
@pytest.mark.parametrize("fusion", ["none", "scale"])
def test_int_mm_is_exact(fusion: str, config: Config) -> None:
    code = check(Problem.gemm("int_mm", m=40, n=1008, k=528, fusion=fusion), config)
    if fusion == "scale" and config.values.get("split_k", 1) == 1:
        assert "torch.int32" not in code


MIXED = [*TILES, *TMA, ("tile", {"swap": 1, "dequant": "bits"}), ("narrow", {"dequant": "bits"})]


@pytest.mark.parametrize("config", [*MIXED, GEMV, ("gemv", {"dequant": "bits"})], ids=str, indirect=True)
@pytest.mark.parametrize("weight", ["int8", "uint8"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_mixed_mm(dtype: str, weight: str, config: Config) -> None:
    problem = Problem.gemm("mixed_mm", m=8, n=1008, k=1040, dtype=dtype, weight_dtype=weight, fusion="scale")
    code = check(problem, config)
    # the output, and nothing else but partial sums
    allocated = code.partition("def call")[2].count("empty_strided_cuda(")
    assert allocated == (1 if config.values.get("split_k", 1) == 1 else 2)


@pytest.mark.parametrize("config", [TILE, SPLIT, FIXUP, NARROW, GEMV], ids=str, indirect=True)
def test_mixed_mm_spellings(kit: Any, config: Config) -> None:
    x = torch.randn(2, 3, 512, device="cuda", dtype=BF16)
    w = torch.randint(-128, 128, (512, 1000), device="cuda", dtype=INT8)
    s, b = torch.rand(1000, device="cuda", dtype=BF16) / 64, torch.randn(1000, device="cuda", dtype=BF16)
    one = torch.rand(1, device="cuda", dtype=BF16) / 64
    wanted = (x.double() @ w.double()) * s.double() + b.double()
    weight = w.t().contiguous()

    def scale_after(x: Any, w: Any, s: Any) -> Any:
        return torch.nn.functional.linear(x, w.to(x.dtype)) * s + b

    def scale_first(x: Any, w: Any, s: Any) -> Any:
        return torch.nn.functional.linear(x, w.to(x.dtype) * s[:, None], b)

    for spelling in (scale_after, scale_first):
        kit.anew()
        found, _ = run(spelling, x, weight, s, config=config)
        assert (found.double() - wanted).abs().max() <= 0.02 * wanted.abs().max()
    kit.anew()
    found, _ = run(scale_after, x, weight, one, config=config)
    wanted = (x.double() @ w.double()) * one.double() + b.double()
    assert (found.double() - wanted).abs().max() <= 0.02 * wanted.abs().max()


@pytest.mark.parametrize("config", [TILE, SPLIT, FIXUP, NARROW], ids=str, indirect=True)
def test_what_comes_after(config: Config) -> None:
    x, w = torch.randn(24, 512, device="cuda", dtype=BF16), torch.randn(256, 512, device="cuda", dtype=BF16) / 16
    residual = torch.randn(24, 256, device="cuda", dtype=BF16)

    def model(x: Any, w: Any, residual: Any) -> Any:
        y = x @ w.t()
        z = torch.nn.functional.silu(y) + residual
        return y, z, torch.softmax(z.float(), dim=-1)

    wanted = model(x.double(), w.double(), residual.double())
    found, _ = run(model, x, w, residual, config=config)
    for one, other in zip(found, wanted, strict=True):
        assert (one.double() - other).abs().max() <= 0.02 * other.abs().max()


BEHIND: dict[str, tuple[Callable[[Any, Any], tuple[Any, ...]], str]] = {
    "relu": (lambda y, r: (y.relu(),), "pointwise"),
    "gelu": (lambda y, r: (torch.nn.functional.gelu(y),), "pointwise:math"),
    "silu_mul": (lambda y, r: (torch.nn.functional.silu(y) * r,), "pointwise:math:reads1"),
    "add": (lambda y, r: (y + r,), "pointwise:reads1"),
    "two": (lambda y, r: (y.relu(), y + r), "pointwise:reads1"),
    "heads": (lambda y, r: (y.view(*y.shape[:-1], 4, 64) * 0.125,), "pointwise"),
    "by_heads": (lambda y, r: ((y.view(*y.shape[:-1], 4, 64) * 0.125).transpose(-2, -3).contiguous(),),
                 "pointwise:permuted"),
    "transposed": (lambda y, r: ((y * 0.125).transpose(-1, -2).contiguous(),), "pointwise:transposed"),
    "kept": (lambda y, r: (torch.tanh(y), y), "pointwise:math:kept"),
    "wider": (lambda y, r: (y.float(),), "pointwise:fp32"),
}  # fmt: skip
"""Elementwise work behind a linear of three dimensions, and its class."""


@pytest.mark.parametrize("sizes", [(2, 12), (1, 24), (3, 1, 7)], ids=str)
@pytest.mark.parametrize("tail", BEHIND)
@pytest.mark.parametrize("config", [TILE, NARROW, FIXUP, PERSISTENT], ids=str, indirect=True)
def test_elementwise_work_behind_views_is_the_epilogue(config: Config, tail: str, sizes: tuple[int, ...]) -> None:
    x, w = torch.randn(*sizes, 512, device="cuda", dtype=BF16), torch.randn(256, 512, device="cuda", dtype=BF16) / 16
    residual = torch.randn(*sizes, 256, device="cuda", dtype=BF16)

    def model(x: Any, w: Any, residual: Any) -> Any:
        return BEHIND[tail][0](torch.nn.functional.linear(x, w), residual)

    wanted = model(x.double(), w.double(), residual.double())
    found, code = run(model, x, w, residual, config=config)
    for one, other in zip(found, wanted, strict=True):
        assert (one.double() - other).abs().max() <= 0.02 * other.abs().max()
    assert f" fusion={BEHIND[tail][1]} " in gemmdb.inductor.stats()["products"][0]["problem"]
    assert len(re.findall(r"def (triton_\w+)\(", code)) == 1


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("config", [TILE], ids=str, indirect=True)
def test_a_residual_sum_before_a_norm_is_part_of_the_norm(config: Config, norm: bool) -> None:
    """The fusion context in the key is what Inductor then makes of it: with a norm behind it, no epilogue."""
    # Three dimensions, as in a model: of two, Inductor makes an addmm.
    x, w = torch.randn(2, 12, 512, device="cuda", dtype=BF16), torch.randn(256, 512, device="cuda", dtype=BF16) / 16
    residual = torch.randn(2, 12, 256, device="cuda", dtype=BF16)

    def model(x: Any, w: Any, residual: Any) -> Any:
        y = torch.nn.functional.linear(x, w) + residual
        return (y, torch.nn.functional.rms_norm(y, (256,))) if norm else (y,)

    wanted = model(x.double(), w.double(), residual.double())
    found, code = run(model, x, w, residual, config=config)
    for one, other in zip(found, wanted, strict=True):
        assert (one.double() - other).abs().max() <= 0.02 * other.abs().max()
    assert f" fusion={'none' if norm else 'pointwise:reads1'} " in gemmdb.inductor.stats()["products"][0]["problem"]
    (name,) = set(re.findall(r"def (triton_tem_\w+)\(", code))
    assert ("add" in name) == (not norm), name
