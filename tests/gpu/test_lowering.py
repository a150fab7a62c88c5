"""Our Triton kernels as Inductor emits them: right, ours, alone, with their epilogue inside."""

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

# Before torch is imported: parts of Inductor read it once.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp(prefix="inductor-"))

torch = pytest.importorskip("torch")

import gemmdb.inductor  # noqa: E402
from gemmdb import Config, Problem  # noqa: E402
from gemmdb.layout import Layout  # noqa: E402

BF16, FP16, INT8 = torch.bfloat16, torch.float16, torch.int8


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


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    import torch._inductor.config as config

    torch._dynamo.reset()
    torch.manual_seed(0)
    gemmdb.inductor.disable()
    gemmdb.inductor.reset_stats()
    # Padding is decided, with benchmarks, before our passes see the product.
    with config.patch(fx_graph_cache=False, compile_threads=1, shape_padding=False):
        yield


def run(model: Callable[..., Any], *inputs: Any, config: Config) -> tuple[Any, str]:
    """What the model returns when all its products take `config`, and the code that Inductor made."""
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
    from gemmdb.generators.program import FP32_MODES, Product, operands
    from gemmdb.generators.reference import poison, reference, tolerance

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


@pytest.mark.parametrize("config", [*TILES, GEMV], ids=str, indirect=True)
def test_odd_sizes(config: Config) -> None:
    check(Problem.gemm("mm", m=7, n=1001, k=777, dtype="fp16", fusion="pointwise"), config)


@pytest.mark.parametrize("order", ["row-padded", "row"])
def test_padded_and_offset_operands(make: Any, order: str) -> None:
    """`order` is the weight's, as it is stored."""
    problem = Problem.gemm("mm", m=8, n=504, k=520)
    for align in (1, 8):
        a = replace(problem.a, layout=Layout("row-padded", align))
        b = replace(problem.b, layout=Layout(order.replace("row", "col"), align))
        for config in (make("tile"), make("tile", swap=1), make("narrow"), make("gemv")):
            torch._dynamo.reset()
            gemmdb.inductor.reset_stats()
            check(replace(problem, a=a, b=b), config)


@pytest.mark.parametrize("kernel", ["tile", "narrow", "persistent"])
@pytest.mark.parametrize("tf32", [False, True])
def test_fp32(make: Any, tf32: bool, kernel: str) -> None:
    check(Problem.gemm("mm", m=40, n=512, k=512, dtype="fp32", tf32=tf32), make(kernel, block_k=32))


@pytest.mark.parametrize("config", [TILE, SPLIT, FIXUP, NARROW, PERSISTENT, GEMV], ids=str, indirect=True)
@pytest.mark.parametrize("bias", ["1d", "full", "column"])
@pytest.mark.parametrize("scalars", ["unit", "beta0", "general"])
def test_addmm(scalars: str, bias: str, config: Config) -> None:
    check(replace(Problem.gemm("addmm", m=5, n=512, k=776, bias=bias), scalars=scalars), config)


def test_a_bias_times_zero_is_not_read(make: Any) -> None:
    x, w = torch.randn(16, 512, device="cuda", dtype=BF16), torch.randn(256, 512, device="cuda", dtype=BF16) / 16
    nothing = torch.full((256,), torch.nan, device="cuda", dtype=BF16)
    for config in (make("tile"), make("tile", split_k=3, reduce="kernel")):
        torch._dynamo.reset()
        gemmdb.inductor.reset_stats()
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
def test_mixed_mm_spellings(config: Config) -> None:
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
        torch._dynamo.reset()
        gemmdb.inductor.reset_stats()
        found, _ = run(spelling, x, weight, s, config=config)
        assert (found.double() - wanted).abs().max() <= 0.02 * wanted.abs().max()
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
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


