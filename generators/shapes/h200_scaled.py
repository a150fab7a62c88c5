"""The preset `h200-scaled`: products of fp8 operands, with scales of rows and of tensors, with and without a fast
accumulation. The part that tables were first built from comes first, then a balanced order, of which any prefix is a
sample.

torchao's inference has scales of rows or of tensors and a fast accumulation. So has the forward pass of its training;
the gradients, with operands of e5m2, have none. Qwen's projections of the queries, keys and values have biases.
"""

from __future__ import annotations

from itertools import product

from gemmdb.generators.shapes.architectures import ARCHITECTURES, DECODE, PREFILL, Item, Pair, unique
from gemmdb.generators.shapes.pools import TOKENS, all_products, core_pairs, grid, pool
from gemmdb.generators.shapes.strata import Stratum, following
from gemmdb.key.ops import SCALE_BLOCK

OP = "scaled_mm"
FEW = [*DECODE, 3, 6, 12, 24, 48]
MANY = [*PREFILL, 96, 384, 768, 1536, 4096, 8192]
MULTIPLE = 16
"""torch multiplies fp8 where N and K are multiples of this."""
DEEPSEEK = [(1536, 7168), (24576, 1536), (7168, 16384), (36864, 7168), (7168, 18432), (4096, 7168), (7168, 2048),
            (32768, 512)]  # fmt: skip
"""N and K of the projections of DeepSeek-V3: attention, its dense layers, and the shared expert."""
ROW, TENSOR = {"scales": "row"}, {"scales": "tensor"}
FAST = {"fast_accum": True}


def items() -> list[Item]:
    """The preset's items."""
    first = following(FIRST, [*inference(), *exact(), *others()])
    return [*first, *following([], [blocks()])]


def inference() -> list[Stratum]:
    """With a fast accumulation: all projections, mostly with few rows."""
    core, every = _whole(core_pairs()), _every()
    return [
        Stratum(80, pool(OP, FEW, core, **ROW, **FAST)),
        Stratum(40, pool(OP, FEW, every, **ROW, **FAST)),
        Stratum(30, pool(OP, MANY, every, **ROW, **FAST)),
        Stratum(60, pool(OP, FEW, every, **TENSOR, **FAST)),
        Stratum(24, pool(OP, MANY, every, **TENSOR, **FAST)),
        Stratum(30, pool(OP, [*FEW, *MANY], _biased(), bias="1d", scales=["row", "tensor"], **FAST)),
    ]


def exact() -> list[Stratum]:
    """Without a fast accumulation, which is what `torch._scaled_mm` does unless it is asked."""
    every = _every()
    gradients = [
        {"op": OP, "m": m, "n": k, "k": n, "dtype": "fp8_e5m2", "weight_dtype": "fp8_e4m3"}
        for m, (n, k) in product(TOKENS, every)
    ]
    return [
        Stratum(80, pool(OP, FEW, every, **ROW)),
        Stratum(24, pool(OP, MANY, every, **ROW)),
        Stratum(50, pool(OP, FEW, every, **TENSOR)),
        Stratum(20, pool(OP, MANY, every, **TENSOR)),
        Stratum(16, pool(OP, [*FEW, *MANY], _biased(), bias="1d", scales=["row", "tensor"])),
        Stratum(12, gradients),
    ]


def others() -> list[Stratum]:
    """Other outputs, epilogues and sizes of no known model."""
    every, rows = _every(), [*FEW, *MANY]
    both = {"scales": ["row", "tensor"], "fast_accum": [True, False]}
    return [
        Stratum(36, pool(OP, rows, every, out_dtype="fp16", **both)),
        Stratum(8, pool(OP, rows, every, out_dtype="fp32", **both)),
        Stratum(16, pool(OP, rows, every, fusion=["pointwise", "pointwise:reads1"], **ROW, **FAST)),
        Stratum(12, pool(OP, rows, every, fusion="pointwise:math:reads1", **ROW, **FAST)),
        Stratum(16, grid(OP, [1, 4, 16, 64, 256, 1024, 4096], **both)),
    ]


def blocks() -> Stratum:
    """Scales of blocks, 1 x 128 by 128 x 128, as DeepSeek-style checkpoints have them. They come last. cuBLAS takes
    them where M, and the number of blocks along K, are multiples of four: programs pad."""
    rows = [m for m in (*FEW, *MANY) if m % 4 == 0]
    whole = [(n, k) for n, k in (*DEEPSEEK, *_every()) if k % (4 * SCALE_BLOCK) == 0 and n % SCALE_BLOCK == 0]
    return Stratum(60, pool(OP, rows, unique(whole[: 3 * len(DEEPSEEK)]), scales="block"))


def _every() -> list[Pair]:
    return _whole(unique(pair for pair, _ in all_products()))


def _biased() -> list[Pair]:
    models = (model for name, model in ARCHITECTURES.items() if name.startswith("qwen2"))
    return _whole(unique(model.pairs()[0] for model in models))


def _whole(pairs: list[Pair]) -> list[Pair]:
    return [(n, k) for n, k in pairs if n % MULTIPLE == k % MULTIPLE == 0]


def _first(rows: list[int], n: int, k: int, **rest: object) -> Item:
    return {"op": OP, "m": rows, "n": n, "k": k, **rest}


_STEPS, _SIX = [1, 8, 16, 64, 512, 2048, 8192], [1, 4, 16, 32, 64, 128]
_QUICK = {"scales": "row", "fast_accum": True}
FIRST: list[Item] = [
    _first(_STEPS, 28672, 4096, **_QUICK),
    _first(_STEPS, 4096, 14336, **_QUICK),
    _first([1, 16, 64, 512, 2048], 6144, 4096, **_QUICK),
    _first([1, 16, 64, 512, 2048], 4096, 4096, **_QUICK),
    _first([8, 64, 512, 2048], 57344, 8192, **_QUICK),
    _first([1, 16, 64, 512, 2048], 8192, 28672, **_QUICK),
    _first([16, 512], 10240, 8192, **_QUICK),
    _first([16, 64, 512, 2048], 8192, 8192, scales=["row", "tensor"], fast_accum=True),
    _first([1, 16, 64, 512, 2048, 8192], 28672, 4096, scales="tensor", fast_accum=True),
    _first([16, 512, 2048], 4096, 14336, scales="tensor", fast_accum=True),
    _first([16, 512, 2048], 28672, 4096, scales=["row", "tensor"]),
    _first([512, 8192], 4096, 14336, scales=["row", "tensor"]),
    _first([16, 2048], 6144, 4096, **_QUICK, bias="1d"),
    _first([512], 28672, 4096, **_QUICK, fusion="pointwise"),
    _first([2, 4, 32], 28672, 4096, **_QUICK),
    _first([2, 4, 32], 4096, 14336, **_QUICK),
    _first([2, 4, 8, 32], 4096, 4096, **_QUICK),
    *(_first(_SIX, n, k, **_QUICK) for n, k in ((4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944))),
    *(_first([1, 8, 32, 64], n, k, **_QUICK) for n, k in ((7168, 8192), (8192, 3584), (1280, 8192), (8192, 1024))),
]
"""Projections of Llama 3 8B and 70B (this one also split over 8 GPUs) and of Qwen 2.5 7B. Tables were built from these
in this order."""
