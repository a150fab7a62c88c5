"""The preset `h200-bmm`: products of batches. The part that tables were first built from comes first, then a balanced
order, of which any prefix is a sample.

The layouts are those of compiled programs. Heads of one sequence are read where the projection wrote them, side by side
(`interleaved`). Of several sequences Inductor copies them first: keys are then transposed in memory (`nn`), unless
something computed them anew, as rotary embeddings and repeated key heads do (`nt`). Values are stored by tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

from gemmdb.generators.shapes.architectures import Item
from gemmdb.generators.shapes.h200_batches_first import FIRST
from gemmdb.generators.shapes.pools import each
from gemmdb.generators.shapes.strata import Stratum, following

LENGTHS = [64, 128, 256, 384, 512, 768, 1024, 2048, 4096]
"""Tokens of a sequence."""
DECODERS = [(32, 128), (28, 128), (64, 128), (40, 128), (32, 64), (24, 128), (14, 64), (16, 256)]
"""Query heads and their size: Llama 3 8B and 70B, Qwen, Llama 3.2, Gemma."""
ENCODERS = [(12, 64), (16, 64), (16, 80), (8, 64), (12, 32)]
"""BERT, ViT, T5 and small ones."""
WINDOWS = [(64, 49, 32), (256, 49, 32), (12, 197, 64), (16, 257, 80), (12, 577, 64), (8, 1500, 64), (20, 77, 64)]
"""Matrices, tokens and head size: Swin's windows, ViT, Whisper, CLIP's texts."""
DIFFUSION = [(16, 4096, 40), (16, 1024, 80), (16, 256, 160), (20, 1024, 64), (40, 256, 64)]
"""Heads of two images, tokens and head size of U-Nets; they also attend to the 77 tokens of a text."""
EXACT: list[Item] = [{"dtype": "fp32"}, {"dtype": "fp32", "tf32": True}]
TOKENS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
LATENT = [(16, 128, 512), (32, 128, 512), (64, 128, 512), (128, 128, 512)]
"""Heads on one GPU, their size, and the latent size of DeepSeek's attention (MLA)."""
ADAPTED = [(4096, 4096), (6144, 4096), (14336, 4096), (4096, 14336), (3584, 3584), (2048, 2048), (8192, 8192)]
"""N and K of the layers that adapters of rank 8 to 64 belong to."""
BLOCKS = [(10, 256), (16, 160), (4, 256), (4, 512), (8, 128), (32, 64), (16, 64)]
"""Blocks and their side: layers whose weight is block-diagonal (Griffin, xLSTM, grouped projections)."""
EXPERTS = [(32, 5760, 2880), (32, 2880, 2880), (16, 16384, 5120), (8, 14336, 4096), (64, 2816, 2048)]
"""Experts, N and K where each expert gets as many tokens: gpt-oss, Llama 4, Mixtral, DeepSeek."""


def items() -> list[Item]:
    """The preset's items."""
    return following(FIRST, [*attention(), *exact_attention(), *vision(), *projections()])


def attention() -> list[Stratum]:
    """Attention of decoders that is written out, in half precision: a prefill, a step of several queries per key head,
    and the gradients of keys and values (`tn`) and of queries."""
    decoders = list(_heads(DECODERS, (1, 2, 8), LENGTHS))
    groups = [(batch * 8, rows, size) for batch, rows, size in product((1, 8, 32), (1, 4, 8), (64, 128))]
    keys = [(*group, length) for group, length in product(groups, [256, 1024, 2048, 4096])]
    return [
        Stratum(40, [item for one in decoders for item in scores(*one, dtype=["bf16", "fp16"])]),
        Stratum(40, [item for one in decoders for item in values(*one, dtype=["bf16", "fp16"])]),
        Stratum(20, [_bmm(batch, m, length, size) for batch, m, size, length in keys], ("m",)),
        Stratum(20, [_bmm(batch, m, size, length, layout="nn") for batch, m, size, length in keys], ("m",)),
        Stratum(10, [_bmm(heads * batch, m, size, m, layout="tn") for heads, batch, m, size in decoders]),
        Stratum(8, [_bmm(heads * batch, m, size, m, layout="nn") for heads, batch, m, size in decoders]),
    ]


