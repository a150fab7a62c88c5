"""The float64 (or exact) product, and how far a result is from it; `tolerance` says how far it may be."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch

from gemmdb.generators.measure import representative
from gemmdb.generators.measure.literals import SCALARS
from gemmdb.generators.measure.program import Operands, spread
from gemmdb.inductor.match.int4_weight import dequantised
from gemmdb.key.problem import Problem

ROW_FLOPS = 8e9
"""With more float64 work than this, only a sample of the rows is checked. It always includes the first and the last."""
MATRICES = 64
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
    """The Reference for literal operands, computed on their device."""
    if problem.spec.batched or problem.spec.grouped:
        return _of_matrices(problem, operands)
    rows = _rows(problem, operands.a.device)
    a, b = operands.a[rows].double(), _weight(problem, operands)
    if operands.scale_a is not None and operands.scale_b is not None:
        a = a * spread(operands.scale_a, operands.a.shape)[rows].double()
        b = b * spread(operands.scale_b, operands.b.shape).double()
    alpha, beta = SCALARS[problem.scalars]
    exact, squares = alpha * (a @ b), alpha**2 * (a.square() @ b.square())
    # The scale belongs to the weight, so a bias is added after it (only mixed_mm has both).
    if operands.scale is not None and problem.int4 is None:
        scale = operands.scale.double()
        exact, squares = exact * scale, squares * scale.square()
    if operands.bias is not None:
        bias = beta * operands.bias.double().expand(problem.m, problem.n)[rows]
        exact, squares = exact + bias, squares + bias.square()
    reads = [read[rows].double() for read in operands.reads]
    exact, squares = representative.exact(problem, exact, squares, reads)
    return Reference(rows, exact, squares.sqrt(), problem.shapes[2])


def _weight(problem: Problem, operands: Operands) -> torch.Tensor:
    """The exact weight [k, n] in float64, without a scale that multiplies the product."""
    if problem.int4 is None or operands.scale is None:
        return operands.b.double()
    return dequantised(operands.b, operands.scale, operands.zeros, problem.int4, torch.float64).t()


def _of_matrices(problem: Problem, operands: Operands) -> Reference:
    """Like `reference`, but matrix by matrix of a batch or of groups: all at once in float64 would take up to eight
    times the memory of the operands."""
    device, n = operands.a.device, problem.n
    parts = _groups(problem, operands) if problem.spec.grouped else _batch(operands)
    many = max(2, int(ROW_FLOPS / max(2 * n * problem.k, 1)))
    matrices = _sample(len(parts), min(many // 2 + 1, MATRICES), problem.key)
    few = max(2, many // max(len(matrices), 1))
    rows, exact, squares = [], [], []
    for matrix in matrices:
        # Different rows of each matrix, so an error at the same place in all of them is likely to be seen.
        part = parts[matrix]
        chosen = torch.tensor(_sample(len(part.a), few, problem.key + matrix), dtype=torch.int64, device=device)
        a, b = part.exact(chosen)
        rows.append(chosen + part.start)
        exact.append(a @ b)
        squares.append(a.square() @ b.square())
    if not matrices:
        nothing = torch.empty(0, n, dtype=torch.float64, device=device)
        return Reference(torch.empty(0, dtype=torch.int64, device=device), nothing, nothing, problem.shapes[2])
    chosen = torch.cat(rows)
    reads = [read.reshape(-1, n)[chosen].double() for read in operands.reads]
    product, magnitude = representative.exact(problem, torch.cat(exact), torch.cat(squares), reads)
    return Reference(chosen, product, magnitude.sqrt(), problem.shapes[2])


@dataclass(frozen=True)
class _Part:
    """One product of several. `start`: its first row in the output, counted through all matrices of it. `a`, `b`: its
    operands, of fp8 with the scales of their rows and columns."""

    start: int
    a: torch.Tensor
    b: torch.Tensor
    scales: tuple[torch.Tensor, torch.Tensor] | None = None

    def exact(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Some rows of A, and B, in float64."""
        a, b = self.a[rows].double(), self.b.double()
        if self.scales is None:
            return a, b
        return a * self.scales[0][rows, None].double(), b * self.scales[1].double()


def _batch(operands: Operands) -> list[_Part]:
    """The products of a batch."""
    pairs = enumerate(zip(operands.a, operands.b, strict=True))
    return [_Part(place * len(a), a, b) for place, (a, b) in pairs]


def _groups(problem: Problem, operands: Operands) -> list[_Part]:
    """The products of groups that have rows. Rows beyond the last group belong to no product and may hold anything; a
    group without any of K has zeros."""
    assert operands.offsets is not None
    a, b, ends = operands.a, operands.b, operands.offsets.tolist()
    spans = list(zip([0, *ends[:-1]], ends, strict=True))
    if problem.ragged == "k":
        return [_Part(place * len(a), a[:, start:end], b[start:end]) for place, (start, end) in enumerate(spans)]

    def scales(place: int, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        first, second = operands.scale_a, operands.scale_b
        return None if first is None or second is None else (first[start:end], second[place])

    return [
        _Part(start, a[start:end], b[place], scales(place, start, end))
        for place, (start, end) in enumerate(spans)
        if end > start
    ]


def poison(problem: Problem, device: torch.device) -> None:
    """Fill memory of the output's size with garbage and free it, so that the next allocation of that size, the output
    of the kernel under test, cannot hold an earlier correct result."""
    out = representative.output(problem, device)
    out.fill_(math.nan if out.dtype.is_floating_point else 113)


def _rows(problem: Problem, device: torch.device) -> torch.Tensor:
    count = max(2, int(ROW_FLOPS / max(2 * problem.n * problem.k, 1)))
    return torch.tensor(_sample(problem.m, count, problem.key), dtype=torch.int64, device=device)


def _sample(size: int, count: int, seed: int) -> list[int]:
    """At most `count` (2 at least) of the numbers below `size`, the first and the last always among them."""
    if size <= count:
        return list(range(size))
    return [0, *sorted(random.Random(seed).sample(range(1, size - 1), count - 2)), size - 1]
