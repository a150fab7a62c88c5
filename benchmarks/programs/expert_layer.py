"""The layer of `expert_layers`. Imports torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.programs.building import making, noise
from benchmarks.programs.expert_layers import Sizes
from benchmarks.programs.program import Built, Compile, Step


class Layer(nn.Module):
    """Gate and up projection, SiLU, down projection of a token's experts, and the sum of their results by shares. The
    routing is an input: a token whose router is undecided would go to other experts in another precision."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.up = nn.Parameter(_drawn(sizes.experts, 2 * sizes.inner, sizes.hidden))
        self.down = nn.Parameter(_drawn(sizes.experts, sizes.hidden, sizes.inner))

    def forward(self, x: Tensor, shares: Tensor, chosen: Tensor) -> Tensor:
        """See `experts`."""
        return experts(x, shares, chosen, self.up, self.down)


def experts(x: Tensor, shares: Tensor, chosen: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """The layer of a token's experts as transformers 5.17 to 5.24 spells it (`integrations/moe.py`).

    `x` [tokens, hidden]; `shares` [tokens, top_k] of the experts `chosen` [tokens, top_k], integers; `up` [experts, 2
    inner, hidden], `down` [experts, hidden, inner]. Returns [tokens, hidden].
    """
    tokens, hidden = x.shape
    ids, order = chosen.flatten().sort()
    counted = ids.int() if x.is_cuda else ids.float()  # What histc takes there.
    ends = torch.histc(counted, bins=len(up), min=0, max=len(up) - 1).cumsum(0, dtype=torch.int32)
    gate, proposed = F.grouped_mm(x[order // chosen.shape[1]], up.mT, offs=ends).chunk(2, dim=-1)
    found = F.grouped_mm(F.silu(gate) * proposed, down.mT, offs=ends) * shares.flatten()[order, None]
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=x.device)
    return found[place].view(tokens, -1, hidden).sum(1)


def _drawn(experts: int, columns: int, depth: int) -> Tensor:
    """Random weights of about unit gain. By expert: an fp32 copy of all may not fit."""
    return torch.stack([torch.randn(columns, depth) * depth**-0.5 for _ in range(experts)])


def built(sizes: Sizes, tokens: int, device: str) -> Built:
    """The program of one layer. The version that is not compiled is the reference."""
    with making(device):
        layer = Layer(sizes)
    x = noise(tokens, sizes.hidden, device=device)
    scores = torch.rand(tokens, sizes.experts, generator=torch.Generator().manual_seed(2)).softmax(-1)
    best = scores.topk(sizes.top_k, dim=-1)
    shares = (best.values / best.values.sum(-1, keepdim=True)).to(device, torch.bfloat16)
    chosen = best.indices.to(device)

    def step(compile: Compile) -> Step:
        run = compile(layer)
        return lambda: run(x, shares, chosen)

    return Built(step)
