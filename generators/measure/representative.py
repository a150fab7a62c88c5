"""One representative of each class of epilogues, as a torch program, and its exact result.

The light class is measured with relu of the product, or of its sum with what it reads (Inductor makes one addmm of a
sum alone); `math` with an exact GELU, or with SiLU of the first tensor it reads times the product; a permuted store
with the heads of an attention (for a bmm, with the batch between rows and columns). Two classes are not measured:
random numbers, whose seed a program draws once for many products, and results of one byte, whose rounding hides errors.
"""

from __future__ import annotations

import torch

from gemmdb.generators.measure.spelling import to_torch
from gemmdb.key.epilogue import Epilogue
from gemmdb.key.problem import Problem
from gemmdb.key.representatives import head

STEEPEST = 1.13
"""The largest slope of a GELU."""


def follow(
    own: Epilogue | None, columns: int, product: torch.Tensor, reads: list[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """What the program of a problem returns for its `product` [m, n]: the result, and the product if it is kept.
    `own`: the problem's epilogue. `columns`: those of a head. `reads`: the full-size tensors that the epilogue reads.
    Dynamo traces this."""
    if own is None:
        return (product,)
    result = ordered(own, _elementwise(own, product, reads), columns)
    if own.stored:
        result = result.to(to_torch(own.stored))
    if own.order != "own":
        result = result.contiguous()
    return (result, product) if own.kept else (result,)


def _elementwise(own: Epilogue, product: torch.Tensor, reads: list[torch.Tensor]) -> torch.Tensor:
    result, rest = product, list(reads)
    if own.arithmetic == "math":
        result = torch.nn.functional.silu(rest.pop(0)) * result if rest else torch.nn.functional.gelu(result)
    elif not rest:
        result = torch.relu(result)
    for other in rest:
        result = result + other
    return result


def ordered(own: Epilogue, result: torch.Tensor, columns: int) -> torch.Tensor:
    """A view of the [m, n] or [batch, m, n] `result` in the order in which it is stored. `columns`: those of a head."""
    if own.order == "transposed":
        return result.transpose(-2, -1)
    if own.order == "permuted":
        heads = result if result.dim() == 3 else result.view(result.shape[0], result.shape[1] // columns, columns)
        return heads.permute(1, 0, 2)
    return result


def output(problem: Problem, device: torch.device) -> torch.Tensor:
    """An uninitialised tensor of the size, order and dtype of what `follow` returns first."""
    own, sizes = problem.epilogue, problem.shapes[2]
    if own is None:
        return torch.empty(sizes, dtype=to_torch(problem.out), device=device)
    stored = ordered(own, torch.empty(sizes, device="meta"), head(problem.n)).shape
    return torch.empty(stored, dtype=to_torch(own.stored or problem.out), device=device)


def as_product(problem: Problem, stored: torch.Tensor) -> torch.Tensor:
    """The result of `follow` in the order [m, n] or [batch, m, n]."""
    own = problem.epilogue
    if own is None or own.order == "own":
        return stored
    if own.order == "transposed":
        return stored.transpose(-2, -1)
    product = stored.permute(1, 0, 2)
    return product if problem.spec.batched else product.flatten(1)


def exact(
    problem: Problem, product: torch.Tensor, squares: torch.Tensor, reads: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The exact result for an exact float64 `product`, and the sums of squares behind it. `reads`: float64."""
    own = problem.epilogue
    if own is None:
        return product, squares
    result = _elementwise(own, product, reads)
    rest = list(reads)
    if own.arithmetic == "math":
        squares = squares * (torch.nn.functional.silu(rest.pop(0)).square() if rest else STEEPEST**2)
    for other in rest:
        squares = squares + other.square()
    return result, squares
