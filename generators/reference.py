"""The float64 (or exact) product, and how far a result is from it; `tolerance` says how far it may be."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch

from gemmdb.generators.program import Operands, to_torch
from gemmdb.generators.synthesis import SCALARS
from gemmdb.problem import Problem

ROW_FLOPS = 8e9
"""Above this much float64 work, a sample of the rows is checked, the first and the last always among them."""


@dataclass(frozen=True)
class Reference:
    """The exact result [rows, n] of some rows of a product, and the magnitude of the sums behind it, in float64."""

    rows: torch.Tensor
    exact: torch.Tensor
    magnitude: torch.Tensor

    def error(self, result: torch.Tensor) -> float:
        """The largest |result - exact| / (|exact| + magnitude); infinite for NaNs and wrong shapes.

        The magnitude is the root of the sum of squares of what was added: a sum that cancels to nothing keeps the
        rounding errors of its terms, and they are no fault of the kernel.
        """
        if result.ndim != 2 or result.shape[1] != self.exact.shape[1]:
            return math.inf
        if self.exact.numel() == 0:
            return 0.0
        wrong = (result[self.rows].double() - self.exact).abs()
        error = torch.where(wrong == 0, wrong, wrong / (self.exact.abs() + self.magnitude)).max().item()
        return math.inf if math.isnan(error) else error


def reference(problem: Problem, operands: Operands) -> Reference:
    """The Reference for literal operands, computed on the device where they are."""
    rows = _rows(problem, operands.a.device)
    a, b = operands.a[rows].double(), operands.b.double()
    alpha, beta = SCALARS[problem.scalars]
    exact, squares = alpha * (a @ b), alpha**2 * (a.square() @ b.square())
    # The scale belongs to the weight, so a bias is added after it (only mixed_mm has both).
    if operands.scale is not None:
        scale = operands.scale.double()
        exact, squares = exact * scale, squares * scale.square()
    if operands.bias is not None:
        bias = beta * operands.bias.double().expand(problem.m, problem.n)[rows]
        exact, squares = exact + bias, squares + bias.square()
    if problem.fusion == "pointwise":
        exact = exact.relu()
    return Reference(rows, exact, squares.sqrt())


def poison(problem: Problem, device: torch.device) -> None:
    """Fill memory of the output's size with garbage and free it, so that the next allocation of that size, which is
    the output of the kernel under test, does not hold an earlier right result."""
    dtype = to_torch(problem.out)
    value = math.nan if dtype.is_floating_point else 113
    torch.full((problem.m, problem.n), value, dtype=dtype, device=device)


def _rows(problem: Problem, device: torch.device) -> torch.Tensor:
    count = max(2, int(ROW_FLOPS / max(2 * problem.n * problem.k, 1)))
    if problem.m <= count:
        return torch.arange(problem.m, device=device)
    inner = random.Random(problem.key).sample(range(1, problem.m - 1), count - 2)
    return torch.tensor([0, *sorted(inner), problem.m - 1], device=device)
