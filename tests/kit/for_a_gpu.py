"""Kernels for a GPU in compiles on a CPU: their configs, operands, and the one GEMM of a program in the journal.

This module imports torch: only tests that need torch import it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import gemmdb.inductor
from gemmdb import Config
from kit.gpu import make

linear = torch.nn.functional.linear
NARROW = make("narrow", split_k=2)
TILE = make("tile", block_m=64, block_n=128)
TMA = Config.of("triton", "tile", **{**TILE.values, "load": "tma"})
PERSISTENT = make("persistent")
INDUCTOR_TMA = Config.of(
    "triton", "inductor_persistent_tma", block_m=64, block_n=128, block_k=64, group_m=8, warps=4, stages=3
)
CUTLASS = Config.of(
    "cutlass", "gemm", tile_m=64, tile_n=64, tile_k=128, cluster_m=1, cluster_n=1, schedule="pingpong", split_k=1,
    swizzle=1, raster="auto", swap=1,
)  # fmt: skip


MAPPED = [TMA, PERSISTENT, INDUCTOR_TMA, CUTLASS]


def asked(model: Callable[..., Any], *inputs: Any, config: Any, **options: Any) -> dict[str, Any]:
    """The one GEMM of `model` in the journal, compiled with `config`; the result is right."""
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    with torch.no_grad(), gemmdb.inductor.force(config, "test"):
        found = torch.compile(model, **options)(*inputs)
    wanted = model(*inputs).double()
    assert (found.double() - wanted).abs().max() <= 0.02 * wanted.abs().max()
    assert gemmdb.inductor.stats()["errors"] == []
    (product,) = gemmdb.inductor.stats()["products"]
    return dict(product)


def ints(*sizes: int) -> Any:
    return torch.randint(-9, 9, sizes, dtype=torch.int8)


def rand(*sizes: int) -> Any:
    return torch.randn(*sizes).bfloat16()


def inside(rows: int, columns: int, offset: int) -> Any:
    """A matrix that begins `offset` elements into its storage."""
    return rand(rows * columns + offset)[offset:].view(rows, columns)
