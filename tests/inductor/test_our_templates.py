"""Our Triton templates under Inductor's own template engine."""

import ast

import jinja2
import pytest
from torch._inductor.codegen.common import KernelTemplate

from gemmdb import kernels_triton
from gemmdb.config import Config
from gemmdb.problem import Problem

TILE = {
    "block_m": 16, "block_n": 64, "block_k": 128, "group_m": 8, "split_k": 1, "reduce": "none", "swap": 0,
    "load": "pointer", "dequant": "bits", "warps": 4, "stages": 3,
}  # fmt: skip
GEMV = {"block_n": 8, "block_k": 256, "unroll": 2, "dequant": "cast", "warps": 4, "stages": 5}


@pytest.mark.parametrize(("kernel", "values"), [("tile", TILE), ("gemv", GEMV)])
def test_the_hooks_are_those_that_inductor_gives(kernel: str, values: dict[str, str | int]) -> None:
    problem = Problem.gemm("mixed_mm", m=4, n=512, k=512)
    template = KernelTemplate._template_from_string(kernels_triton.source(kernel))
    hooks = {
        "def_kernel": lambda *names: f"def kernel({', '.join(names)}):",
        "size": lambda name, dim: f"{name}.size{dim}",
        "stride": lambda name, dim: f"{name}.stride{dim}",
        "store_output": lambda indices, value, mask, indent_width=4, val_shape=None: f"store({value}, {mask})",
    }
    names = kernels_triton.names(Config.of("triton", kernel, **values), problem)
    text = template.render(**names, **hooks)
    function = ast.parse(text.strip()).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert "store(acc, mask)" in text
    names.pop("MIXED")
    with pytest.raises(jinja2.UndefinedError):
        template.render(**names, **hooks)
