"""The preset `h200`: the problems of the shipped table of a data-centre GPU, in an order whose every prefix is
balanced.

A stratum is a pool of problems for one use, with the number of wanted problems. Within a stratum, they are taken in the
order of a hash, one of each M in turn, so no size is preferred. The strata of an op are then merged in proportion to
their sizes, and the ops in proportion to FLOORS. The layers of the first architecture come first of all. Later
additions come last, in their own balanced order (`h200_additions`). Nothing is random: the same code gives the same
list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import product

from gemmdb.generators.shapes import h200_additions
from gemmdb.generators.shapes.architectures import ARCHITECTURES, DECODE, DENSE, GPT2, PREFILL, Item, unique
from gemmdb.generators.shapes.pools import (
    ODD,
    SIDES,
    TOKENS,
    core_pairs,
    core_products,
    each,
    encoder_layers,
    first_pairs,
    gradient,
    grid,
    inside,
    pool,
    sizes,
)
from gemmdb.generators.shapes.strata import Stratum, affordable, digest, draw, shares
from gemmdb.key.problem import Problem

FIRST = 6
"""How many of the most used (N, K), those of the first architecture on one GPU, are covered at every M of a prefill."""
FLOORS = {"mm": 1500, "addmm": 800, "int_mm": 600, "mixed_mm": 1000}
"""About how many problems of each op the first 3,900 hold, so that a build that stops early is short of no op."""


def items() -> list[Item]:
    """The preset's items, one problem each."""
    taken: set[Problem] = set()
    first = _first_part(taken)
    behind = [entry for found in draw(h200_additions.strata(first), taken) for entry in shares(found)]
    return [*first, *(item for _, item in sorted(behind, key=lambda entry: (entry[0], digest(entry[1]))))]


def _first_part(taken: set[Problem]) -> list[Item]:
    """The first version of the preset. Tables, samples and reports refer to its order, so it stays unchanged."""
    chosen = draw((*mixed_mm(), *mm(), *addmm(), *int_mm()), taken)
    total = Counter(item["op"] for found in chosen for item in found)
    leading = {Problem.gemm(**item) for item in first_model()}
    ranked = [
        (_place(item, share, total, leading), digest(item), item) for found in chosen for share, item in shares(found)
    ]
    return [item for *_, item in sorted(ranked, key=lambda entry: entry[:2])]


def _place(item: Item, share: float, total: Mapping[str, int], leading: Collection[Problem]) -> float:
    """The position of an item in the merged order. `share`: the share of its stratum that comes before it."""
    return 0.0 if Problem.gemm(**item) in leading else share * total[item["op"]] / FLOORS[item["op"]]


def first_model() -> list[Item]:
    """The layers of the most used model on one GPU at decode and at a prefill of 2,048 tokens, in bf16 and with int8
    weights."""
    model = replace(next(iter(ARCHITECTURES.values())), splits=(1,))
    rows = [1, 4, 16, 2048]
    items = [*inside("mm", rows, model.products()), *pool("mixed_mm", rows, model.pairs(), fusion="scale")]
    return [item for item in items if affordable(Problem.gemm(**item))]


def mixed_mm() -> list[Stratum]:
    """Weight-only int8: the most used models at decode whole, then prefill, and samples of everything else."""
    core, every = core_pairs(), first_pairs()
    small = [m for m in DENSE if m <= 4096]
    return [
        Stratum(10_000, pool("mixed_mm", DECODE, core, fusion="scale")),
        Stratum(10_000, pool("mixed_mm", PREFILL, core[:FIRST], fusion="scale")),
        Stratum(130, pool("mixed_mm", PREFILL, core, fusion="scale")),
        Stratum(180, pool("mixed_mm", small, every, fusion="scale")),
        Stratum(70, pool("mixed_mm", small, every)),
        Stratum(80, pool("mixed_mm", small, every, fusion="scale", dtype="fp16")),
        Stratum(60, pool("mixed_mm", small, every, fusion="scale", weight_dtype="uint8", dtype=["bf16", "fp16"])),
        Stratum(30, pool("mixed_mm", small, core, fusion="scale", layout="nn")),
        Stratum(60, grid("mixed_mm", [1, 4, 16, 64, 256, 1024], fusion=["none", "scale"])),
        Stratum(40, sizes("mixed_mm", *ODD, fusion="scale")),
    ]


