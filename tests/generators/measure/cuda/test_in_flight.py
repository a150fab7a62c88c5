"""No kernel writes registers that the matrix unit still reads: Triton 3.6 does not wait for them."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from kit.gpu import make
from kit.inductor import TRITON as VERSION
from kit.sass import assembler_code, overwritten, products

from gemmdb import Config, Problem
from gemmdb.generators.measure.cuda.render import Unit, plan

TRITON = VERSION.split(".")
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")


def unit(problem: Problem, config: Config) -> Unit:
    return plan(problem, config).launches[0].unit


def int4(m: int, **flags: str) -> Problem:
    return Problem.gemm("mixed_mm", m=m, n=4096, k=4096, **{"weight_dtype": "int4", **flags})


def int8(m: int, group: int) -> Problem:
    return Problem.gemm("mixed_mm", m=m, n=4096, k=4096, weight_dtype="int8", group=group)


IN_BYTES, TILED = {"packing": "low-first", "zeros": "none"}, {"packing": "tinygemm8"}
CASES = [
    (int4(16, **IN_BYTES), make("int4", split_k=8, stages=4)),
    (int4(16, **IN_BYTES), make("int4", order="memory", split_k=8, stages=4)),
    (int4(40, **IN_BYTES), make("int4", order="memory", block_m=64, block_n=128, block_k=64, warps=8, stages=8)),
    (int4(128, **IN_BYTES), make("int4", order="memory", block_m=128, block_k=64, stages=4)),
    (int4(64, packing="gptq"), make("int4", order="memory", block_m=64, block_n=128, stages=4)),
    (int4(64, **TILED), make("int4", block_m=64, block_n=128, warps=8)),
    (int4(128, **TILED), make("int4", block_m=128, block_n=128, warps=8, stages=5, split_k=2)),
    (int4(64, **TILED), make("int4", block_m=64, block_n=128, scaled="sums")),
    (int4(64, weight_dtype="fp4_e2m1"), make("int4", block_m=64)),
    (int8(64, group=128), make("groupwise", block_m=64)),
    (int8(16, group=64), make("groupwise", stages=4)),
    (int8(16, group=32), make("groupwise", block_n=128, block_k=64, warps=8, stages=5, dequant="bits")),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "config"), CASES, ids=lambda value: value.text)
def test_the_registers_of_a_product_in_flight_are_not_written(tmp_path: Path, problem: Problem, config: Config) -> None:
    code = assembler_code(unit(problem, config), tmp_path)
    assert products(code) > 0
    assert overwritten(code) == []


@pytest.mark.skipif(TRITON[:2] != ["3", "6"], reason="the code that Triton 3.6 generates")
def test_without_its_wait_a_kernel_writes_them(tmp_path: Path) -> None:
    problem, config = CASES[2]
    made = unit(problem, config)
    lines = made.source.splitlines(keepends=True)
    hasty = replace(made, source="".join(line for line in lines if '"=f,0"' not in line))
    assert hasty.source != made.source
    assert overwritten(assembler_code(hasty, tmp_path))
