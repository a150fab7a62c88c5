"""Products of batches and of fp8 operands as programs write them, with the problems that they are.

This module imports torch: only tests that need torch import it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

E4M3, E5M2, BF16 = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16
ROWS = pytest.mark.skipif(
    torch.__version__.startswith("2.11"), reason="ATen takes row scales on a CPU from torch 2.12 on"
)


@dataclass(frozen=True)
class Product:
    """A program of one GEMM. `sizes`: M, N and K. `batch`: of the operands, if any. `fields`: words of the problem's
    text, with a space between. `out`: the dtype of the output."""

    op: str
    model: Callable[..., Any]
    inputs: tuple[Any, ...]
    sizes: tuple[int, int, int]
    batch: tuple[int, ...] = ()
    fields: str = ""
    out: torch.dtype = BF16

    @property
    def head(self) -> str:
        """How the problem's text begins."""
        batch = "".join(f"batch={size} " for size in self.batch)
        return "{} {}m={} n={} k={} ".format(self.op, batch, *self.sizes)

    @property
    def operands(self) -> list[list[int]]:
        """The sizes of A and B."""
        m, n, k = self.sizes
        return [[*self.batch, m, k], [*self.batch, k, n]]


def placeholders(**tensors: Any) -> tuple[torch.fx.Graph, dict[str, Any]]:
    """A graph with an input for each tensor, and these by name."""
    graph = torch.fx.Graph()
    nodes = {name: graph.placeholder(name) for name in tensors}
    for name, node in nodes.items():
        node.meta["val"] = tensors[name]
    return graph, nodes


def rand(*sizes: int) -> Any:
    return torch.randn(*sizes).bfloat16()


def fp8(*sizes: int, dtype: Any = E4M3) -> Any:
    return torch.randn(*sizes).to(dtype)


def number() -> Any:
    return torch.rand(()) + 0.5


def heads(tokens: int = 5, count: int = 3, size: int = 16) -> Any:
    """The heads of an attention of one sequence: [heads, tokens, size], side by side in memory."""
    return rand(tokens, count, size).transpose(0, 1)


def scaled(a: Any, w: Any, first: Any, second: Any, **rest: Any) -> Any:
    """The GEMM of a linear, whose weight is [N, K]."""
    return torch._scaled_mm(a, w.t(), first, second, **{"out_dtype": BF16, **rest})


def _bmm(model: Callable[..., Any], a: Any, b: Any, fields: str) -> Product:
    return Product("bmm", model, (a, b), (5, 8, a.shape[-1]), (3,), fields)


def _scaled(model: Callable[..., Any], inputs: tuple[Any, ...], fields: str, out: torch.dtype = BF16) -> Product:
    return Product("scaled_mm", model, inputs, (len(inputs[0]), 16, 32), (), fields, out)


A, W = fp8(8, 32), fp8(16, 32)
BATCHED = {
    "dense": _bmm(torch.bmm, rand(3, 5, 16), rand(3, 16, 8), "a=bf16:row:8 b=bf16:row:8"),
    "weights as stored": _bmm(lambda a, w: a @ w.transpose(1, 2), rand(3, 5, 16), rand(3, 8, 16), "b=bf16:col:8"),
    "one weight": _bmm(lambda a, w: torch.bmm(a, w.expand(3, -1, -1)), rand(3, 5, 16), rand(16, 8),
                       "b=bf16:row:8:broadcast"),
    "heads": _bmm(lambda q, k: q @ k.transpose(1, 2), heads(), heads(8),
                  "a=bf16:row-padded:8:interleaved b=bf16:col-padded:8:interleaved"),
    "a gap": _bmm(lambda a, b: torch.bmm(a[:, :5], b), rand(3, 6, 16), rand(3, 16, 8), "a=bf16:row:8"),
    "misaligned": _bmm(torch.bmm, rand(3, 5, 15), rand(3, 15, 8), "a=bf16:row:1 b=bf16:row:8"),
    "four dimensions": _bmm(torch.matmul, rand(1, 3, 5, 16), rand(1, 3, 16, 8), "a=bf16:row:8 b=bf16:row:8"),
    "an epilogue": _bmm(lambda a, b: torch.relu(a @ b), rand(3, 5, 16), rand(3, 16, 8), "fusion=pointwise"),
}  # fmt: skip
SCALED = {
    "one number": _scaled(scaled, (A, W, number(), number()),
                          "a=fp8_e4m3:row:16 b=fp8_e4m3:col:16 out=bf16 bias=none scales=tensor fast=0"),
    "one number of two dimensions": _scaled(scaled, (A, W, number()[None, None], number()[None]),
                                            "scales=tensor fast=0"),
    "fast": _scaled(lambda *x: scaled(*x, use_fast_accum=True), (A, W, number(), number()), "scales=tensor fast=1"),
    "a bias": _scaled(lambda a, w, s, t, c: scaled(a, w, s, t, bias=c),
                      (A, W, number(), number(), torch.randn(16).bfloat16()), "bias=1d:bf16:8 scales=tensor fast=0"),
    "two dtypes": _scaled(lambda *x: scaled(*x, out_dtype=torch.float16), (A.to(E5M2), W, number(), number()),
                          "a=fp8_e5m2:row:16 b=fp8_e4m3:col:16 out=fp16", torch.float16),
    "an fp8 epilogue": _scaled(lambda *x: torch.relu(scaled(*x)), (A, W, number(), number()), "fusion=pointwise"),
    "padded rows": _scaled(lambda a, *x: scaled(a[:, :32], *x), (fp8(8, 48), W, number(), number()),
                           "a=fp8_e4m3:row-padded:16"),
}  # fmt: skip
BY_ROWS = {
    "rows": _scaled(scaled, (A, W, torch.rand(8, 1), torch.rand(1, 16)), "out=bf16 bias=none scales=row fast=0"),
    "one row": _scaled(scaled, (fp8(1, 32), W, torch.rand(1, 1), torch.rand(1, 16)), "scales=row fast=0"),
    "scales of a transposed weight": _scaled(lambda a, w, s, t: scaled(a, w, s, t.t()),
                                             (A, W, torch.rand(8, 1), torch.rand(16, 1)), "scales=row fast=0"),
}  # fmt: skip
PRODUCTS = {**BATCHED, **SCALED, **BY_ROWS}
