"""The published dimensions of open architectures, and the N and K of their GEMMs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Item = dict[str, Any]
Pair = tuple[int, int]
Product = tuple[Pair, str]

DECODE = [1, 2, 4, 8, 16, 32, 64]
PREFILL = [128, 256, 512, 1024, 2048]
DENSE = [
    *range(1, 17), 20, 24, 28, 32, 40, 48, 56, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
    8192, 12288, 16384,
]  # fmt: skip
"""Small M dense, then every power of two and the 1.5x steps between them."""


@dataclass(frozen=True)
class Architecture:
    """A decoder: hidden size, width of all query heads, width of all key (or value) heads, width of one feed-forward
    branch, vocabulary, and the numbers of GPUs over which its projections are split. `gated`: gate and up projections
    without biases; else GPT-2's two layers with biases."""

    hidden: int
    query: int
    key: int
    feed: int
    vocabulary: int
    splits: tuple[int, ...] = (1,)
    gated: bool = True

    def products(self) -> list[Product]:
        """(N, K) of every projection with its fusion context: fused QKV, attention output, gate and up (apart and
        fused), down, LM head.

        An activation follows gate and up. The residual sum follows attention output and down, unless these are split
        over GPUs and reduced first. What follows the others splits their columns, which no epilogue can do.
        """
        found: list[Product] = []
        for parts in self.splits:
            query, feed = self.query // parts, self.feed // parts
            key = max(self.key // parts, min(self.key, 128))
            summed = "pointwise" if parts == 1 else "none"
            found += [((query + 2 * key, self.hidden), "none"), ((self.hidden, query), summed)]
            found += [((feed, self.hidden), "pointwise"), ((self.hidden, feed), summed)]
            found += [((2 * feed, self.hidden), "none")] if self.gated else []
            if self.vocabulary % parts == 0:
                found.append(((self.vocabulary // parts, self.hidden), "none"))
        return found

    def pairs(self) -> list[Pair]:
        """(N, K) of every projection."""
        return [pair for pair, _ in self.products()]


ARCHITECTURES = {
    "llama-3-8b": Architecture(4096, 4096, 1024, 14336, 128256, (1, 2)),
    "llama-2-7b": Architecture(4096, 4096, 4096, 11008, 32000, (1, 2)),
    "llama-3-70b": Architecture(8192, 8192, 1024, 28672, 128256, (1, 2, 4, 8)),
    "mistral-7b": Architecture(4096, 4096, 1024, 14336, 32000),
    "qwen2-7b": Architecture(3584, 3584, 512, 18944, 152064),
    "qwen3-8b": Architecture(4096, 4096, 1024, 12288, 151936),
    "llama-2-13b": Architecture(5120, 5120, 5120, 13824, 32000, (1, 2, 4, 8)),
    "llama-3.2-1b": Architecture(2048, 2048, 512, 8192, 128256),
    "llama-3.2-3b": Architecture(3072, 3072, 1024, 8192, 128256),
    "qwen3-32b": Architecture(5120, 8192, 1024, 25600, 151936, (1, 2, 4, 8)),
    "qwen2-72b": Architecture(8192, 8192, 1024, 29568, 152064, (1, 2, 4, 8)),
    "mixtral-8x7b": Architecture(4096, 4096, 1024, 14336, 32000, (1, 2, 4, 8)),
    "mixtral-8x22b": Architecture(6144, 6144, 1024, 16384, 32768, (1, 2, 4, 8)),
    "mistral-nemo-12b": Architecture(5120, 4096, 1024, 14336, 131072, (1, 2, 4, 8)),
    "llama-3-405b": Architecture(16384, 16384, 1024, 53248, 128256, (1, 2, 4, 8)),
    "qwen2-1.5b": Architecture(1536, 1536, 256, 8960, 151936),
    "qwen2-0.5b": Architecture(896, 896, 128, 4864, 151936),
    "qwen3-0.6b": Architecture(1024, 2048, 1024, 3072, 151936),
    "qwen3-1.7b": Architecture(2048, 2048, 1024, 6144, 151936),
    "qwen3-4b": Architecture(2560, 4096, 1024, 9728, 151936),
    "qwen3-14b": Architecture(5120, 5120, 1024, 17408, 151936, (1, 2, 4, 8)),
    "llama-2-70b": Architecture(8192, 8192, 1024, 28672, 32000, (1, 2, 4, 8)),
    "qwen2.5-14b": Architecture(5120, 5120, 1024, 13824, 152064, (1, 2, 4, 8)),
    "qwen2.5-32b": Architecture(5120, 5120, 1024, 27648, 152064, (1, 2, 4, 8)),
    "mistral-small-24b": Architecture(5120, 4096, 1024, 32768, 131072, (1, 2, 4, 8)),
    "qwen3-30b-a3b": Architecture(2048, 4096, 512, 768, 151936),
}
JOINED = {
    "llama-2-13b": (4, 8), "mixtral-8x7b": (2, 4, 8), "mistral-nemo-12b": (2, 4, 8), "llama-3-405b": (1, 2, 4),
    "qwen3-14b": (2, 4, 8), "llama-2-70b": (1, 2, 4, 8), "qwen2.5-14b": (1, 2, 4, 8), "qwen2.5-32b": (1, 2, 4, 8),
    "mistral-small-24b": (1, 2, 4, 8), "qwen3-30b-a3b": (1,),
}  # fmt: skip
"""Splits that were added after tables of the preset `h200` had been built. Its first part is drawn without them, since
another pool would give another order."""
GPT2 = {
    "gpt2": Architecture(768, 768, 768, 3072, 50257, gated=False),
    "gpt2-medium": Architecture(1024, 1024, 1024, 4096, 50257, gated=False),
    "gpt2-large": Architecture(1280, 1280, 1280, 5120, 50257, gated=False),
    "gpt2-xl": Architecture(1600, 1600, 1600, 6400, 50257, gated=False),
}
HEAD = 7
"""How many architectures, from the top of ARCHITECTURES, the preset `llm` covers."""
ENCODERS = {"vit-b-16": (768, 197), "vit-l-14": (1024, 257), "vit-h-14": (1280, 257), "clip-text": (512, 77),
            "bert-base": (768, 128), "bert-large": (1024, 384)}  # fmt: skip
"""Hidden size and tokens of one input; the feed-forward width is four times the hidden size."""


def unique(pairs: Iterable[Pair]) -> list[Pair]:
    """The pairs without repeats, in order."""
    return list(dict.fromkeys(pairs))