def mm() -> list[Stratum]:
    """Projections without a bias, the gradients of training, squares, a grid and odd sizes.

    In fp32 a layer whose bias is followed by an elementwise op is an mm too: Inductor adds the bias in that op. In half
    precision these rows stand in for those with a bias, which `h200-epilogues` holds.
    """
    core, every = core_pairs(), first_pairs()
    gpt2 = unique(pair for model in GPT2.values() for pair in model.pairs())
    squares = [{"op": "mm", "m": side, "n": side, "k": side} for side in SIDES]
    return [
        Stratum(10_000, inside("mm", DECODE, core_products())),
        Stratum(10_000, inside("mm", PREFILL, core_products()[:FIRST])),
        Stratum(160, inside("mm", PREFILL, core_products())),
        Stratum(60, pool("mm", DECODE, core)),
        Stratum(60, pool("mm", DENSE, every, fusion="pointwise")),
        Stratum(60, pool("mm", DENSE, gpt2, fusion="pointwise", layout=["nn", "nt"])),
        Stratum(90, encoder_layers("mm", fusion="pointwise", dtype=["bf16", "fp16"])),
        Stratum(30, encoder_layers("mm", fusion="pointwise", dtype="fp32", tf32=[False, True])),
        Stratum(280, pool("mm", DENSE, every)),
        Stratum(170, pool("mm", DENSE, every, dtype="fp16")),
        Stratum(80, [gradient("nn", m, n, k) for m, (n, k) in product(TOKENS, every)]),
        Stratum(80, [gradient("tn", m, n, k) for m, (n, k) in product(TOKENS, every)]),
        Stratum(30, pool("mm", [*DECODE, *PREFILL], core, layout="nn")),
        Stratum(60, pool("mm", DENSE, gpt2, dtype="fp32")),
        Stratum(80, pool("mm", DENSE, [*gpt2, *core], dtype="fp32", tf32=True)),
        Stratum(100, [item for square in squares for item in each(square, dtype=["bf16", "fp16", "fp32"])]),
        Stratum(20, [item for square in squares for item in each(square, dtype="fp32", tf32=True)]),
        Stratum(110, grid("mm", [1, 4, 16, 64, 256, 1024, 4096])),
        Stratum(100, sizes("mm", *ODD, dtype=["bf16", "fp16"])),
    ]


def addmm() -> list[Stratum]:
    """Layers with biases: GPT-2 (whose weights are stored [K, N]), Qwen's QKV, encoders; full and column biases."""
    gpt2 = unique(pair for model in GPT2.values() for pair in model.pairs() if pair[0] != model.vocabulary)
    qwen = unique(pair for name, m in ARCHITECTURES.items() if name.startswith("qwen2-") for pair in m.pairs()[:1])
    encoders = encoder_layers("addmm")
    return [
        Stratum(110, pool("addmm", DENSE, gpt2, layout="nn")),
        Stratum(150, pool("addmm", DENSE, gpt2)),
        Stratum(70, pool("addmm", DENSE, gpt2, dtype="fp16")),
        Stratum(40, pool("addmm", DENSE, gpt2, dtype="fp32")),
        Stratum(50, pool("addmm", DENSE, gpt2, dtype="fp32", tf32=True)),
        Stratum(90, pool("addmm", DENSE, qwen)),
        Stratum(130, encoders),
        Stratum(50, [{**item, "dtype": "fp16"} for item in encoders]),
        Stratum(50, [{**i, "dtype": "fp32", "tf32": t} for i in encoders for t in (True, False)]),
        Stratum(60, pool("addmm", DENSE, core_pairs(), bias="full")),
        Stratum(30, pool("addmm", DENSE, gpt2, bias="column")),
        Stratum(50, grid("addmm", [16, 256, 4096], bias=["1d", "full", "column"])),
        Stratum(15, [{"op": "addmm", "m": side, "n": side, "k": side, "dtype": "bf16"} for side in SIDES]),
        Stratum(50, sizes("addmm", *ODD)),
    ]


def int_mm() -> list[Stratum]:
    """int8 times int8, with the scale that usually follows and without. ATen needs more than 16 rows."""
    core, every = core_pairs(), first_pairs()
    rows = [m for m in DENSE if m > 16]
    return [
        Stratum(200, pool("int_mm", [32, 64, *PREFILL], core, fusion="scale")),
        Stratum(90, pool("int_mm", [32, 64, *PREFILL], core)),
        Stratum(140, pool("int_mm", rows, every, fusion="scale")),
        Stratum(60, pool("int_mm", rows, every)),
        Stratum(70, encoder_layers("int_mm", fusion="scale")),
        Stratum(70, grid("int_mm", [32, 128, 512, 2048], fusion=["none", "scale"])),
        Stratum(15, [{"op": "int_mm", "m": side, "n": side, "k": side} for side in SIDES]),
        Stratum(30, sizes("int_mm", [17, 33, 100, 257], [248, 1000, 4104], [104, 776, 4104], fusion=["none", "scale"])),
    ]
