"""Random weights, activations and routings of a layer, and its exact result for some of the rows. Needs torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gemmdb.generators.vllm.layers import Experts
from gemmdb.key.ops import SCALE_BLOCK

SEED = 2
COPIES = 4
"""Different activations and routings that the calls of a graph use in turn: routing is data, and changes the time."""
CHECKED = 32
"""Rows that are compared with the exact result."""

Routing = tuple[torch.Tensor, torch.Tensor]
"""The shares of a token's experts, fp32, and these experts, int32, both [m, top_k]."""


@dataclass(frozen=True)
class Weight:
    """`values` [..., N, K]: bf16, or fp8_e4m3 with `scale` [..., N / 128, K / 128], fp32."""

    values: torch.Tensor
    scale: torch.Tensor | None

    def exact(self, index: int | None = None) -> torch.Tensor:
        """The weight, or that of one expert, in fp32 [N, K]."""
        values = (self.values if index is None else self.values[index]).float()
        if self.scale is None:
            return values
        scale = self.scale if index is None else self.scale[index]
        for dim in (0, 1):
            scale = scale.repeat_interleave(SCALE_BLOCK, dim)
        return values * scale[: values.shape[0], : values.shape[1]]


def weight(sizes: tuple[int, ...], fp8: bool, device: torch.device) -> Weight:
    """Return a random weight of about unit gain."""
    random = torch.Generator(device).manual_seed(SEED)
    # By matrix: an fp32 copy of all experts may not fit.
    values = torch.empty(sizes, dtype=torch.float8_e4m3fn if fp8 else torch.bfloat16, device=device)
    for matrix in values.view(-1, *sizes[-2:]):
        drawn = torch.randn(sizes[-2:], generator=random, device=device)
        matrix.copy_(drawn if fp8 else drawn * sizes[-1] ** -0.5)
    if not fp8:
        return Weight(values, None)
    blocks = (*sizes[:-2], *(-(-size // SCALE_BLOCK) for size in sizes[-2:]))
    scale = torch.rand(blocks, generator=random, device=device).add_(0.5).mul_(sizes[-1] ** -0.5)
    return Weight(values, scale)


def activations(m: int, k: int, device: torch.device) -> list[torch.Tensor]:
    """Return COPIES random activations, bf16 [m, k]."""
    random = torch.Generator(device).manual_seed(SEED + 1)
    return [torch.randn(m, k, generator=random, device=device).bfloat16() for _ in range(COPIES)]


def quantized(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the fp8_e4m3 values [m, K] of an activation, and its fp32 scales [m, K / 128]."""
    blocks = x.float().view(len(x), -1, SCALE_BLOCK)
    scale = blocks.abs().amax(-1).clamp_(min=1e-10) / torch.finfo(torch.float8_e4m3fn).max
    return (blocks / scale[..., None]).to(torch.float8_e4m3fn).view_as(x), scale


def routings(layer: Experts, m: int, device: torch.device) -> list[Routing]:
    """Return COPIES random routings. Each token has distinct experts."""
    random = torch.Generator(device).manual_seed(SEED + 2)
    found = []
    for _ in range(COPIES):
        scores = torch.rand(m, layer.experts, generator=random, device=device).softmax(-1)
        chosen = scores.topk(layer.top_k, dim=-1)
        found.append((chosen.values / chosen.values.sum(-1, keepdim=True), chosen.indices.int()))
    return found


def sample(m: int, device: torch.device) -> torch.Tensor:
    """Return the numbers of at most CHECKED of `m` rows, the first and the last among them."""
    return torch.linspace(0, m - 1, min(m, CHECKED), device=device).round().long()


def exact_experts(x: torch.Tensor, first: Weight, second: Weight, routing: Routing) -> torch.Tensor:
    """Return the result for `x` [m, hidden] and its routing, fp32. `first` [E, 2 N, hidden] holds gate and up, `second`
    [E, hidden, N] the down projection."""
    x, (shares, chosen) = x.float(), routing
    out = torch.zeros_like(x)
    for expert in chosen.unique().tolist():
        rows, places = (chosen == expert).nonzero(as_tuple=True)
        gate, up = (x[rows] @ first.exact(expert).t()).chunk(2, -1)
        down = (torch.nn.functional.silu(gate) * up) @ second.exact(expert).t()
        out.index_add_(0, rows, down * shares[rows, places, None])
    return out


def exact_linear(x: torch.Tensor, scale: torch.Tensor, matrix: Weight) -> torch.Tensor:
    """Return the product of fp8 `x` [m, K] with `scale` [m, K / 128], fp32."""
    return (x.float() * scale.repeat_interleave(SCALE_BLOCK, 1)) @ matrix.exact().t()


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the largest error of a row: the norm of the differences relative to that of the exact row; infinite for
    NaN."""
    exact = exact.float()
    worst = float(((found.float() - exact).norm(dim=-1) / exact.norm(dim=-1)).max())
    return worst if worst == worst else float("inf")
