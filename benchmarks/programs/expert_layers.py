"""Single layers of experts at the sizes of published models, from decoding one token to a prefill of 4,096."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.programs.program import Built, Program

TOKENS = (1, 16, 256, 4096)
TINY_TOKENS = 24


@dataclass(frozen=True)
class Sizes:
    """Experts on one GPU. `top_k`: how many each token goes to; `hidden`: the size of a token; `inner`: the columns of
    an expert's gate."""

    experts: int
    top_k: int
    hidden: int
    inner: int


SIZES = {
    "mixtral": Sizes(8, 2, 4096, 7168),
    "qwen3-moe": Sizes(128, 8, 2048, 768),
    "deepseek": Sizes(256, 8, 7168, 256),
}
"""Mixtral-8x7B on two GPUs, Qwen3-30B-A3B on one, DeepSeek-V3 on eight, all by tensor parallelism."""
TINY = Sizes(4, 2, 64, 32)


def make(sizes: Sizes, tokens: int, size: str, device: str) -> Built:
    """The layer for so many tokens; a smaller layer with fewer tokens for `tiny`."""
    from benchmarks.programs import expert_layer

    return expert_layer.built(*((sizes, tokens) if size == "gpu" else (TINY, min(tokens, TINY_TOKENS))), device)


def programs() -> Iterator[Program]:
    """All programs of this module."""
    for model, sizes in SIZES.items():
        for tokens in TOKENS:
            yield Program(f"experts-{model}-{tokens}", "bf16", functools.partial(make, sizes, tokens))
