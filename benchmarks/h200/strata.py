"""The groups of problems that figures are given for, and the strata that samples are drawn from."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable

from gemmdb.key.problem import Problem

FLOOR_BYTES, INT4_FLOOR_BYTES = 48e6, 24e6
"""The size of a weight from which a mixed_mm is compared with a streaming read of it: 8 bits and more, and int4."""

Member = Callable[[Problem], bool]


def of(
    *ops: str, most: float = math.inf, least: int = 0, fusion: str = "", scales: str = "", int4: bool = False
) -> Member:
    """A function that tells whether a problem has one of the ops, an M from `least` to `most`, and the fusion and the
    scales if they are given. `int4`: whether the weight is of int4."""

    def member(p: Problem) -> bool:
        alike = fusion in ("", p.fusion) and scales in ("", p.scales) and int4 == (p.int4 is not None)
        return p.op in ops and least <= p.m <= most and alike

    return member


def streamed(problem: Problem) -> bool:
    """Whether the time of a GEMM with a weight of 8 bits or more is compared with a streaming read of it."""
    return of("mixed_mm", most=16)(problem) and problem.n * problem.k >= FLOOR_BYTES


def streamed_int4(problem: Problem) -> bool:
    """The same of an int4 weight."""
    return of("mixed_mm", most=16, int4=True)(problem) and problem.n * problem.k >= 2 * INT4_FLOOR_BYTES


FIGURES: tuple[tuple[str, Member, float, float], ...] = (
    ("mixed_mm, M <= 64", of("mixed_mm", most=64), 3.0, 2.0),
    ("mixed_mm, all M", of("mixed_mm"), 1.8, 1.4),
    ("int_mm, with and without scale", of("int_mm"), 1.25, 1.20),
    ("mm, M <= 64", of("mm", most=64), 1.12, 1.10),
    ("mm and addmm, all M", of("mm", "addmm"), 1.04, 1.03),
    ("grouped_mm", of("grouped_mm"), 1.3, 1.05),
    ("scaled_mm, M <= 64", of("scaled_mm", most=64), 1.5, 1.2),
    ("bmm", of("bmm"), 1.15, 1.05),
    ("int4 weights, M <= 16", of("mixed_mm", most=16, int4=True), 1.3, 1.3),
)
"""Name, members, and the target of the geometric mean: over ATen, and over the choice of max-autotune."""
STRATA: dict[str, Member] = {
    "mixed_mm, M <= 64": of("mixed_mm", most=64),
    "mixed_mm, M > 64": of("mixed_mm", least=65),
    "int_mm": of("int_mm"),
    "mm, M <= 64": of("mm", most=64),
    "addmm, M <= 64": of("addmm", most=64),
    "mm and addmm, M > 64": of("mm", "addmm", least=65),
    "grouped_mm": of("grouped_mm"),
    "scaled_mm, M <= 64": of("scaled_mm", most=64),
    "scaled_mm, M > 64": of("scaled_mm", least=65),
    "bmm": of("bmm"),
    "int4 weights, M <= 16": of("mixed_mm", most=16, int4=True),
    "int4 weights, M > 16": of("mixed_mm", least=17, int4=True),
}
"""The comparison with max-autotune draws equally many problems from each. Together they are all problems of these
ops."""
STREAMED = "mixed_mm, M <= 16, weight >= 48 MB"
"""An extra stratum, which is compared with a streaming read."""
SHARES: dict[str, tuple[Member, float]] = {
    STREAMED: (streamed, 0.85),
    "int4 weights, M <= 16, weight >= 24 MB": (streamed_int4, 0.80),
}
"""The problems whose times are compared with a streaming read of the weight, and the target for the share of it."""
STRATA_OF = {
    "mixed_mm, M <= 64": ("mixed_mm, M <= 64",),
    "mixed_mm, all M": ("mixed_mm, M <= 64", "mixed_mm, M > 64"),
    "int_mm, with and without scale": ("int_mm",),
    "mm, M <= 64": ("mm, M <= 64",),
    "mm and addmm, all M": ("mm, M <= 64", "addmm, M <= 64", "mm and addmm, M > 64"),
    "grouped_mm": ("grouped_mm",),
    "scaled_mm, M <= 64": ("scaled_mm, M <= 64",),
    "bmm": ("bmm",),
    "int4 weights, M <= 16": ("int4 weights, M <= 16",),
}
"""The strata of each figure."""


def mean(values: Iterable[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.mean(math.log(value) for value in values))