def exact_attention() -> list[Stratum]:
    """Attention in fp32, as older encoders and T5 have it, with and without TF32."""
    every = list(_heads(ENCODERS, (1, 2, 8, 32), LENGTHS))
    return [
        stratum
        for numerics in EXACT
        for stratum in (
            Stratum(24, [item for one in every for item in scores(*one, **numerics)]),
            Stratum(24, [item for one in every for item in values(*one, **numerics)]),
        )
    ]


def vision() -> list[Stratum]:
    """Images, speech and diffusion: sizes that are no multiples of 8, and attention to another sequence."""
    windows = [(heads, batch, m, size) for heads, m, size in WINDOWS for batch in (1, 8)]
    across = [(heads, m, size) for heads, m, size in DIFFUSION]
    some: dict[str, Any] = {"dtype": ["bf16", "fp16", "fp32"]}
    return [
        Stratum(14, [item for one in windows for item in scores(*one, **some)]),
        Stratum(14, [item for one in windows for item in values(*one, **some)]),
        Stratum(6, [item for heads, m, size in across for item in scores(heads // 2, 2, m, size, dtype="fp16")]),
        Stratum(6, [item for heads, m, size in across for item in values(heads // 2, 2, m, size, dtype="fp16")]),
        Stratum(5, [_bmm(heads, m, 77, size, dtype="fp16") for heads, m, size in across]),
        Stratum(5, [_bmm(heads, m, size, 77, layout="nn", dtype="fp16") for heads, m, size in across]),
    ]


def projections() -> list[Stratum]:
    """Products of a batch of weights: MLA's absorbed projections, adapters, blocks of a diagonal, experts."""
    ranks, adapters = (8, 16, 64), (4, 16, 64)
    down = [_bmm(b, m, r, k) for b, m, r, (_, k) in product(adapters, TOKENS[:8], ranks, ADAPTED)]
    up = [_bmm(b, m, n, r) for b, m, r, (n, _) in product(adapters, TOKENS[:8], ranks, ADAPTED)]
    absorbed = [(heads, m, size, latent) for (heads, size, latent), m in product(LATENT, TOKENS)]
    blocks = [_bmm(b, m, side, side, interleaved="a") for (b, side), m in product(BLOCKS, TOKENS)]
    experts = [_bmm(b, m, n, k) for (b, n, k), m in product(EXPERTS, TOKENS[:9])]
    return [
        Stratum(24, [item for one in down for item in each(one, layout=["nt", "nn"], dtype=["bf16", "fp16"])]),
        Stratum(24, [item for one in up for item in each(one, layout=["nt", "nn"], dtype=["bf16", "fp16"])]),
        Stratum(22, [_bmm(b, m, latent, size, layout="nn", interleaved="a") for b, m, size, latent in absorbed]),
        Stratum(22, [_bmm(b, m, size, latent, interleaved="a") for b, m, size, latent in absorbed]),
        Stratum(22, [item for one in blocks for item in each(one, layout=["nt", "nn"], dtype=["bf16", "fp32"])]),
        Stratum(12, [item for one in experts for item in each(one, layout=["nt", "nn"])]),
    ]


def scores(heads: int, sequences: int, tokens: int, size: int, **rest: Any) -> list[Item]:
    """Queries times keys: [tokens, size] by [size, tokens] for each head, in each layout that programs have."""
    item = _bmm(heads * sequences, tokens, tokens, size)
    if sequences > 1:
        return each(item, layout=["nt", "nn"], **rest)
    return each(item, interleaved=["ab", "a"], **rest)


def values(heads: int, sequences: int, tokens: int, size: int, **rest: Any) -> list[Item]:
    """The softmax times values: [tokens, tokens] by [tokens, size] for each head, stored by heads and by tokens."""
    item = _bmm(heads * sequences, tokens, size, tokens, layout="nn")
    sided = [""] if sequences > 1 else ["", "b"]
    return each(item, interleaved=sided, fusion=["none", "pointwise:permuted"], **rest)


def _heads(
    models: Iterable[tuple[int, int]], sequences: Iterable[int], lengths: Iterable[int]
) -> Iterable[tuple[int, int, int, int]]:
    """(heads, sequences, tokens, head size)."""
    for (heads, size), several, length in product(models, sequences, lengths):
        yield heads, several, length, size


def _bmm(batch: int, m: int, n: int, k: int, **rest: Any) -> Item:
    return {"op": "bmm", "batch": batch, "m": m, "n": n, "k": k, **rest}
