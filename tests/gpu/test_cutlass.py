"""`cutlass:gemm` on a GPU: right under the generator, right inside Inductor, and alone there."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import measure

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.kernels.cutlass import compiler, headers, workspace_bound
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Operand
from gemmdb.table.measurement import Protocol

pytestmark = pytest.mark.skipif(compiler() is None or headers() is None, reason="needs nvcc and nvidia-cutlass")
PROTOCOL = Protocol("graph", "cold", 10, 25)
gemm = Problem.gemm


def config(**changes: str | int) -> Config:
    base: dict[str, str | int] = {
        "tile_m": 64, "tile_n": 64, "tile_k": 128, "cluster_m": 1, "cluster_n": 1, "schedule": "pingpong",
        "split_k": 1, "swizzle": 1, "raster": "auto", "swap": 1,
    }  # fmt: skip
    return Config.of("cutlass", "gemm", **{**base, **changes})


PLAIN, SWAPPED = config(swap=0), config()
SPLIT = config(tile_n=128, schedule="cooperative", split_k=0)
CASES = [
    (gemm("mixed_mm", m=40, n=1008, k=1040, fusion="scale"), [SWAPPED]),
    (gemm("mixed_mm", m=72, n=1008, k=1040, dtype="fp16", weight_dtype="uint8"), [SPLIT, config(
        tile_n=128, schedule="cooperative", split_k=3, swizzle=2, raster="m")]),
    (gemm("mixed_mm", m=40, n=1008, k=1040, fusion="scale", bias="1d"), [SWAPPED]),
    (gemm("int_mm", m=100, n=1008, k=1040), [PLAIN]),
    (gemm("int_mm", m=40, n=1008, k=1040, fusion="scale", out_dtype="fp32"), [SWAPPED]),
    (gemm("mm", m=264, n=1008, k=520, layout="tn"), [PLAIN, config(swap=0, swizzle=4, raster="n")]),
    (gemm("mm", m=264, n=1008, k=520, layout="nn", dtype="fp16"), [SWAPPED]),
    (gemm("mm", m=1, n=1008, k=520, fusion="pointwise"), [SWAPPED]),
    (gemm("addmm", m=40, n=1008, k=520, bias="column"), [SWAPPED]),
    (gemm("addmm", m=40, n=1008, k=520, bias="full", fusion="pointwise"), [PLAIN]),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "configs"), CASES, ids=[problem.text[:60] for problem, _ in CASES])
def test_it_is_right_under_the_generator(problem: Problem, configs: list[Config]) -> None:
    measure(problem, configs, PROTOCOL)


def test_the_workspace_is_never_larger_than_its_bound() -> None:
    from gemmdb.generators.measure.cuda import compilers
    from gemmdb.generators.measure.cuda.artifacts import Library
    from gemmdb.kernels import cutlass

    problem = CASES[1][0]
    part = Library.of(problem, SPLIT)
    assert part.build(90).failure == ""
    library = compilers.load_library(part.path)
    asked = 0
    for m, n, k in ((1, 16, 128), (64, 4096, 4096), (64, 14336, 4096), (700, 5120, 8192), (4096, 4096, 1024)):
        for split in (0, 2, 5, 16):
            for swizzle in (1, 8):
                one = config(tile_n=128, schedule="cooperative", split_k=split, swizzle=swizzle)
                needed = library.gemmdb_workspace(m, n, k, k, k, *cutlass.order(one))
                assert needed <= workspace_bound(one, problem.resized(m, n, k)), (m, n, k, one.text)
                asked = max(asked, needed)
    assert asked > 0


def compiled(model: Callable[..., Any], *inputs: Any, config: Config) -> tuple[Any, str]:
    """What the model returns at its third call when all its GEMMs take `config`, and the code that Inductor made."""
    from torch._inductor.utils import run_and_get_code

    with gemmdb.inductor.force(config):
        function = torch.compile(model)
        _, codes = run_and_get_code(function, *inputs)
        function(*inputs)
        result = function(*inputs)
    stats = gemmdb.inductor.stats()
    assert [(entry["config"], entry["note"]) for entry in stats["products"]] == [(config.text, "")], stats["products"]
    assert (stats["benchmarked"], stats["errors"]) == (0, [])
    assert "extern_kernels." not in codes[0].partition("async_compile.wait")[2]
    assert codes[0].count("async_compile.cuda(") == 1
    return result, codes[0]


def padded(problem: Problem) -> Problem:
    return replace(
        problem,
        a=Operand(problem.a.dtype, Layout("row-padded", problem.a.layout.align)),
        b=Operand(problem.b.dtype, Layout("col-padded", problem.b.layout.align)),
    )


SERVED = [
    (gemm("mixed_mm", m=40, n=1008, k=1040, fusion="scale"), SWAPPED),
    (padded(gemm("mixed_mm", m=72, n=1008, k=1040, dtype="fp16", weight_dtype="uint8")), SPLIT),
    (gemm("mm", m=264, n=1008, k=520, layout="tn", fusion="pointwise"), PLAIN),
    (gemm("mm", m=264, n=1008, k=520, layout="nn", dtype="fp16"), SWAPPED),
    (gemm("addmm", m=40, n=1008, k=520), SWAPPED),
    (gemm("addmm", m=40, n=1008, k=520, bias="full"), PLAIN),
    (gemm("int_mm", m=100, n=1008, k=1040), PLAIN),
    (gemm("int_mm", m=40, n=1008, k=1040, fusion="scale"), SWAPPED),
]


@pytest.mark.parametrize(("problem", "one"), SERVED, ids=[problem.text[:60] for problem, _ in SERVED])
def test_inductor_makes_that_one_choice(problem: Problem, one: Config, clean: None) -> None:
    from gemmdb.generators.measure.correctness import poison, reference
    from gemmdb.generators.measure.operands import operands
    from gemmdb.generators.measure.program import Product
    from gemmdb.generators.measure.tolerance import tolerance

    device = torch.device("cuda")
    made = operands(problem, device, 1)
    product = Product(problem, made)
    poison(problem, device)
    result, code = compiled(product, *product.inputs, config=one)
    assert result.shape == (problem.m, problem.n)
    error = reference(problem, made).error(result)
    assert error <= tolerance(problem), (error, problem.text, one.text)
    if problem.fusion == "scale":
        # Neither the int32 product nor the dequantised weight is in memory, and no other kernel runs.
        assert "torch.int32" not in code
        assert "triton_" not in code.partition("async_compile.wait")[2]


@pytest.mark.parametrize("weight", ["int8", "uint8"])
@pytest.mark.parametrize("one", [SWAPPED, SPLIT], ids=lambda one: f"split_k={one.values['split_k']}")
def test_an_early_scale_in_fp16_scales_the_fp32_accumulator(one: Config, weight: str, clean: None) -> None:
    """The product of the bare integers, about K * 16 * 100, would overflow."""

    def early(x: Any, w: Any, s: Any) -> Any:
        return torch.nn.functional.linear(x, w.to(x.dtype) * s[:, None])

    x, s = torch.randn(40, 1040, device="cuda").half() + 16, (torch.rand(1008, device="cuda") / 64).half()
    w = torch.randint(80, 120, (1008, 1040), device="cuda").to(getattr(torch, weight))
    with torch.no_grad():
        found, _ = compiled(early, x, w, s, config=one)
    wanted = early(x.double(), w, s.double())
    assert (found.double() - wanted).abs().max() <= 0.005 * wanted.abs().max()
