"""Problems that no preset lists: sizes of models that nobody here thought of, odd sizes, few rows and many."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

from gemmdb.generators import shapes
from gemmdb.key.problem import Problem

OPS = {"mm": 30, "addmm": 30, "int_mm": 15, "mixed_mm": 25}
"""The share of each op, in percent."""
ROWS = (((1, 8), 20), ((9, 64), 25), ((65, 512), 25), ((513, 8192), 30))
"""Ranges of M and their shares. M is drawn log-uniformly, a third of the time as a multiple of 8."""
SIDES = ((64, 60), (8, 25), (1, 15))
"""N and K are multiples of these, with these shares."""
LEAST, MOST = 256, 20_000
"""The range of N and K, log-uniform."""
LARGEST, HEAVIEST = 2**38, 2**28
"""The largest M x N x K, which takes 0.8 ms in bf16, and the largest weight in elements."""
GROUP = 128
"""N and K of weights in groups are multiples of this."""
BLOCK_DEPTH = 512
"""With block scales, torch takes K in steps of this on a Hopper GPU."""
GROUPED_ROWS = (((1, 8), 40), ((9, 64), 35), ((65, 512), 25))
FORMATS: tuple[tuple[tuple[str, dict[str, Any]], int], ...] = (
    *(
        (("mixed_mm", {"weight_dtype": "int4", **flags}), 10)
        for flags in (
            {"packing": "gptq"},
            {"packing": "awq"},
            {"packing": "low-first"},
            {"packing": "low-first", "zeros": "int4"},
            {"packing": "plain"},
            {"packing": "tinygemm8"},
            {"weight_dtype": "fp4_e2m1"},
            {"weight_dtype": "int8", "group": GROUP},
        )
    ),
    (("scaled_mm", {"dtype": "fp8_e4m3", "scales": "block"}), 20),
)
"""Ops and flags of problems with weights in groups or block scales, and their shares."""
INTEGER_ROWS = 17
"""torch's int8 GEMM on a GPU takes more than 16 rows."""


def draw(count: int, seed: int, grouped: bool = False) -> list[Problem]:
    """The first `count` problems of a seed. Their (N, K) are in no preset, so no shipped table has them. `grouped`:
    those with block scales or weights in groups, instead of all others."""
    known = {(problem.n, problem.k) for name in shapes.presets() for problem in shapes.load(name, "cuda")}
    found: dict[str, Problem] = {}
    for problem in (_every_grouped if grouped else _every)(random.Random(f"fresh {seed}")):
        if len(found) == count:
            break
        if (problem.n, problem.k) not in known:
            found.setdefault(problem.text, problem)
    return list(found.values())


def _every(source: random.Random) -> Iterator[Problem]:
    while True:
        op = _weighted(source, list(OPS.items()))
        m, n, k = _sizes(source, op)
        if m * n * k <= LARGEST and n * k <= HEAVIEST:
            yield Problem.gemm(op, m=m, n=n, k=k, **_rest(source, op))


def _every_grouped(source: random.Random) -> Iterator[Problem]:
    while True:
        op, flags = _weighted(source, FORMATS)
        low, high = _weighted(source, GROUPED_ROWS)
        m = _between(source, low, high, 4 if op == "scaled_mm" else 1)
        step = BLOCK_DEPTH if op == "scaled_mm" else GROUP
        n, k = _between(source, 2 * LEAST, MOST, GROUP), _between(source, 2 * LEAST, MOST, step)
        if n * k <= HEAVIEST:
            yield Problem.gemm(op, m=m, n=n, k=k, **flags)


def _sizes(source: random.Random, op: str) -> tuple[int, int, int]:
    low, high = _weighted(source, [pair for pair in ROWS if op != "int_mm" or pair[0][1] >= INTEGER_ROWS])
    m = _between(source, max(low, INTEGER_ROWS) if op == "int_mm" else low, high, 1)
    if source.random() < 1 / 3 and m > 8:
        m = -(-m // 8) * 8
    step = _weighted(source, SIDES)
    step = max(step, 16) if op == "int_mm" else step
    return m, _between(source, LEAST, MOST, step), _between(source, LEAST, MOST, step)


def _rest(source: random.Random, op: str) -> dict[str, Any]:
    """The other arguments of a problem: mostly a linear of bf16, as in inference."""
    rest: dict[str, Any] = {}
    if op == "int_mm":
        return {"fusion": "scale"} if source.random() < 0.7 else rest
    if source.random() < 0.25:
        rest["dtype"] = "fp16"
    if op == "mixed_mm":
        return {**rest, "fusion": "scale"} if source.random() < 0.9 else rest
    if source.random() < 0.15:
        rest["layout"] = "nn"
    if op == "mm" and source.random() < 0.15:
        rest["fusion"] = "pointwise"
    return rest


def _between(source: random.Random, low: int, high: int, step: int) -> int:
    """A log-uniform multiple of `step`."""
    size = math.exp(source.uniform(math.log(low), math.log(high + 1)))
    return min(max(step, int(size) // step * step), max(high, step))


def _weighted(source: random.Random, choices: Any) -> Any:
    return source.choices([value for value, _ in choices], [weight for _, weight in choices])[0]
