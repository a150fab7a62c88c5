"""The reference of a GEMM on a CPU calls the kernels that default mode calls for it."""

import re

import pytest
import torch
import torch._inductor.config as inductor_config
from torch._inductor.utils import run_and_get_code

from gemmdb.generators.measure.cpu import session
from gemmdb.generators.measure.operands import operands
from gemmdb.generators.measure.program import Product
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem

PACK = "extern_kernels._weight_int8pack_mm"
SIZES = {"m": 24, "n": 48, "k": 64}


class Int8(torch.nn.Module):
    """As torchao's weight-only linear multiplies."""

    def __init__(self, n: int, k: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randint(-99, 99, (n, k), dtype=torch.int8), requires_grad=False)
        self.scale = torch.nn.Parameter(torch.rand(n, dtype=torch.bfloat16), requires_grad=False)

    def forward(self, x):
        return torch.mm(x, self.weight.t().to(x.dtype)) * self.scale


def calls(code: str) -> set[str]:
    """The library calls in generated code."""
    return set(re.findall(r"((?:extern_kernels|torch\.ops)\.[\w.]+)\(", code))


def reference(problem: Problem) -> set[str]:
    """The library calls of a problem's reference."""
    session._configure(problem, torch.get_num_threads())
    product = Product(problem, operands(problem, torch.device("cpu"), 1))
    _, (code,) = run_and_get_code(session.compile_candidate, problem, product, ATEN)
    return calls(code)


def default(module: torch.nn.Module, *inputs: torch.Tensor, frozen: bool) -> set[str]:
    """The library calls of what plain torch.compile makes of a module."""
    torch._dynamo.reset()
    with torch.no_grad(), inductor_config.patch(freezing=frozen, fx_graph_cache=False):
        _, (code,) = run_and_get_code(torch.compile(module), *inputs)
    return calls(code)


class Linear(torch.nn.Module):
    """A linear layer without a bias."""

    def __init__(self, n: int, k: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(n, k).to(dtype), requires_grad=False)

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight)


@pytest.mark.parametrize("frozen", [False, True])
def test_the_reference_of_an_int8_weight_is_the_weight_only_kernel(frozen):
    problem = Problem.gemm("mixed_mm", **SIZES, fusion="scale", constant_weight=frozen)
    x = torch.randn(SIZES["m"], SIZES["k"], dtype=torch.bfloat16)
    assert reference(problem) == default(Int8(SIZES["n"], SIZES["k"]), x, frozen=frozen) == {PACK}


@pytest.mark.parametrize(
    ("k", "weight", "fusion"), [(72, "int8", "scale"), (64, "uint8", "scale"), (64, "int8", "none")]
)
def test_other_weights_of_bytes_are_cast(k, weight, fusion):
    """ATen's kernel would crash for the first K, Inductor's pattern does not take the others."""
    problem = Problem.gemm("mixed_mm", m=24, n=48, k=k, weight_dtype=weight, fusion=fusion)
    assert reference(problem) == {"extern_kernels.mm"}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("frozen", [False, True])
def test_the_reference_of_a_dense_gemm_is_packed_as_in_default_mode(dtype, frozen):
    problem = Problem.gemm("mm", **SIZES, dtype=dtype, constant_weight=frozen)
    own = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    x = torch.randn(SIZES["m"], SIZES["k"]).to(own)
    assert reference(problem) == default(Linear(SIZES["n"], SIZES["k"], own), x, frozen=frozen)
