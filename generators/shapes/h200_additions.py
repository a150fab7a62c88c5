"""The second part of the preset `h200`: what the first part lacks. It comes after the first, whose order must not
change.

It holds every projection that the first part lacks at all M, mixed_mm with more than 4,096 rows, each layout in each
dtype, and the biases in the layouts and dtypes of training and inference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

from gemmdb.generators.shapes.architectures import ARCHITECTURES, DENSE, GPT2, Item, Pair, Product, unique
from gemmdb.generators.shapes.pools import (
    ODD,
    SIDES,
    TOKENS,
    all_products,
    core_pairs,
    each,
    encoder_layers,
    gradient,
    grid,
    inside,
    pool,
    sizes,
)
from gemmdb.generators.shapes.strata import Stratum, affordable
from gemmdb.key.problem import Problem

PRECISIONS: dict[str, Item] = {
    "bf16": {"dtype": "bf16"},
    "fp16": {"dtype": "fp16"},
    "fp32": {"dtype": "fp32"},
    "tf32": {"dtype": "fp32", "tf32": True},
}
FEW, MANY = [m for m in DENSE if m <= 64], [m for m in DENSE if m > 64]
LONG = [m for m in DENSE if m > 4096]


def strata(first: Sequence[Item]) -> list[Stratum]:
    """The strata of the second part, given the items of the first."""
    absent = {op: _absent(op, first) for op in ("mixed_mm", "mm", "int_mm")}
    return [*mixed_mm(absent["mixed_mm"]), *mm(absent["mm"]), *addmm(), *int_mm(absent["int_mm"])]


def mixed_mm(absent: Sequence[Product]) -> list[Stratum]:
    """Weight-only int8: more rows, weights stored [K, N] in fp16, squares, GPT-2 and encoders."""
    pairs, every = unique(pair for pair, _ in absent), _pairs()
    sides = [{"op": "mixed_mm", "m": side, "n": side, "k": side, "fusion": "scale"} for side in SIDES]
    return [
        _every_pair(pool("mixed_mm", FEW, pairs, fusion="scale")),
        _every_pair(pool("mixed_mm", MANY, pairs, fusion="scale")),
        Stratum(40, pool("mixed_mm", LONG, every, fusion="scale")),
        Stratum(12, pool("mixed_mm", LONG, every)),
        Stratum(16, pool("mixed_mm", LONG, every, fusion="scale", dtype="fp16")),
        Stratum(12, pool("mixed_mm", LONG, every, fusion="scale", weight_dtype="uint8", dtype=["bf16", "fp16"])),
        Stratum(14, pool("mixed_mm", DENSE, core_pairs(), fusion="scale", layout="nn", dtype="fp16")),
        Stratum(14, [item for side in sides for item in each(side, dtype=["bf16", "fp16"])]),
        Stratum(14, pool("mixed_mm", DENSE, _gpt2(), fusion="scale")),
        Stratum(12, encoder_layers("mixed_mm", fusion="scale")),
        Stratum(8, grid("mixed_mm", [4096, 16384], fusion="scale")),
        Stratum(8, sizes("mixed_mm", *ODD, fusion="scale", dtype="fp16")),
    ]


def mm(absent: Sequence[Product]) -> list[Stratum]:
    """Training in fp16, fp32 and TF32, GPT-2 with its LM head, and odd sizes in the remaining layouts and dtypes."""
    layers = [*_gpt2(), *_pairs()]
    gradients = {
        layout: [gradient(layout, m, n, k) for m, (n, k) in product(TOKENS, layers)] for layout in ("nn", "tn")
    }
    return [
        _every_pair(inside("mm", FEW, absent)),
        _every_pair(inside("mm", MANY, absent)),
        *_in_each(gradients["nn"], bf16=6, fp16=22, fp32=8, tf32=12),
        *_in_each(gradients["tn"], bf16=6, fp16=22, fp32=8, tf32=12),
        *_in_each(pool("mm", DENSE, layers, layout="nn"), fp16=14, fp32=8, tf32=8),
        *_in_each(pool("mm", DENSE, _gpt2()), bf16=12, fp16=12),
        *_in_each(sizes("mm", *ODD), fp32=8, tf32=8),
        *_in_each(sizes("mm", *ODD, layout=["nn", "tn"]), bf16=8, fp16=8),
    ]


def addmm() -> list[Stratum]:
    """GPT-2's weights as stored, gradients that are added to those of earlier steps, and the other biases.

    None is followed by an elementwise op: on a GPU, Inductor makes that an mm.
    """
    gpt2, core = [pair for pair in _gpt2() if pair[0] != GPT2["gpt2"].vocabulary], core_pairs()
    layers = [*_gpt2(), *_pairs()]
    sums = [{**gradient("tn", m, n, k), "op": "addmm", "bias": "full"} for m, (n, k) in product(TOKENS, layers)]
    squares = [{"op": "addmm", "m": side, "n": side, "k": side} for side in SIDES]
    return [
        _every_pair(pool("addmm", DENSE, _qwen_biased())),
        *_in_each(pool("addmm", DENSE, gpt2, layout="nn"), fp16=20, fp32=8, tf32=10),
        *_in_each(sums, bf16=14, fp16=12, fp32=6, tf32=8),
        *_in_each(pool("addmm", DENSE, core, bias="full"), fp16=12, fp32=6, tf32=6),
        *_in_each(pool("addmm", DENSE, core, bias="full", layout="nn"), bf16=6, fp16=6, fp32=3, tf32=3),
        *_in_each(pool("addmm", DENSE, gpt2, bias="column"), fp16=10, fp32=6, tf32=6),
        *_in_each(pool("addmm", DENSE, gpt2, bias="column", layout="nn"), bf16=6, fp16=6, fp32=3, tf32=3),
        *_in_each(squares, fp16=6, fp32=4, tf32=4),
        *_in_each(sizes("addmm", *ODD), fp16=8, fp32=6, tf32=4),
    ]


def int_mm(absent: Sequence[Product]) -> list[Stratum]:
    """int8 times int8 for the remaining projections, and for GPT-2, whose LM head ATen refuses."""
    rows = [m for m in DENSE if m > 16]
    gpt2 = [pair for pair in _gpt2() if pair[0] % 8 == 0]
    return [
        _every_pair(pool("int_mm", rows, unique(pair for pair, _ in absent), fusion="scale")),
        Stratum(10, pool("int_mm", rows, gpt2, fusion="scale")),
    ]


def _absent(op: str, first: Iterable[Item]) -> list[Product]:
    """The projections whose (N, K) is missing in the first part at all M."""
    there = {(item["n"], item["k"]) for item in first if item["op"] == op}
    return [(pair, fusion) for pair, fusion in all_products() if pair not in there]


def _every_pair(items: Sequence[Item]) -> Stratum:
    """One problem per (N, K), if some problem of it is small enough."""
    small = [item for item in items if affordable(Problem.gemm(**item))]
    return Stratum(len({(item["n"], item["k"]) for item in small}), small, turns=("n", "k"))


def _in_each(items: Sequence[Item], **wanted: int) -> list[Stratum]:
    """A stratum for each of these PRECISIONS, with the given number of items."""
    return [Stratum(count, [item | PRECISIONS[name] for item in items]) for name, count in wanted.items()]


def _pairs() -> list[Pair]:
    return unique(pair for pair, _ in all_products())


def _gpt2() -> list[Pair]:
    return unique(pair for model in GPT2.values() for pair in model.pairs())


def _qwen_biased() -> list[Pair]:
    """The QKV projections of Qwen 2 and 2.5, with all splits: the only ones of these decoders that have biases."""
    models = [model for name, model in ARCHITECTURES.items() if name.startswith("qwen2")]
    return unique(replace(model, splits=(split,)).pairs()[0] for model in models for split in model.splits)
