"""Whether a result is right: the exact result in float64, how far a result is from it, and how far it may be."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from gemmdb.generators.measure.operands import Operands, spread

from gemmdb.generators.measure.literals import SCALARS
from gemmdb.generators.measure.program import exact_epilogue, output
from gemmdb.inductor.match.int4_weight import dequantised
from gemmdb.kernels.rules import MAX_PROMOTED_K
from gemmdb.key.problem import Problem

EPSILONS = {"fp64": 2.0**-53, "fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8,
            "fp8_e4m3": 2.0**-4, "fp8_e5m2": 2.0**-3}  # fmt: skip
"""Unit roundoff by dtype name: half the gap between 1 and the next number."""
INPUT_EPSILONS = {"ieee": 0.0, "tf32": 2.0**-11, "bf16": 2.0**-8}
"""What an fp32 input loses before it is multiplied, by the `fp32` mode of Numerics."""
FP8_SUM = 2.0**-13
"""What a sum of fp8 products loses at each step in Hopper's matrix unit, whose accumulator keeps about 14 bits and cuts
off the others: DeepSeek-V3's technical report (arXiv 2412.19437, 3.3.2), which found errors of nearly 2% of random
products with K = 4096; 4 times this, times the root of 4096, is 3.1%."""
ATEN_MULTIPLE = 4.0
"""A candidate's error may be this many times the error of ATen on the same inputs."""
MIN_ROUNDINGS = 2.0
"""So many roundings of the output, and times sqrt(k) of the accumulate dtype, are right whatever ATen's error is.

Sums of k random products, one after the other and each rounded once, are off by 0.30 sqrt(k) roundings of the sum's
magnitude in the root of the mean square: the partial sums grow like sqrt(i), so their roundings add up to k / sqrt(2),
and a rounding is 0.42 units on average, as fractions are distributed like 1/x. This is the probabilistic bound
lambda * sqrt(k) * u of Higham and Mary (SIAM J. Sci. Comput. 41(5), 2019, and 42(5), 2020, for random data) with the
constant of rounding to nearest. 2 is 6.6 of these deviations, more than the worst of a hundred million elements. A
library that splits its sums is several times more exact, which does not make the plain sum wrong."""


def tolerance(problem: Problem) -> float:
    """The largest error, as `Reference.error` counts it, that a right result can have.

    The output is rounded once, and once more where a partial result passes through the output dtype (split sums, a
    scale or an epilogue after the product): 4 roundings. Sums of k products in the accumulate dtype lose sqrt(k)
    roundings of the sum's magnitude when they are independent: 4 of these cover the worst of millions of elements.
    Inputs that are rounded first (TF32) add that rounding. Integers are exact.

    The matrix unit keeps fewer bits of a sum of fp8 products, so such a sum also loses sqrt(k) roundings of FP8_SUM.
    Here k counts the products that are summed in the matrix unit: all with fast accumulation, else at most
    MAX_PROMOTED_K.
    """
    if problem.out in ("int32", "int8", "uint8"):
        return 0.0
    rounding = _rounding(problem) + INPUT_EPSILONS[problem.numerics.fp32]
    if problem.scaled:
        kept = problem.k if problem.numerics.fast else min(problem.k, MAX_PROMOTED_K)
        rounding += FP8_SUM * math.sqrt(max(kept, 1))
    return 4 * (rounding + _sums(problem))


def acceptable(problem: Problem, error: float, aten_error: float) -> bool:
    """Whether a result with `error` is right: within the tolerance, and at most 4 times less accurate than ATen's
    unless both are below what plain sums in the accumulate dtype lose (MIN_ROUNDINGS)."""
    floor = 0.0 if problem.out not in EPSILONS else MIN_ROUNDINGS * (_rounding(problem) + _sums(problem))
    return error <= tolerance(problem) and error <= max(ATEN_MULTIPLE * aten_error, floor)


def _sums(problem: Problem) -> float:
    """sqrt(k) roundings of the accumulate dtype; 0 for integers."""
    acc = problem.numerics.acc
    return 0.0 if acc == "int32" else EPSILONS[acc] * math.sqrt(max(problem.k, 1))


def _rounding(problem: Problem) -> float:
    """The unit roundoff of a floating-point output: of the product, or of what its epilogue stores if that is
    coarser."""
    stored = problem.epilogue.stored if problem.epilogue else ""
    return max(EPSILONS[problem.out], EPSILONS.get(stored, 0.0))


MAX_EXACT_FLOPS = 8e9
"""With more float64 work than this, only a sample of the rows is checked. It always includes the first and the last."""
MAX_MATRICES = 64
"""How many matrices of a batch are checked at most."""


