"""Whether a result is right: how far it may be from the exact product. Needs no torch, which computes that one."""

from __future__ import annotations

import math

from gemmdb.problem import Problem

EPSILONS = {"fp64": 2.0**-53, "fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8, "fp8e4": 2.0**-4, "fp8e5": 2.0**-3}
"""Unit roundoff by dtype name: half the gap between 1 and the next number."""
INPUT_EPSILONS = {"ieee": 0.0, "tf32": 2.0**-11, "bf16": 2.0**-8}
"""What an fp32 input loses before it is multiplied, by the `fp32` mode of Numerics."""
ATEN_MULTIPLE = 4.0
"""A candidate may err that many times more than ATen does on the same inputs."""


def tolerance(problem: Problem) -> float:
    """The largest error, as `Reference.error` counts it, that a right result can have.

    The output is rounded once, and once more where a partial result passes through the output dtype (split sums, a
    scale or an epilogue after the product): 4 roundings. Sums of k products in the accumulate dtype lose sqrt(k)
    roundings of the sum's magnitude when they are independent: 4 of these cover the worst of millions of elements.
    Inputs that are themselves rounded (TF32) add theirs. Integers are exact.
    """
    if problem.out in ("int32", "int8", "uint8"):
        return 0.0
    accumulate = 0.0 if problem.numerics.acc == "int32" else EPSILONS[problem.numerics.acc]
    rounding = EPSILONS[problem.out] + INPUT_EPSILONS[problem.numerics.fp32]
    return 4 * (rounding + accumulate * math.sqrt(max(problem.k, 1)))


def acceptable(problem: Problem, error: float, aten_error: float) -> bool:
    """Whether a result with `error` is right: within the tolerance, and at most 4 times less accurate than ATen's
    unless both are below two roundings of the output."""
    floor = 0.0 if problem.out not in EPSILONS else 2 * EPSILONS[problem.out]
    return error <= tolerance(problem) and error <= max(ATEN_MULTIPLE * aten_error, floor)
