"""The preset `h200`: what the shipped table of a data-centre GPU covers, in an order whose every prefix is balanced.

A stratum is a pool of problems that stand for one use, and how many of them are wanted. Within a stratum they are taken
in the order of a hash, one of each M in turn, so that no size is preferred; the strata are then merged, in proportion
within an op, and the ops in the proportion of FLOORS. The layers of the first model come before everything else.
Nothing is random: the same code gives the same list.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product, zip_longest

from gemmdb.generators.coverage_pools import (
    all_pairs,
    core_pairs,
    core_products,
    each,
    encoder_layers,
    gradient,
    grid,
    inside,
    pool,
    sizes,
)
from gemmdb.generators.models import DECODE, DENSE, GPT2, MODELS, PREFILL, Item, unique
from gemmdb.problem import Problem

MOST_US, MOST_BYTES = 2000.0, 3e9
"""Left out is what one call of ATen takes longer for, or whose operands and output are larger: each costs as much of a
build as dozens of others, and where so much work is in one call, cuBLAS is at its best."""
BYTES_PER_US = 4.0e6
FLOPS_PER_US = {"bf16": 700e6, "fp16": 700e6, "int8": 850e6, "fp32": 48e6, "tf32": 350e6}
"""What ATen reaches on an H200, roughly; enough for the rule above."""
FIRST = 6
"""How many of the most used (N, K), those of the first model on one GPU, are covered at every M of a prefill."""
FLOORS = {"mm": 1500, "addmm": 800, "int_mm": 600, "mixed_mm": 1000}
"""How many problems of each op the first 3,900 hold, about: where a build stops early, no op is short."""
SIDES = [128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384]
ODD = ([1, 7, 17, 33, 100, 257, 1009], [250, 1001, 2047, 4099, 11003], [100, 777, 2053, 4098])
TOKENS = [512, 1024, 2048, 4096, 8192]


@dataclass(frozen=True)
class Stratum:
    """`wanted` problems out of a pool; all of it when there are no more."""

    wanted: int
    pool: Sequence[Item]


def items() -> list[Item]:
    """The preset's items, one problem each."""
    taken: set[Problem] = set()
    chosen: list[list[Item]] = []
    for stratum in (*mixed_mm(), *mm(), *addmm(), *int_mm()):
        found: list[Item] = []
        for item in spread(stratum.pool):
            problem = Problem.gemm(**item)
            if len(found) < stratum.wanted and problem not in taken and affordable(problem):
                taken.add(problem)
                found.append(item)
        chosen.append(found)
    total = Counter(item["op"] for found in chosen for item in found)
    leading = {Problem.gemm(**item) for item in first_model()}
    ranked = [
        (_place(item, (rank + 0.5) / len(found), total, leading), _hash(item), item)
        for found in chosen
        for rank, item in enumerate(found)
    ]
    return [item for *_, item in sorted(ranked, key=lambda entry: entry[:2])]


def _place(item: Item, share: float, total: Mapping[str, int], leading: Collection[Problem]) -> float:
    """Where an item comes, of whose stratum that share comes before it."""
    return 0.0 if Problem.gemm(**item) in leading else share * total[item["op"]] / FLOORS[item["op"]]


def first_model() -> list[Item]:
    """The layers of the most used model on one GPU at decode and at a prefill of 2,048 tokens, in bf16 and with int8
    weights."""
    model = replace(next(iter(MODELS.values())), splits=(1,))
    rows = [1, 4, 16, 2048]
    items = [*inside("mm", rows, model.products()), *pool("mixed_mm", rows, model.pairs(), fusion="scale")]
    return [item for item in items if affordable(Problem.gemm(**item))]


def spread(pool: Iterable[Item]) -> list[Item]:
    """The items, one of each M in turn, in the order of their hash."""
    by_rows: dict[int, list[Item]] = {}
    for item in sorted(pool, key=_hash):
        by_rows.setdefault(item["m"], []).append(item)
    turns = zip_longest(*by_rows.values())
    return [item for turn in turns for item in sorted((i for i in turn if i), key=_hash)]


def affordable(problem: Problem) -> bool:
    """Whether one call of ATen takes at most MOST_US, by a roofline, and its tensors MOST_BYTES."""
    return call_us(problem) <= MOST_US and problem.bytes <= MOST_BYTES


def call_us(problem: Problem) -> float:
    """About how long one call of ATen takes. A mixed_mm casts its weight first, which is written and read again."""
    cast = 5 * problem.n * problem.k if problem.op == "mixed_mm" else 0
    kind = "tf32" if problem.numerics.fp32 == "tf32" else problem.a.dtype
    return max((problem.bytes + cast) / BYTES_PER_US, problem.flops / FLOPS_PER_US[kind])


def mixed_mm() -> list[Stratum]:
    """Weight-only int8: the most used models at decode whole, then prefill, and samples of everything else."""
    core, every = core_pairs(), all_pairs()
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

    On a GPU, a bias that is followed by something elementwise is an mm too: Inductor adds it there.
    """
    core, every = core_pairs(), all_pairs()
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
    qwen = unique(pair for name, m in MODELS.items() if name.startswith("qwen2-") for pair in m.pairs()[:1])
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
    core, every = core_pairs(), all_pairs()
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


def _hash(item: Item) -> bytes:
    return hashlib.sha256(json.dumps(item, sort_keys=True).encode()).digest()
