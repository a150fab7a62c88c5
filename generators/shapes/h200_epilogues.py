"""The preset `h200-epilogues`: products of common models with the epilogues that their layers have, in classes that the
preset `h200` does not hold. The most used layers come first, then the rest in a balanced order, of which any prefix is
a sample.

The first product of a gated layer is multiplied alone, since Inductor fuses the gate into the second one. The linears
of attentions store by heads. Training keeps the product that an activation reads. Inductor leaves a bias in half
precision to the product, and makes an elementwise operation of one in fp32. Where nothing follows a residual, the
residual is the bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product, zip_longest
from typing import Any

from gemmdb.generators.shapes.architectures import (
    ARCHITECTURES,
    DECODE,
    DENSE,
    ENCODERS,
    GPT2,
    HEAD,
    PREFILL,
    Item,
    Pair,
    unique,
)
from gemmdb.generators.shapes.pools import GRID, TOKENS, gradient, pool, sizes
from gemmdb.generators.shapes.strata import Stratum, following

WHISPER = {"whisper-tiny": 384, "whisper-base": 512, "whisper-small": 768, "whisper-medium": 1024,
           "whisper-large": 1280}  # fmt: skip
"""Hidden sizes; the feed-forward width is four times as much."""
WINDOW = 1500
"""Tokens of thirty seconds of speech."""
MOST_USED = ("llama-3-8b", "qwen2-7b", "llama-2-7b", "llama-3.2-1b", "llama-3.2-3b", "qwen2-1.5b")
"""Gated layers of the first part."""
STEPS = (1, 16, 128, 512, 1024)
"""Rows of the first part."""
BATCHES = (1, 2, 4, 8, 16, 32)
HEAD_SIZES = (64, 128)


def items() -> list[Item]:
    """The preset's items, one problem each."""
    return following(most_used(), [*gated(), *encoders(), *attention(), *others()])


def most_used() -> list[Item]:
    """GELU in encoders, GPT-2 and Whisper, and SiLU times the gate in decoders, in turns: each prefix has both."""
    models = [ARCHITECTURES[name] for name in MOST_USED]
    gates = pool("mm", STEPS, [(model.feed, model.hidden) for model in models], fusion="pointwise:math:reads1")
    gates.sort(key=lambda item: models[0].feed != item["n"])  # One model at all steps first.
    seen = [ENCODERS[name] for name in ("bert-base", "vit-b-16", "bert-large", "vit-l-14")]
    rows = [(pair, size) for hidden, tokens in seen for pair in [(4 * hidden, hidden)] for size in (tokens, 8 * tokens)]
    rows += [((4 * hidden, hidden), WINDOW) for hidden in WHISPER.values()]
    layers = [item for pair, size in rows for item in pool("addmm", [size], [pair], fusion="pointwise:math")]
    layers += pool("addmm", STEPS, _gpt2_up()[:2], fusion="pointwise:math", layout="nn")
    turns = zip_longest(gates, layers)
    return [item for turn in turns for item in turn if item is not None]


def gated() -> list[Stratum]:
    """Gated layers of decoders: SiLU of the gate times the second product, and the first one alone."""
    rows, every = [*DECODE, *PREFILL], _gates(len(ARCHITECTURES))
    used = _gates(HEAD)
    second = "pointwise:math:reads1"
    return [
        Stratum(110, pool("mm", rows, used, fusion=second)),
        Stratum(40, pool("mm", DENSE, every, fusion=second)),
        Stratum(25, pool("mm", rows, used, fusion=second, dtype="fp16")),
        Stratum(70, pool("mm", rows, used)),
        Stratum(25, pool("scaled_mm", rows, used, fusion=second, scales=["tensor", "row"])),
    ]


