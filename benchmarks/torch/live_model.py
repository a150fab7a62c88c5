"""The graphs that `live` compiles: GEMMs of sizes that no table has."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

# (op, M, N, K). The rows of the last weight on a GPU do not start at multiples of 16 bytes, so the cost model does not
# cover it. The graphs are the first GEMM, the second GEMM, and the others.
GPU = (
    ("mm", 7, 5000, 3000), ("mixed_mm", 7, 5040, 3024), ("mm", 200, 3000, 5000), ("addmm", 13, 7000, 2600),
    ("addmm", 700, 2600, 7000), ("int_mm", 24, 5040, 3024), ("int_mm", 300, 3024, 5040), ("mixed_mm", 24, 3536, 9008),
    ("mixed_mm", 150, 5040, 3024), ("mixed_mm", 1, 9000, 3500),
)  # fmt: skip
CPU = (("mm", 8, 1000, 1200), ("mm", 24, 1000, 1200), ("mm", 1, 600, 800), ("mm", 40, 800, 600))


class Product(nn.Module):
    """One GEMM of [M, K] and [N, K] transposed, of an op; on a CPU in fp32, on a GPU in bf16 or int8."""

    def __init__(self, op: str, n: int, k: int, device: str) -> None:
        super().__init__()
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        weight = torch.randn(n, k, device=device, dtype=dtype)
        whole = torch.randint(-9, 9, (n, k), device=device, dtype=torch.int8)
        self.op = op
        self.register_buffer("weight", whole if op in ("int_mm", "mixed_mm") else weight)
        self.register_buffer("scale", torch.rand(n, device=device, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[M, N] of an `x` of [M, K]; int_mm gives int32."""
        if self.op == "int_mm":
            return torch._int_mm(x, self.weight.t())
        if self.op == "mixed_mm":
            return functional.linear(x, self.weight.to(x.dtype)) * self.scale
        return functional.linear(x, self.weight, self.scale if self.op == "addmm" else None)


class Graph(nn.Module):
    """Independent GEMMs in one graph."""

    def __init__(self, products: Sequence[Product]) -> None:
        super().__init__()
        self.products = nn.ModuleList(products)

    def forward(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """One GEMM of each input."""
        return [product(x) for product, x in zip(self.products, inputs, strict=True)]


def graphs(device: str) -> list[tuple[Graph, list[torch.Tensor]]]:
    """The graphs with their inputs."""
    made = [(Product(op, n, k, device), _input(op, m, k, device)) for op, m, n, k in (GPU if device == "cuda" else CPU)]
    groups = [made[:1], made[1:2], made[2:]]
    return [(Graph([product for product, _ in group]).eval(), [x for _, x in group]) for group in groups]


def _input(op: str, m: int, k: int, device: str) -> torch.Tensor:
    if op == "int_mm":
        return torch.randint(-9, 9, (m, k), device=device, dtype=torch.int8)
    return torch.randn(m, k, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
