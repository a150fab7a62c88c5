"""The work of `blocks`: blocks of transformers, compiled in three ways and captured, and replayed in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gemmdb.inductor
from gemmdb.settings import Policy

ROUNDS, REPLAYS = 15, 20
"""Rounds of timings, and calls in each."""
Way = Callable[[], None]
WAYS: dict[str, Way] = {
    "default": lambda: None,
    "apart": lambda: gemmdb.inductor.enable(policy=Policy(horizontal=False)),
    "gemmdb": lambda: gemmdb.inductor.enable(policy=Policy()),
}


@dataclass(frozen=True)
class Shape:
    """Sizes of a block, and of its input: `rows` sequences of `tokens` tokens after `context` tokens in the cache."""

    layers: int
    hidden: int
    heads: int
    key_heads: int
    head: int
    feed: int
    rows: int
    tokens: int
    context: int = 0
    bias: bool = False
    gated: bool = True


SHAPES = {
    "Llama-3-8B, 1 row": Shape(2, 4096, 32, 8, 128, 14336, 1, 1, 511),
    "Llama-3-8B, 16 rows": Shape(2, 4096, 32, 8, 128, 14336, 16, 1, 255),
    "Qwen2-0.5B, 4 rows": Shape(3, 896, 14, 2, 64, 4864, 4, 1, 511, bias=True),
    "BERT, 8 x 128 tokens": Shape(4, 768, 12, 12, 64, 3072, 8, 128, bias=True, gated=False),
    "CLIP, 8 x 50 tokens": Shape(4, 768, 12, 12, 64, 3072, 8, 50, bias=True, gated=False),
    "Llama-3.2-1B, 512 tokens": Shape(2, 2048, 32, 8, 64, 8192, 1, 512),
}


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm and around a residual."""

    def __init__(self, of: Shape) -> None:
        super().__init__()
        self.of = of
        norm = nn.RMSNorm if of.gated else nn.LayerNorm
        query, key = of.heads * of.head, of.key_heads * of.head
        self.before, self.between = norm(of.hidden), norm(of.hidden)
        self.q, self.k, self.v = (nn.Linear(of.hidden, size, bias=of.bias) for size in (query, key, key))
        self.out = nn.Linear(query, of.hidden, bias=of.bias)
        self.up, self.down = nn.Linear(of.hidden, of.feed, bias=of.bias), nn.Linear(of.feed, of.hidden, bias=of.bias)
        self.gate = nn.Linear(of.hidden, of.feed, bias=of.bias) if of.gated else None

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        rows, tokens, _ = x.shape
        y = self.before(x)
        q, k, v = (one(y).view(rows, tokens, -1, self.of.head).transpose(1, 2) for one in (self.q, self.k, self.v))
        k, v = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        found = F.scaled_dot_product_attention(q, k, v, enable_gqa=self.of.heads != self.of.key_heads)
        x = x + self.out(found.transpose(1, 2).reshape(rows, tokens, -1))
        y = self.between(x)
        return x + self.down(F.gelu(self.up(y)) if self.gate is None else F.silu(self.gate(y)) * self.up(y))


class Blocks(nn.Module):
    """Blocks that share one cache."""

    def __init__(self, of: Shape) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(of) for _ in range(of.layers))

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, keys, values)
        return x


def measured(of: Shape) -> dict[str, dict[str, Any]]:
    """The facts about one shape, by way."""
    model = Blocks(of).cuda().bfloat16().eval()
    dense: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    x = torch.randn(of.rows, of.tokens, of.hidden, **dense)
    cache = [torch.randn(of.rows, of.key_heads, of.context, of.head, **dense) for _ in range(2)]
    wanted = model.float()(x.float(), *(one.float() for one in cache))
    model.bfloat16()
    graphs, facts = {}, {}
    for way, enable in WAYS.items():
        torch._dynamo.reset()
        gemmdb.inductor.reset_stats()
        enable()
        start = time.perf_counter()
        compiled = torch.compile(model)
        compiled(x, *cache)
        torch.cuda.synchronize()
        cold_s = time.perf_counter() - start
        graphs[way], out = captured(lambda run=compiled: run(x, *cache))  # type: ignore[misc]
        error = ((out.float() - wanted).abs().max() / wanted.abs().max()).item()
        facts[way] = {"cold_s": cold_s, "error": error, "stats": gemmdb.inductor.stats()}
        gemmdb.inductor.disable()
    times: dict[str, list[float]] = {way: [] for way in graphs}
    for _ in range(ROUNDS):
        for way, graph in graphs.items():
            times[way].append(replayed(graph))
    return {way: {"us": statistics.median(times[way]), "samples": times[way], **facts[way]} for way in graphs}


def captured(call: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A CUDA graph of one call, and its output after a replay."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    graph.replay()
    torch.cuda.synchronize()
    return graph, out


def replayed(graph: torch.cuda.CUDAGraph) -> float:
    """Microseconds of one replay, the mean of some in a row."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / REPLAYS
