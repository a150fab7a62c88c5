"""The Product that is read from a GEMM node of a post-grad graph, and the functions that all readers make it with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from gemmdb.inductor.lower.adapter import guessing
from gemmdb.inductor.match import extract
from gemmdb.inductor.match.extract import Range
from gemmdb.key.problem import Problem, Query

aten = torch.ops.aten
MARK = "gemmdb_mixed"
"""Key in the metadata `custom` of a product with a cast int8 or uint8 weight. The value describes that weight as
[N, K], and the product's fusion and bias. For an int4 weight it has the group size, zero points and packing."""


@dataclass(frozen=True)
class Product:
    """One GEMM node and the Query for it. `guessed`: a size comes out of data, and the problem has a guess for it."""

    node: Any
    query: Query
    guessed: bool = False


def two_operands(
    op: str, node: Any, a: Any, b: Any, constant: bool, rest: dict[str, Any], fast: bool = False
) -> Product | None:
    """The product of two matrices, or of two batches of them, as they are. `rest`: fields of the Problem. `fast`: fp8
    operands may be accumulated in less than fp32."""
    infos = extract.tensor(a), extract.tensor(b)
    numerics = replace(extract.numerics(infos[0].dtype, a.device.type), fast=fast)
    problem = Problem.from_tensors(op, *infos, constant=constant, numerics=numerics, **rest)
    return found(node, problem, {"m": a.shape[-2], "n": b.shape[-1], "k": a.shape[-1]}, a.device)


def found(node: Any, problem: Problem, sizes: dict[str, Any], device: Any) -> Product | None:
    """The Product of a problem whose sizes are hints, with the ranges of all symbolic `sizes`. None if there is nothing
    to multiply."""
    if problem.empty:
        # Nothing is multiplied: Inductor folds the product away or fills the output.
        return None
    ranges: dict[str, Range] = {}
    for name, size in sizes.items():
        limits = extract.bounds(size)
        if limits is not None:
            ranges[name] = limits
    guessed = any(guessing.from_data(size) for size in sizes.values())
    return Product(node, Query(problem, extract.device(device), ranges), guessed)


def constant(node: Any) -> bool:
    """Whether `node` is a constant of the graph, or a view of one."""
    while node.op == "call_function" and node.target in (aten.permute.default, aten.t.default, *extract.VIEWS):
        node = node.args[0]
    return bool(node.op == "get_attr")