@dataclass(frozen=True)
class Reference:
    """The exact result [rows, n] of some rows of a product, and the magnitude of the sums behind it, in float64.

    `rows`: row numbers, counted through the whole batch. `sizes`: the sizes of the output.
    """

    rows: torch.Tensor
    exact: torch.Tensor
    magnitude: torch.Tensor
    sizes: tuple[int, ...]

    def error(self, result: torch.Tensor) -> float:
        """The largest |result - exact| / (|exact| + magnitude); infinite for NaNs and wrong shapes.

        The magnitude is the root of the sum of squares of the terms: a sum that cancels keeps the rounding errors of
        its terms, and the kernel cannot avoid those. Nor can it avoid the rounding of numbers too small for the
        result's dtype: in fp16 a millionth is off by up to 3%. The gap between these numbers is taken off.
        """
        import torch

        if tuple(result.shape) != self.sizes:
            return math.inf
        if self.exact.numel() == 0:
            return 0.0
        wrong = (result.reshape(-1, self.sizes[-1])[self.rows].double() - self.exact).abs()
        if result.dtype.is_floating_point:
            limits = torch.finfo(result.dtype)
            wrong = (wrong - limits.smallest_normal * limits.eps).clamp(min=0)
        error = torch.where(wrong == 0, wrong, wrong / (self.exact.abs() + self.magnitude)).max().item()
        return math.inf if math.isnan(error) else error


def reference(problem: Problem, operands: Operands) -> Reference:
    """The Reference for literal operands, computed on their device, matrix by matrix of a batch or of groups: all at
    once in float64 would take up to eight times the memory of the operands."""
    import torch

    device, n = operands.a.device, problem.n
    parts = _parts(problem, operands)
    many = max(2, int(MAX_EXACT_FLOPS / max(2 * n * problem.k, 1)))
    matrices = _sample(len(parts), min(many // 2 + 1, MAX_MATRICES), problem.key)
    few = max(2, many // max(len(matrices), 1))
    (alpha, beta), rows, exacts, terms = SCALARS[problem.scalars], [], [], []
    for matrix in matrices:
        # Different rows of each matrix, so an error at the same place in all of them is likely to be seen.
        part = parts[matrix]
        chosen = torch.tensor(_sample(len(part.a), few, problem.key + matrix), dtype=torch.int64, device=device)
        a, b = part.exact(chosen)
        rows.append(chosen + part.start)
        exacts.append(alpha * (a @ b))
        terms.append(alpha**2 * (a.square() @ b.square()))
    if not matrices:
        nothing = torch.empty(0, n, dtype=torch.float64, device=device)
        return Reference(torch.empty(0, dtype=torch.int64, device=device), nothing, nothing, problem.shapes[2])
    place, exact, squares = torch.cat(rows), torch.cat(exacts), torch.cat(terms)
    # The scale belongs to the weight, so a bias is added after it (only mixed_mm has both).
    if operands.scale is not None and problem.int4 is None:
        scale = operands.scale.double()
        exact, squares = exact * scale, squares * scale.square()
    if operands.bias is not None:
        bias = beta * operands.bias.double().expand(problem.m, problem.n)[place]
        exact, squares = exact + bias, squares + bias.square()
    reads = [read.reshape(-1, read.shape[-1])[place].double() for read in operands.reads]
    exact, squares = exact_epilogue(problem, exact, squares, reads)
    return Reference(place, exact, squares.sqrt(), problem.shapes[2])


@dataclass(frozen=True)
class _Part:
    """One GEMM of several. `start`: its first row in the output, counted through all matrices of it. `a`, `b`: its
    operands, of fp8 with the scales of both as matrices."""

    start: int
    a: torch.Tensor
    b: torch.Tensor
    scale_a: torch.Tensor | None = None
    scale_b: torch.Tensor | None = None

    def exact(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Some rows of A, and B, in float64."""
        a, b = self.a[rows].double(), self.b.double()
        if self.scale_a is None or self.scale_b is None:
            return a, b
        scale = spread(self.scale_a, self.a.shape)[rows].double()
        return a * scale, b * spread(self.scale_b, self.b.shape).double()


def _parts(problem: Problem, operands: Operands) -> list[_Part]:
    """The GEMM itself, or those of a batch or of the groups that have rows. Rows beyond the last group belong to no
    GEMM and may hold anything; a group without any of K has zeros."""
    import torch

    a, b, scale_a, scale_b = operands.a, operands.b, operands.scale_a, operands.scale_b
    if problem.spec.batched:
        return [_Part(place * len(one), one, other) for place, (one, other) in enumerate(zip(a, b, strict=True))]
    if operands.offsets is None:
        if problem.int4 is not None and operands.scale is not None:
            b = dequantised(b, operands.scale, operands.zeros, problem.int4, torch.float64).t()
        return [_Part(0, a, b, scale_a, scale_b)]
    ends = operands.offsets.tolist()
    spans = list(enumerate(zip([0, *ends[:-1]], ends, strict=True)))
    if problem.ragged == "k":
        return [_Part(place * len(a), a[:, start:end], b[start:end]) for place, (start, end) in spans]
    if scale_a is None or scale_b is None:
        return [_Part(start, a[start:end], b[place]) for place, (start, end) in spans if end > start]
    return [
        _Part(start, a[start:end], b[place], scale_a[start:end, None], scale_b[place, None])
        for place, (start, end) in spans
        if end > start
    ]


def poison(problem: Problem, device: torch.device) -> None:
    """Fill memory of the output's size with garbage and free it, so that the next allocation of that size, the output
    of the kernel under test, cannot hold an earlier correct result."""
    out = output(problem, device)
    out.fill_(math.nan if out.dtype.is_floating_point else 113)


def _sample(size: int, count: int, seed: int) -> list[int]:
    """At most `count` (2 at least) of the numbers below `size`, the first and the last always among them."""
    if size <= count:
        return list(range(size))
    return [0, *sorted(random.Random(seed).sample(range(1, size - 1), count - 2)), size - 1]
