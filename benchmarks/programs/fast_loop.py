"""The model and the loop of `fast`. Imports torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.programs.building import making, stirred, tokens
from benchmarks.programs.program import Built, Compile, Step


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model. `loop`: tokens that a step decodes."""

    hidden: int
    feed: int
    heads: int
    keys: int
    head: int
    vocabulary: int
    layers: int
    context: int
    loop: int


SIZES = {
    "gpu": Sizes(4096, 14336, 32, 8, 128, 128256, 8, 512, 8),
    "tiny": Sizes(64, 160, 4, 2, 16, 320, 1, 16, 2),
}


class Int8(nn.Module):
    """x (W in int8)^T, times one scale per column."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        largest = linear.weight.abs().amax(dim=1).float()
        scales = (largest / 127).clamp(min=1e-8)
        self.register_buffer("weight", (linear.weight / scales[:, None]).round().to(torch.int8))
        self.register_buffer("scales", scales.to(linear.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(dtype=x.dtype)) * self.scales


class Norm(nn.Module):
    """Root mean square normalisation."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


class Block(nn.Module):
    """Attention with a static cache, and a gated feed-forward."""

    def __init__(self, sizes: Sizes, rows: int) -> None:
        super().__init__()
        self.sizes = sizes
        query, key = sizes.heads * sizes.head, sizes.keys * sizes.head
        self.before, self.between = Norm(sizes.hidden), Norm(sizes.hidden)
        self.qkv = nn.Linear(sizes.hidden, query + 2 * key, bias=False)
        self.out = nn.Linear(query, sizes.hidden, bias=False)
        self.gate = nn.Linear(sizes.hidden, sizes.feed, bias=False)
        self.up = nn.Linear(sizes.hidden, sizes.feed, bias=False)
        self.down = nn.Linear(sizes.feed, sizes.hidden, bias=False)
        self.register_buffer("keys", torch.zeros(rows, sizes.keys, sizes.context, sizes.head))
        self.register_buffer("values", torch.zeros(rows, sizes.keys, sizes.context, sizes.head))

    def forward(self, x: Tensor, turn: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        """`x` [rows, tokens, hidden], `turn` [tokens, head / 2, 2], `position` [tokens], `mask` [tokens, context]."""
        x = x + self.out(self.attended(self.qkv(self.before(x)), turn, position, mask))
        between = self.between(x)
        return x + self.down(F.silu(self.gate(between)) * self.up(between))

    def attended(self, mixed: Tensor, turn: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        """Attention to the cache, which the new keys and values are written to."""
        rows, count, _ = mixed.shape
        sizes = self.sizes
        heads = mixed.view(rows, count, -1, sizes.head)
        query, key, value = heads.split((sizes.heads, sizes.keys, sizes.keys), dim=2)
        query, key = rotated(query, turn).transpose(1, 2), rotated(key, turn).transpose(1, 2)
        self.keys[:, :, position] = key
        self.values[:, :, position] = value.transpose(1, 2)
        repeats = sizes.heads // sizes.keys
        keys = self.keys.repeat_interleave(repeats, dim=1)
        values = self.values.repeat_interleave(repeats, dim=1)
        found = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        return found.transpose(1, 2).reshape(rows, count, -1)


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    """Rotary embedding of `x` [rows, tokens, heads, head] by `turn` [tokens, head / 2, 2]."""
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    cos, sin = turn[None, :, None, :, 0], turn[None, :, None, :, 1]
    both = (pairs[..., 0] * cos - pairs[..., 1] * sin, pairs[..., 1] * cos + pairs[..., 0] * sin)
    return torch.stack(both, -1).flatten(3).type_as(x)


class Transformer(nn.Module):
    """The model, from tokens to logits."""

    def __init__(self, sizes: Sizes, rows: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.blocks = nn.ModuleList(Block(sizes, rows) for _ in range(sizes.layers))
        self.norm = Norm(sizes.hidden)
        self.output = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)
        places = torch.arange(sizes.context).float()
        rates = 500000.0 ** (-torch.arange(0, sizes.head, 2).float() / sizes.head)
        angles = places[:, None] * rates
        self.register_buffer("turns", torch.stack((angles.cos(), angles.sin()), -1))
        self.register_buffer("causal", torch.ones(sizes.context, sizes.context, dtype=torch.bool).tril())

    def forward(self, ids: Tensor, position: Tensor) -> Tensor:
        """Logits [rows, tokens, vocabulary] of `ids` [rows, tokens]."""
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, self.turns[position], position, self.causal[position])
        return self.output(self.norm(x))


def decode_one_token(model: nn.Module, ids: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """A token drawn from the 200 likeliest, [rows, 1], and the logits [rows, vocabulary]."""
    logits = model(ids, position)[:, -1].float()
    likely, _ = torch.topk(logits / 0.8, min(200, logits.size(-1)))
    kept = torch.where(logits < likely[:, -1:], -float("inf"), logits / 0.8)
    chances = kept.softmax(dim=-1)
    drawn = torch.argmax(chances / torch.empty_like(chances).exponential_(1), dim=-1, keepdim=True)
    return drawn.to(torch.int), logits


def quantized(model: nn.Module) -> nn.Module:
    """The model with int8 weights in all linear layers."""
    for name, child in model.named_children():
        if isinstance(child, nn.Linear):
            setattr(model, name, Int8(child))
        else:
            quantized(child)
    return model


def flags() -> None:
    """What gpt-fast's script sets before it compiles."""
    from torch._inductor import config

    config.coordinate_descent_tuning = True
    config.triton.unique_kernel_names = True
    config.fx_graph_cache = True


def built(rows: int, int8: bool, size: str, device: str) -> Built:
    """The loop over `Sizes.loop` tokens. What it draws is not fed back: all ways then see the same tokens."""
    sizes = SIZES[size]
    flags()
    with making(device):
        model: nn.Module = stirred(Transformer(sizes, rows).eval())
    model = quantized(model) if int8 else model
    fed = tokens(sizes.vocabulary, rows, sizes.loop, device=device).to(torch.int)
    positions = torch.arange(sizes.context - sizes.loop, sizes.context, device=device)

    def loop(decode: Callable[..., Any], of: nn.Module) -> list[Tensor]:
        found = []
        for index in range(sizes.loop):
            _, logits = decode(of, fed[:, index : index + 1].clone(), positions[index : index + 1].clone())
            found.append(logits.clone())
        return found

    def step(compile: Compile) -> Step:
        decode = compile(decode_one_token)
        return lambda: loop(decode, model)

    def reset() -> None:
        for name, buffer in model.named_buffers():
            if name.endswith((".keys", ".values")):
                buffer.zero_()

    def reference() -> list[Tensor]:
        return loop(decode_one_token, copy.deepcopy(model).float())

    return Built(step, reference, reset)
