"""Error tolerance of a result against the exact one. Imports no torch: the live tuning process loads this."""

from __future__ import annotations

import math

from gemmdb.kernels.rules import MAX_PROMOTED_K
from gemmdb.key.problem import Problem

EPSILONS = {"fp64": 2.0**-53, "fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8,
            "fp8_e4m3": 2.0**-4, "fp8_e5m2": 2.0**-3}  # fmt: skip
"""Unit roundoff by dtype name: half the gap between 1 and the next number."""
INPUT_EPSILONS = {"ieee": 0.0, "tf32": 2.0**-11, "bf16": 2.0**-8}
"""Rounding of an fp32 input before the multiply, by the `fp32` mode of Numerics."""
FP8_SUM = 2.0**-13
"""What a sum of fp8 products loses at each step in Hopper's matrix unit, whose accumulator keeps about 14 bits and cuts
off the others: DeepSeek-V3's technical report (arXiv 2412.19437, 3.3.2), which found errors of nearly 2% of random
products with K = 4096; 4 times this, times the root of 4096, is 3.1%."""
ATEN_MULTIPLE = 4.0
"""A candidate's error may be this many times ATen's error on the same inputs."""
MIN_ROUNDINGS = 2.0
"""This many roundings of the output, and times sqrt(k) of the accumulate dtype, pass whatever ATen's error is: a
library that splits its sums is several times more exact, which does not make the plain sum wrong.

Sums of k random products, one after the other and each rounded once, are off by 0.30 sqrt(k) roundings of the sum's
magnitude in the root of the mean square: the partial sums grow like sqrt(i), so their roundings add up to k / sqrt(2),
and a rounding is 0.42 units on average, as fractions are distributed like 1/x. This is the probabilistic bound
lambda * sqrt(k) * u of Higham and Mary (SIAM J. Sci. Comput. 41(5), 2019, and 42(5), 2020, for random data) with the
constant of rounding to nearest. 2 is 6.6 of these deviations, the worst of more than a hundred million elements."""


def tolerance(problem: Problem) -> float:
    """Return the largest error, as measured by `correctness.Reference.error`, that a correct result can have.

    The output is rounded once, and once more if a partial result passes through the output dtype (split-K sums, a scale
    or an epilogue after the GEMM): 4 roundings. Sums of k products in the accumulate dtype lose sqrt(k) roundings of
    the sum's magnitude if they are independent: 4 of these cover the worst of millions of elements. Inputs that are
    rounded first (TF32) add that rounding. Integers are exact. A sum of fp8 products also loses sqrt(k) roundings of
    FP8_SUM, where k counts those summed in the matrix unit: all with fast accumulation, else at most MAX_PROMOTED_K.
    """
    if problem.out in ("int32", "int8", "uint8"):
        return 0.0
    rounding = _rounding(problem) + INPUT_EPSILONS[problem.numerics.fp32]
    if problem.scaled:
        kept = problem.k if problem.numerics.fast else min(problem.k, MAX_PROMOTED_K)
        rounding += FP8_SUM * math.sqrt(max(kept, 1))
    return 4 * (rounding + _sums(problem))


def acceptable(problem: Problem, error: float, aten_error: float) -> bool:
    """Whether a result with `error` is correct: within the tolerance, and at most 4 times less accurate than ATen's
    unless both are below the loss of plain sums in the accumulate dtype (MIN_ROUNDINGS)."""
    floor = 0.0 if problem.out not in EPSILONS else MIN_ROUNDINGS * (_rounding(problem) + _sums(problem))
    return error <= tolerance(problem) and error <= max(ATEN_MULTIPLE * aten_error, floor)


def _sums(problem: Problem) -> float:
    """Return sqrt(k) roundings of the accumulate dtype; 0 for integers."""
    acc = problem.numerics.acc
    return 0.0 if acc == "int32" else EPSILONS[acc] * math.sqrt(max(problem.k, 1))


def _rounding(problem: Problem) -> float:
    """Return the unit roundoff of a floating-point output: of the GEMM, or of its epilogue's output if that is
    coarser."""
    stored = problem.epilogue.stored if problem.epilogue else ""
    return max(EPSILONS[problem.out], EPSILONS.get(stored, 0.0))
