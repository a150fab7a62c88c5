"""A Llama-3-8B-shaped decoder with random weights, its projections in bf16 or in 8-bit weights.

Only the shapes and the kinds of operations are the model's; the numbers mean nothing. Weights are drawn small enough
that activations stay finite through all layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; the defaults are those of Llama-3-8B."""

    hidden: int = 4096
    heads: int = 32
    key_heads: int = 8
    head: int = 128
    feed: int = 14336
    vocabulary: int = 128256
    layers: int = 32


@dataclass(frozen=True)
class Run:
    """What the model is made for: `rows` sequences at once, `context` tokens in the cache, `weights` as one of
    SPELLINGS."""

    rows: int
    context: int
    weights: str
    device: str = "cuda"


class Bf16(nn.Module):
    """x W^T with a [N, K] weight."""

    def __init__(self, columns: int, depth: int, device: str) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(columns, depth, device=device, dtype=torch.bfloat16) * depth**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class ScaledAfter(nn.Module):
    """x (W in int8)^T, times one scale per column: how weight-only int8 is usually written."""

    def __init__(self, columns: int, depth: int, device: str) -> None:
        super().__init__()
        weight = torch.randint(-127, 128, (columns, depth), device=device, dtype=torch.int8)
        scale = torch.rand(columns, device=device, dtype=torch.bfloat16) * (depth**-0.5 / 64)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype)) * self.scale


class ScaledBefore(ScaledAfter):
    """The same GEMM with the weight scaled first, which Inductor's slow weight-only kernel does not match."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype) * self.scale[:, None])


SPELLINGS: dict[str, type[nn.Module]] = {"bf16": Bf16, "int8": ScaledAfter, "int8-before": ScaledBefore}


class Norm(nn.Module):
    """Root mean square normalisation."""

    def __init__(self, size: int, device: str) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(size, device=device, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), eps=1e-5).to(x.dtype) * self.weight


class Block(nn.Module):
    """Attention over a cache of fixed length, which the new tokens are written to, and a gated feed-forward."""

    def __init__(self, shape: Shape, run: Run) -> None:
        super().__init__()
        self.shape = shape
        linear = SPELLINGS[run.weights]
        query, key = shape.heads * shape.head, shape.key_heads * shape.head
        self.before, self.between = Norm(shape.hidden, run.device), Norm(shape.hidden, run.device)
        self.qkv = linear(query + 2 * key, shape.hidden, run.device)
        self.out = linear(shape.hidden, query, run.device)
        self.up = linear(2 * shape.feed, shape.hidden, run.device)
        self.down = linear(shape.hidden, shape.feed, run.device)
        for name in ("keys", "values"):
            cache = torch.randn(run.rows, shape.key_heads, run.context, shape.head, device=run.device)
            self.register_buffer(name, cache.to(torch.bfloat16))

    def forward(self, x: Tensor, angles: Tensor, places: Tensor) -> Tensor:
        """`x` [rows, tokens, hidden], `angles` [tokens, head / 2], `places` [tokens], int64: where they lie in the
        cache."""
        x = x + self.out(self.attend(self.qkv(self.before(x)), angles, places))
        gate, up = self.up(self.between(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)

    def attend(self, mixed: Tensor, angles: Tensor, places: Tensor) -> Tensor:
        """Attention of the new tokens to the cache, which they are written to.

        Keys and values have a cache each and are written by an index tensor, as programs do (gpt-fast, transformers'
        StaticCache). Inductor writes those rows in place. Of an assignment to slices of one cache for both it made two
        copies of the whole cache.
        """
        rows, tokens, _ = mixed.shape
        shape = self.shape
        heads = mixed.view(rows, tokens, -1, shape.head).transpose(1, 2)
        query, key, value = heads.split((shape.heads, shape.key_heads, shape.key_heads), dim=1)
        query, key = rotate(query, angles), rotate(key, angles)
        self.keys[:, :, places] = key
        self.values[:, :, places] = value
        if tokens < self.keys.shape[2]:
            key, value = self.keys, self.values
        found = F.scaled_dot_product_attention(query, key, value, is_causal=tokens > 1, enable_gqa=True)
        return found.transpose(1, 2).reshape(rows, tokens, -1)


class Piece(nn.Module):
    """A decoder layer from the output of its attention to the input of the next one, as engines cut a decoder."""

    def __init__(self, shape: Shape, weights: str, device: str) -> None:
        super().__init__()
        linear = SPELLINGS[weights]
        query, key = shape.heads * shape.head, shape.key_heads * shape.head
        self.out = linear(shape.hidden, query, device)
        self.up, self.down = linear(2 * shape.feed, shape.hidden, device), linear(shape.hidden, shape.feed, device)
        self.qkv = linear(query + 2 * key, shape.hidden, device)
        self.between, self.before = Norm(shape.hidden, device), Norm(shape.hidden, device)

    def forward(self, attended: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """`attended` [rows, heads * head] and the residual `x` [rows, hidden]. Returns the next queries, keys and
        values [rows, ...] and the new residual."""
        x = x + self.out(attended)
        gate, up = self.up(self.between(x)).chunk(2, dim=-1)
        x = x + self.down(F.silu(gate) * up)
        return self.qkv(self.before(x)), x


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding of `x` [rows, heads, tokens, head]."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Head(nn.Module):
    """Normalisation and logits of the last token."""

    def __init__(self, shape: Shape, run: Run) -> None:
        super().__init__()
        self.norm = Norm(shape.hidden, run.device)
        self.logits = SPELLINGS[run.weights](shape.vocabulary, shape.hidden, run.device)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, vocabulary] of `x` [rows, tokens, hidden]."""
        return self.logits(self.norm(x[:, -1]))


class Decoder(nn.Module):
    """All layers and the head, from embedded tokens to logits."""

    def __init__(self, shape: Shape, run: Run) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(shape, run) for _ in range(shape.layers))
        self.head = Head(shape, run)

    def forward(self, x: Tensor, angles: Tensor, places: Tensor) -> Tensor:
        """Logits [rows, vocabulary] of `x` [rows, tokens, hidden]; `angles` and `places` as for a block."""
        for block in self.blocks:
            x = block(x, angles, places)
        return self.head(x)


def read_bytes(model: nn.Module) -> int:
    """The bytes that a decode step reads at least: all weights with their scales, and the cache."""
    return sum(buffer.nbytes for buffer in model.buffers())


def inputs(shape: Shape, run: Run, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Embedded tokens [rows, tokens, hidden], the angles of their positions [tokens, head / 2], and their places in the
    cache [tokens], int64: the last ones."""
    x = torch.randn(run.rows, tokens, shape.hidden, device=run.device).to(torch.bfloat16)
    rates = 500000.0 ** (-torch.arange(0, shape.head, 2, device=run.device) / shape.head)
    places = torch.arange(run.context - tokens, run.context, device=run.device)
    return x, places[:, None] * rates, places
