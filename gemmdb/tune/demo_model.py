"""The demo's program: a transformer block in fp32 and bf16, an int8 x int8 GEMM and an int8-weight linear.

    python -m gemmdb.tune.demo_model [NAME]...          compile and run its modules (all) in default mode

`gemmdb record` runs it like any other program. It does not import gemmdb.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch._inductor.config
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

WIDTH, HEADS, TOKENS = 1024, 16, 4


class Block(nn.Module):
    """A pre-norm transformer block on [1, tokens, width] inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norm2(x))))


class Int8Product(nn.Module):
    """[32, width] int8 times a constant int8 weight, scaled to float."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.randint(-128, 128, (WIDTH, WIDTH), dtype=torch.int8))
        self.register_buffer("s", torch.rand(WIDTH) / 1000)

    def forward(self, x: Tensor) -> Tensor:
        return torch._int_mm(x, self.w) * self.s


class Int8Weight(nn.Module):
    """A linear whose weight is int8 with one scale per output channel."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.randint(-128, 128, (WIDTH, WIDTH), dtype=torch.int8))
        self.register_buffer("s", (torch.rand(WIDTH) / 1000).to(torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.w.to(x.dtype)) * self.s


@dataclass(frozen=True)
class Case:
    """A module with its input."""

    name: str
    module: nn.Module
    x: Tensor

    def reference(self) -> Tensor:
        """Return the same computation in float64, with exact integers."""
        x = self.x.double() if self.x.is_floating_point() else self.x
        result: Tensor = copy.deepcopy(self.module).double()(x)
        return result


def cases(names: Sequence[str] = ()) -> list[Case]:
    """Return the demo's modules, or only the named ones, with fixed seeds: every process gets the same weights and
    inputs."""
    torch.manual_seed(0)
    block = Block().eval()
    half = Block().eval()
    half.load_state_dict(block.state_dict())
    half.bfloat16()
    product, weight = Int8Product().eval(), Int8Weight().eval()
    x = torch.randn(1, TOKENS, WIDTH)
    x8 = torch.randint(-128, 128, (32, WIDTH), dtype=torch.int8)
    x16 = torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)
    found = [
        Case("block fp32", block, x),
        Case("block bf16", half, x.bfloat16()),
        Case("int8 product", product, x8),
        Case("int8-weight linear", weight, x16),
    ]
    return [case for case in found if not names or case.name in names]


def main(names: Sequence[str]) -> None:
    """Compile and run the named modules, all if no names are given."""
    torch._inductor.config.freezing = True
    with torch.no_grad():
        for case in cases(names):
            torch.compile(case.module)(case.x)


if __name__ == "__main__":
    main(sys.argv[1:])
