"""Exact result of a GEMM in float64, and the error of a computed result."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch

from gemmdb.generators.measure.literals import SCALARS
from gemmdb.generators.measure.operands import Operands, spread
from gemmdb.generators.measure.program import exact_epilogue, output
from gemmdb.inductor.match.ops import dequantised
from gemmdb.key.problem import Problem

MAX_EXACT_FLOPS = 8e9
"""Above this amount of float64 work, only a sample of the rows is checked. It always includes the first and the
last."""
MAX_MATRICES = 64
"""Most matrices of a batch that are checked."""


@dataclass(frozen=True)
class Reference:
    """Exact result [rows, n] of some rows of a GEMM, and the magnitude of the sums behind it, in float64. `rows`: row
    numbers, counted through the whole batch. `sizes`: sizes of the output."""

    rows: torch.Tensor
    exact: torch.Tensor
    magnitude: torch.Tensor
    sizes: tuple[int, ...]

    def error(self, result: torch.Tensor) -> float:
        """Return the largest |result - exact| / (|exact| + magnitude); infinite for NaNs and wrong shapes.

        The magnitude is the root of the sum of squares of the terms: a sum that cancels keeps the rounding errors of
        its terms, which the kernel cannot avoid. Nor can it avoid the rounding of numbers too small for the result's
        dtype: in fp16 a millionth is off by up to 3%. The gap between these numbers is subtracted.
        """
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
    """Return the Reference for literal operands, computed on their device, matrix by matrix: a whole batch in float64
    would take up to eight times the operands' memory."""
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
        return Reference(nothing[:, 0].long(), nothing, nothing, problem.shapes[2])
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
    """One of several GEMMs. `start`: its first row in the output, counted through all matrices. `a`, `b`: its operands,
    for fp8 with the scales of both as matrices."""

    start: int
    a: torch.Tensor
    b: torch.Tensor
    scale_a: torch.Tensor | None = None
    scale_b: torch.Tensor | None = None

    def exact(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return some rows of A, and B, in float64."""
        a, b = self.a[rows].double(), self.b.double()
        if self.scale_a is None or self.scale_b is None:
            return a, b
        scale = spread(self.scale_a, self.a.shape)[rows].double()
        return a * scale, b * spread(self.scale_b, self.b.shape).double()


def _parts(problem: Problem, operands: Operands) -> list[_Part]:
    """Return the GEMM itself, or those of a batch or of the groups. Rows beyond the last group belong to no GEMM and
    may contain anything; a group with no part of K has zeros."""
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
    filled = [(place, start, end) for place, (start, end) in spans if end > start]
    if scale_a is None or scale_b is None:
        return [_Part(start, a[start:end], b[place]) for place, start, end in filled]
    scales = [(scale_a[start:end, None], scale_b[place, None]) for place, start, end in filled]
    return [_Part(start, a[start:end], b[at], *both) for (at, start, end), both in zip(filled, scales, strict=True)]


def poison(problem: Problem, device: torch.device) -> None:
    """Fill memory of the output's size with garbage and free it, so that the output of the kernel under test, which
    reuses it, cannot contain an earlier correct result."""
    out = output(problem, device)
    out.fill_(math.nan if out.dtype.is_floating_point else 113)


def _sample(size: int, count: int, seed: int) -> list[int]:
    """Return at most `count` (at least 2) of the numbers below `size`, always including the first and the last."""
    if size <= count:
        return list(range(size))
    return [0, *sorted(random.Random(seed).sample(range(1, size - 1), count - 2)), size - 1]
