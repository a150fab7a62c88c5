"""Products of fp8 operands on a GPU: Inductor's templates served as one choice, ATen from a table, and all measured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import is_template, measure, solved

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.hardware import FIRST_FP8
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Operand
from gemmdb.table.measurement import Status

NAME = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
MULTIPLIED = torch.cuda.is_available() and torch.cuda.get_device_capability() >= divmod(FIRST_FP8, 10)
pytestmark = [
    pytest.mark.usefixtures("clean"),
    pytest.mark.skipif(not MULTIPLIED, reason="needs an NVIDIA GPU that multiplies fp8, of compute capability 8.9"),
]
KERNELS = ("inductor_mm", "inductor_scaled_tma")


def template(kernel: str = "inductor_mm", **changes: int) -> Config:
    base = {"block_m": 64, "block_n": 64, "block_k": 128, "group_m": 8, "stages": 3, "warps": 4}
    return Config.of("triton", kernel, **{**base, **changes})


def narrow(**changes: Any) -> Config:
    base = {"block_m": 16, "block_n": 64, "block_k": 128, "split_k": 1, "swap": 0, "stagger": 1, "rows": "mask"}
    return Config.of("triton", "narrow", **{**base, "dequant": "cast", "warps": 4, "stages": 3, **changes})


def gemv(**changes: int) -> Config:
    base = {"block_n": 8, "block_k": 256, "unroll": 1, "warps": 4, "stages": 3}
    return Config.of("triton", "gemv", dequant="cast", **{**base, **changes})


def scaled(m: int = 72, n: int = 144, k: int = 208, **rest: Any) -> Problem:
    return Problem.gemm("scaled_mm", m=m, n=n, k=k, **rest)


PADDED = replace(
    scaled(scales="row"),
    a=Operand("fp8_e4m3", Layout("row-padded", 16)),
    b=Operand("fp8_e4m3", Layout("col-padded", 16)),
)
CASES = [
    *(scaled(scales=scales, fast_accum=fast) for scales in ("tensor", "row") for fast in (False, True)),
    *(scaled(m=200, n=512, k=k, scales="row", fast_accum=fast) for k in (4096, 14336) for fast in (False, True)),
    scaled(dtype="fp8_e5m2", weight_dtype="fp8_e4m3"),
    scaled(weight_dtype="fp8_e5m2", scales="row", fast_accum=True),
    scaled(out_dtype="fp16", scales="row"),
    scaled(out_dtype="fp32"),
    scaled(fusion="pointwise", scales="row", fast_accum=True),
    scaled(fusion="pointwise", out_dtype="fp16"),
    scaled(m=16, n=16, k=32),
    scaled(m=3000, n=48, k=64, scales="row"),
    PADDED,
]
PLAIN = [
    scaled(bias="1d"), scaled(bias="1d", scales="row", fast_accum=True), scaled(bias="1d", out_dtype="fp16"),
    scaled(m=1), scaled(m=1, scales="row", fast_accum=True),
]  # fmt: skip
"""What the template with tensor maps does not take."""
FEW = [
    scaled(m=1, bias="1d", scales="row"), scaled(m=2, n=4096, k=4096, scales="row", fast_accum=True),
    scaled(m=7, out_dtype="fp32"), scaled(m=8, dtype="fp8_e5m2", weight_dtype="fp8_e4m3", fusion="pointwise"),
    scaled(m=3, weight_dtype="fp8_e5m2", scales="row", out_dtype="fp16", k=256),
]  # fmt: skip
"""Rows that fit into registers."""
GROUPED = narrow(swap=1, split_k=2, stagger=0)
"""A narrow kernel whose sums stay in the matrix unit."""
SERVED = [
    *((template(KERNELS[1]), problem) for problem in CASES),
    *((template(), problem) for problem in (*CASES, *PLAIN)),
    *((narrow(split_k=split, rows=rows), problem) for split, rows in ((1, "mask"), (2, "wrap"))
      for problem in (*CASES, *PLAIN, *FEW) if problem.k >= 128 * split),
    *((GROUPED, problem) for problem in (*CASES, *PLAIN, *FEW) if problem.numerics.fast),
    *((gemv(), problem) for problem in FEW),
]  # fmt: skip


@pytest.mark.parametrize(("config", "problem"), SERVED, ids=lambda value: getattr(value, "text", value))
def test_a_template_is_served_as_one_choice(kit: Any, config: Config, problem: Problem) -> None:
    _, code = solved(problem, config)
    assert kit.served() == [config.text]
    assert is_template(code)


def test_the_matrix_units_own_accumulator_is_a_fast_accumulation(kit: Any) -> None:
    _, code = solved(scaled(scales="row", k=256), GROUPED)
    assert "extern_kernels._scaled_mm(" in code
    assert kit.served() == [ATEN.text]


@pytest.mark.parametrize("config", [narrow(), narrow(split_k=2), GROUPED], ids=lambda config: config.text)
def test_one_kernel_serves_any_number_of_rows(kit: Any, config: Config) -> None:
    from gemmdb.generators.measure.correctness import reference
    from gemmdb.generators.measure.operands import operands
    from gemmdb.generators.measure.program import Product
    from gemmdb.generators.measure.tolerance import tolerance

    problems = [scaled(m=m, n=512, k=1024, scales="row", fast_accum=True) for m in (24, 9, 40)]
    made = [operands(problem, torch.device("cuda"), 1) for problem in problems]
    product = Product(problems[0], made[0])
    compiled = torch.compile(product)
    with gemmdb.inductor.force(config), torch.no_grad():
        for problem, one in zip(problems, made, strict=True):
            given = [tensor.clone() for tensor in Product(problem, one).inputs]
            # The activation, and the scales of its rows.
            for tensor in given[:2]:
                torch._dynamo.mark_dynamic(tensor, 0, min=4, max=48)
            assert reference(problem, one).error(compiled(*given)) <= tolerance(problem)
    assert kit.served() == [config.text]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("tile", [{"block_m": 128, "warps": 8}, {"block_n": 32, "block_k": 256, "stages": 2},
                                  {"block_m": 128, "block_n": 256, "warps": 8}], ids=str)  # fmt: skip
def test_tiles_larger_and_smaller_than_the_matrices(kernel: str, tile: dict[str, int]) -> None:
    for problem in (scaled(m=40, n=48, k=80, scales="row"), scaled(m=40, n=48, k=80, fast_accum=True)):
        torch._dynamo.reset()
        gemmdb.inductor.reset_stats()
        assert is_template(solved(problem, template(kernel, **tile))[1])


@pytest.mark.parametrize("kernel", KERNELS)
def test_many_tiles_for_each_program(kernel: str) -> None:
    assert is_template(solved(scaled(m=2048, n=2048, k=256, scales="row"), template(kernel))[1])


def test_few_rows_are_multiplied_by_other_instructions(kit: Any) -> None:
    tile = template(block_m=16, block_n=64, block_k=256, stages=4)
    assert is_template(solved(scaled(m=1, n=4096, k=4096, scales="row", fast_accum=True), tile)[1])
    assert kit.served() == [tile.text]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_table_serves_a_template(kit: Any, tmp_path: Path, kernel: str) -> None:
    problem, config = scaled(scales="row", fast_accum=True), template(kernel)
    path = kit.table(tmp_path / "table.db", {problem: {config: 50.0}})
    gemmdb.inductor.enable(tables=[path], on_miss="error")
    assert is_template(solved(problem, None)[1])
    (entry,) = gemmdb.inductor.stats()["products"]
    assert (entry["rung"], entry["config"], entry["table"]) == ("exact", config.text, str(path))


def test_a_table_serves_aten(kit: Any, tmp_path: Path) -> None:
    problem = scaled(scales="row")
    path = kit.table(tmp_path / "table.db", {problem: {}})
    gemmdb.inductor.enable(tables=[path], on_miss="error")
    assert "extern_kernels._scaled_mm(" in solved(problem, None)[1]
    (entry,) = gemmdb.inductor.stats()["products"]
    assert (entry["rung"], entry["config"]) == ("exact", ATEN.text)


@pytest.mark.skipif("H200" not in NAME, reason="the shipped table of fp8 products is an H200's")
@pytest.mark.parametrize(("m", "kernels"), [(1, {"gemv"}), (16, {"narrow"}), (2048, {"default"})])
def test_the_shipped_table_serves_a_step_of_llama(m: int, kernels: set[str]) -> None:
    gemmdb.inductor.enable(on_miss="error")
    solved(scaled(m, 4096, 14336, scales="row", fast_accum=True), None)
    (entry,) = gemmdb.inductor.stats()["products"]
    assert entry["rung"] == "exact"
    assert {entry["kernel"]} == kernels


@pytest.mark.parametrize("times", [{template(): 50.0}, {}], ids=["a template", "ATen"])
def test_nothing_is_benchmarked_under_max_autotune(kit: Any, tmp_path: Path, times: dict[Config, float]) -> None:
    import torch._inductor.config as inductor

    problem = scaled(m=512, n=512, k=512)
    path = kit.table(tmp_path / "table.db", {problem: times})
    gemmdb.inductor.enable(tables=[path], on_miss="error")
    with inductor.patch(max_autotune=True):
        assert is_template(solved(problem, None)[1]) == bool(times)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_linear_that_quantises_its_activation(kit: Any, kernel: str) -> None:
    weight = kit.rand(256, 512).float()
    scale = weight.abs().amax(1, keepdim=True) / 448
    stored, by_columns = (weight / scale).to(torch.float8_e4m3fn), scale.t().contiguous()

    def linear(x: Any) -> Any:
        one = x.abs().amax(1, keepdim=True).float() / 448
        given = (x / one).to(torch.float8_e4m3fn)
        product = torch._scaled_mm(given, stored.t(), one, by_columns, out_dtype=torch.bfloat16, use_fast_accum=True)
        return torch.nn.functional.silu(product)

    x = kit.rand(96, 512)
    found, code = kit.compiled(linear, x, config=template(kernel))
    kit.close(found, linear(x))
    assert kit.served() == [template(kernel).text]
    assert "extern_kernels._scaled_mm" not in code


@pytest.mark.parametrize(("config", "problem"), SERVED, ids=lambda value: getattr(value, "text", value))
def test_all_are_measured(config: Config, problem: Problem) -> None:
    """The code is generated as in the compile pool, loaded, checked, captured and timed."""
    from gemmdb.generators.measure.cuda.artifacts import required

    major, minor = torch.cuda.get_device_capability()
    assert [artifact.build(10 * major + minor).failure for artifact in required(problem, config)] == [""]
    measure(problem, [config])


def test_a_build_measures_aten_and_templates(tmp_path: Path) -> None:
    from gemmdb.devices.detect import cuda
    from gemmdb.generators.build.build import BuildRequest, build
    from gemmdb.table.reader import Table

    shapes = tmp_path / "shapes.json"
    shapes.write_text(
        '[{"op": "scaled_mm", "m": [1, 256], "n": 1024, "k": 1024, "scales": "row", "fast_accum": true},'
        ' {"op": "scaled_mm", "m": 256, "n": 1000, "k": 1024}]'
    )
    out = tmp_path / "table.db"
    build(BuildRequest(arch="native", shapes=str(shapes), out=out))
    device = cuda()
    assert device is not None
    for m, kernels in ((256, {*KERNELS}), (1, {"gemv", "narrow", "inductor_mm"})):
        problem = scaled(m, 1024, 1024, scales="row", fast_accum=True)
        with Table.open(out) as table:
            rows, verdict = table.rows(problem, device), table.verdict(problem, device)
        assert {row.config.kernel for row in rows if row.times} - {"matmul"} == {"default", *kernels}
        assert {row.status for row in rows} <= {Status.OK, Status.SLOW}
        assert verdict is not None
        assert 0 < verdict.ratio <= 1
    with Table.open(out) as table:
        (refused,) = table.rows(scaled(256, 1000, 1024), device)
    assert (refused.status, refused.config) == (Status.ILLEGAL, ATEN)
