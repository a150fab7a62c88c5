"""Programs whose sizes come out of data.

This module imports torch: only tests that need torch import it."""

from __future__ import annotations

from typing import Any

import torch

import gemmdb.inductor
from gemmdb import Config

PACK = Config.of("aten", "int8pack_mm")
WEIGHT = torch.randint(-128, 128, (96, 64), dtype=torch.int8)
ROWS = torch.randn(200, 64).bfloat16()
WIDE = torch.randn(64, 96)


def mask(rows: int) -> torch.Tensor:
    """One that chooses that many of ROWS, here and there."""
    return torch.randperm(len(ROWS)).argsort() < rows


def linear(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, WEIGHT.to(x.dtype))


class Frozen(torch.nn.Module):  # type: ignore[misc]
    """The rows that a mask chooses, by a weight that is a constant. No float one: torch 2.11 packs none for a number of
    rows that it does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", WEIGHT)

    def forward(self, x: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        x = x[which]
        return torch.nn.functional.linear(x, self.w.to(x.dtype))


def counts(total: int) -> torch.Tensor:
    return torch.tensor([total // 2, total - total // 2])


def product() -> dict[str, Any]:
    """The one GEMM that was compiled, once."""
    stats = gemmdb.inductor.stats()
    assert (stats["errors"], stats["uncovered"], stats["benchmarked"]) == ([], {}, 0)
    (found,) = stats["products"]
    assert found["count"] == 1
    return dict(found)