def encoders() -> list[Stratum]:
    """Layers with a bias and an epilogue: GELU, forward and in training, and light ones."""
    up, both = _layers(4, 1), ["bf16", "fp16"]
    hidden = sorted({size for size, _ in _encoders()})
    # Of the layer behind the activation: the gradient of the GELU follows.
    back = [
        gradient("nn", m, size, 4 * size) | {"fusion": "pointwise:math:reads1"} for m, size in product(TOKENS, hidden)
    ]
    return [
        Stratum(90, _rows("addmm", up, fusion="pointwise:math", dtype=both)),
        Stratum(30, pool("addmm", DENSE, _gpt2_up(), fusion="pointwise:math", layout=["nn", "nt"])),
        Stratum(20, _rows("mm", up, fusion="pointwise:math", dtype="fp32", tf32=[False, True])),
        Stratum(30, _rows("addmm", up, fusion="pointwise:math:kept", dtype=both)),
        Stratum(40, _rows("addmm", _layers(1, 1), fusion="pointwise", dtype=both)),
        Stratum(20, back),
    ]


def attention() -> list[Stratum]:
    """Projections whose result is stored by heads, and products of batches that are stored by tokens."""
    heads = [
        {"op": "bmm", "batch": batch, "m": m, "n": size, "k": m, "layout": "nn", "fusion": "pointwise:permuted"}
        for batch, m, size in product((12, 16, 32, 64), (64, 128, 256, 512, 1024), HEAD_SIZES)
    ]
    square = _layers(1, 1)
    return [
        Stratum(35, _rows("addmm", square, fusion="pointwise:permuted", dtype=["bf16", "fp16"])),
        Stratum(10, _rows("mm", square, fusion="pointwise:permuted", dtype=["bf16", "fp16"])),
        Stratum(20, pool("mm", PREFILL, _queries(), fusion="pointwise:permuted")),
        Stratum(25, heads),
    ]


def others() -> list[Stratum]:
    """Residuals, logits in fp32, products that are kept, and samples of the rarer classes."""
    down, vocabularies = (
        _layers(1, 4),
        unique((model.vocabulary, model.hidden) for model in list(ARCHITECTURES.values())[:HEAD]),
    )
    grids = [("pointwise:reads2", 15), ("pointwise:kept", 15), ("pointwise:transposed", 15),
             ("pointwise:math:reads2", 8), ("pointwise:math:transposed", 8), ("pointwise:math:permuted", 8),
             ("pointwise:reads1:kept", 8), ("pointwise:math:fp32", 8)]  # fmt: skip
    return [
        Stratum(35, _rows("addmm", down, fusion="pointwise:reads1")),
        Stratum(20, pool("addmm", [*DECODE, *PREFILL], _downs(), bias="full")),
        Stratum(20, pool("mm", DECODE, vocabularies, fusion="pointwise:fp32")),
        Stratum(12, _rows("addmm", down, fusion="pointwise:reads1:fp32")),
        *(Stratum(count, sizes("mm", [16, 256, 1024, 4096], GRID, GRID, fusion=word)) for word, count in grids),
    ]


def _encoders() -> list[Pair]:
    """(hidden size, tokens of one input)."""
    return [*ENCODERS.values(), *((hidden, WINDOW) for hidden in WHISPER.values())]


def _layers(wide: int, deep: int) -> list[tuple[Pair, int]]:
    """((N, K), tokens) of the layers of encoders with these multiples of the hidden size."""
    return [((wide * hidden, deep * hidden), tokens) for hidden, tokens in _encoders()]


def _rows(op: str, layers: Sequence[tuple[Pair, int]], **rest: Any) -> list[Item]:
    """An item per layer, batch and value of the `rest`."""
    return [item for pair, tokens in layers for item in pool(op, [tokens * batch for batch in BATCHES], [pair], **rest)]


def _gates(first: int) -> list[Pair]:
    """(N, K) of the second products of the gated layers of the first architectures, with all splits."""
    models = list(ARCHITECTURES.values())[:first]
    return unique((model.feed // parts, model.hidden) for model in models for parts in model.splits)


def _downs() -> list[Pair]:
    return unique((model.hidden, model.feed) for model in list(ARCHITECTURES.values())[:HEAD])


def _queries() -> list[Pair]:
    return unique((model.query, model.hidden) for model in list(ARCHITECTURES.values())[:HEAD])


def _gpt2_up() -> list[Pair]:
    return [(model.feed, model.hidden) for model in GPT2.values()]