def test_the_dequantised_weight_never_reaches_memory(make: Any) -> None:
    problem = Problem.gemm("mixed_mm", m=8, n=8192, k=8192, fusion="scale")
    from gemmdb.generators.program import Product, operands

    product = Product(problem, operands(problem, torch.device("cuda"), 1))
    with gemmdb.inductor.force(make("narrow", dequant="bits", block_n=128, block_k=128)):
        compiled = torch.compile(product)
        compiled(*product.inputs)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        compiled(*product.inputs)
        taken = torch.cuda.max_memory_allocated() - before
    assert taken < 2**20, taken


@pytest.mark.parametrize("config", [FIXUP, NARROW], ids=str, indirect=True)
def test_kernels_share_a_workspace(config: Config) -> None:
    """Each leaves its counters at zero for the next, also when the graph is replayed."""
    x, w = torch.randn(16, 512, device="cuda", dtype=BF16), torch.randn(1024, 512, device="cuda", dtype=BF16) / 16
    v = torch.randn(1024, 2048, device="cuda", dtype=BF16) / 32

    def model(x: Any, w: Any, v: Any) -> Any:
        return torch.relu(x @ w.t()) @ v

    with gemmdb.inductor.force(config):
        compiled = torch.compile(model)
        compiled(x, w, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = compiled(x, w, v)
    for _ in range(20):
        x.normal_()
        found.fill_(torch.nan)
        graph.replay()
        wanted = model(x.double(), w.double(), v.double())
        assert (found.double() - wanted).abs().max() <= 0.02 * wanted.abs().max()


def test_strict_mode_serves_a_table(make: Any, tmp_path: Path) -> None:
    from torch._inductor.utils import run_and_get_code

    from gemmdb import hardware
    from gemmdb.generators.store import Store
    from gemmdb.measurement import Measurement, Protocol, Status, Times
    from gemmdb.toolchain import installed

    problem, device, toolchain = Problem.gemm("mm", m=1, n=512, k=768), hardware.cuda(), installed("cuda")
    assert device is not None
    assert toolchain is not None
    second = make("tile", block_n=32)
    times = {
        Config.of("aten", "default"): 100.0, make("tile", load="tma"): 40.0, second: 50.0,
    }  # fmt: skip
    with Store.open(tmp_path / "table.db") as store:
        store.add(
            Measurement(problem, config, device, Protocol("graph", "cold", 10, 25, version=2), toolchain, "test",
                        Status.OK, Times(us, us, us, 25, 100.0))
            for config, us in times.items()
        )  # fmt: skip
        store.refresh()
    x, w = torch.randn(1, 768, device="cuda", dtype=BF16), torch.randn(512, 768, device="cuda", dtype=BF16)
    options = {"gemmdb.on_miss": "error", "gemmdb.tables": [tmp_path / "table.db"]}
    compiled = torch.compile(lambda x, w: x @ w.t(), backend="gemmdb", options=options)
    found, codes = run_and_get_code(compiled, x, w)
    wanted = x.double() @ w.double().t()
    assert (found.double() - wanted).abs().max() <= 0.01 * wanted.abs().max()
    (entry,) = gemmdb.inductor.stats()["products"]
    # The fastest cannot be lowered for a single row; the next best is served.
    assert (entry["rung"], entry["config"]) == ("exact", second.text)
    assert "tl.dot(a, b, acc)" in codes[0]


def test_gradients(make: Any) -> None:
    x = torch.randn(48, 256, device="cuda", dtype=BF16, requires_grad=True)
    w = (torch.randn(512, 256, device="cuda", dtype=BF16) / 16).requires_grad_()
    config = make("tile")
    with gemmdb.inductor.force(config):
        torch.compile(lambda x, w: torch.relu(x @ w.t()))(x, w).sum().backward()
    found = x.grad, w.grad
    assert {entry["config"] for entry in gemmdb.inductor.stats()["products"]} == {config.text}
    wanted = torch.autograd.grad(torch.relu(x.double() @ w.double().t()).sum(), (x, w))
    for one, other in zip(found, wanted, strict=True):
        assert (one.double() - other.double()).abs().max() <= 0.03 * other.abs().max()
