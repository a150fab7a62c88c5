"""Rewrite an integer GEMM and its scales as one node: the kernel applies the scales before it stores.

Otherwise the int32 output goes through memory where Inductor does not fuse the scales: always after a CUTLASS kernel,
and after a Triton kernel if the scaled output feeds a row reduction, such as a norm or the next layer's quantization.
Only GEMMs with a generated kernel are rewritten.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch

from gemmdb.inductor.match import fx, ops
from gemmdb.inductor.match.fx import value
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem

aten = torch.ops.aten
_CAST = torch.ops.prims.convert_element_type.default
_FLOATS = (torch.bfloat16, torch.float16, torch.float32)
_ROW, _COLUMN, _NUMBER, _PYTHON = "row", "column", "number", "Python number"


@dataclass(frozen=True)
class Scaling:
    """The multiplications of an integer GEMM [M, N] by vectors, and the bias after them.

    `steps`: the operators from the GEMM to the result, in order: views, casts, multiplications, an addition. `rows`,
    `columns`: the nodes of the per-row and the per-column scale; each may hold a single number, and is None if missing.
    Both are None for a Python number, which no node can hold. `bias`: the node of the added vector, one number per
    column; None without one.
    """

    steps: tuple[Any, ...]
    rows: Any
    columns: Any
    bias: Any = None

    @property
    def last(self) -> Any:
        """The node of the result."""
        return self.steps[-1]


def find(gemm: Any) -> Scaling | None:
    """Return the scales of the `_int_mm` at `gemm`: at most one over the rows and one over the columns, in any order,
    with casts to floats in between; the bias, and the cast after them. None if there is no scale."""
    with contextlib.suppress(fx.Unsupported):
        return _scaling(gemm)
    return None


def _scaling(gemm: Any) -> Scaling | None:
    steps: list[Any] = []
    scales: list[tuple[str, Any]] = []
    bias: Any = None
    end, cast, node = 0, False, gemm
    while len(node.users) == 1:
        (step,) = node.users
        if step.target in (aten.mul.Tensor, aten.add.Tensor):
            vector = _vector(step, node, gemm) if bias is None else None
            if vector is None:
                break
            kind, tensor = vector
            if step.target is aten.mul.Tensor and _has_place(kind, scales):
                scales.append(vector)
            elif step.target is aten.add.Tensor and kind in (_COLUMN, _NUMBER) and any(one for _, one in scales):
                bias = tensor
            else:
                break
            end, cast = len(steps) + 1, False
        elif _to_float(step):
            # The first cast after a scale is the stored dtype. Further casts are separate work.
            if scales and not cast:
                end, cast = len(steps) + 1, True
        elif step.target not in fx.RESHAPES:
            break
        steps.append(step)
        node = step
    if not scales or not fx.known(value(steps[end - 1]).numel() == value(gemm).numel()):
        return None
    return Scaling(tuple(steps[:end]), *_placed(scales), bias)


def _to_float(step: Any) -> bool:
    return step.target is _CAST and value(step).dtype in _FLOATS


def _vector(step: Any, node: Any, gemm: Any) -> tuple[str, Any] | None:
    """Return (dimension, vector node) if `step` combines a vector with `node`, a view of the GEMM that keeps the
    columns; else None."""
    nodes = [arg for arg in step.args if isinstance(arg, torch.fx.Node)]
    columns = value(gemm).shape[1]
    if nodes.count(node) != 1 or step.kwargs or not fx.keeps_columns(node, columns):
        return None
    if len(nodes) == 1:
        return _PYTHON, None
    scale = next(arg for arg in nodes if arg is not node)
    # A kernel reads any of these floats as fp32, so the preceding cast is dropped: it would be a separate kernel. Where
    # Inductor fuses such a cast, it does not round either.
    while scale.target is aten.expand.default or (_to_float(scale) and value(scale.args[0]).dtype in _FLOATS):
        scale = scale.args[0]
    found = value(scale)
    # GPU kernels cannot read a number in CPU memory.
    if found.dtype not in _FLOATS or found.device != value(gemm).device:
        return None
    if fx.known(found.numel() == 1):
        return _NUMBER, scale
    if fx.over_columns(found, columns):
        return _COLUMN, scale
    # [..., 1], with one number per row of [..., N].
    of_rows = (*value(node).shape[:-1], 1)
    return (_ROW, scale) if fx.same_sizes(found.shape, of_rows) else None


def _has_place(kind: str, scales: list[tuple[str, Any]]) -> bool:
    """Whether a kernel with one vector per dimension has room for another scale."""
    kinds = {kind, *(other for other, _ in scales)}
    if _PYTHON in kinds:
        return not scales
    return len(scales) < 2 and (kind == _NUMBER or len(kinds) > len(scales))


def _placed(scales: list[tuple[str, Any]]) -> tuple[Any, Any]:
    """Return (row scale, column scale). A single number fills a free slot."""
    rows = next((scale for kind, scale in scales if kind == _ROW), None)
    columns = next((scale for kind, scale in scales if kind == _COLUMN), None)
    for kind, scale in scales:
        if kind == _NUMBER:
            rows, columns = (rows, scale) if columns is None else (scale, columns)
    return rows, columns


def scales_in_kernel(config: Config | None, problem: Problem) -> bool:
    """Whether a config is a generated kernel that takes the scales of an integer GEMM."""
    generated = config is not None and config.backend in ("cutlass", "triton")
    return generated and problem.spec.integer and problem.fusion == "scale"


def absorb(node: Any) -> Any:
    """Replace the `_int_mm` at `node`, its scales, the bias and the cast after them by one `gemmdb::int_mm_scaled` and
    return it. The old nodes stay in the graph, unused. Without a tensor scale, change nothing and return None."""
    scaling = find(node)
    if scaling is None or (scaling.rows is None and scaling.columns is None):
        return None
    graph = node.graph
    applied = next(step for step in reversed(scaling.steps) if step.target in (aten.mul.Tensor, aten.add.Tensor))
    with graph.inserting_before(applied):
        a, b = node.args[:2]
        columns, rows, bias = (
            None if vector is None else fx.vector(graph, vector, matrix, dim)
            for vector, matrix, dim in ((scaling.columns, b, 1), (scaling.rows, a, 0), (scaling.bias, b, 1))
        )
        args = (a, b, columns, value(scaling.last).dtype, rows, bias)
        new = fx.call(graph, ops.overload("int_mm_scaled"), args, node.meta)
    with graph.inserting_before(scaling.last):
        viewed = new
        for step in scaling.steps:  # Their views, with symbolic sizes.
            if step.target in fx.RESHAPES:
                viewed = fx.call(graph, step.target, (viewed, *step.args[1:]), step.meta)
            while value(viewed).dim() < value(step).dim():
                # The scale has dimensions of size 1 that the GEMM lacks.
                viewed = fx.call(graph, aten.unsqueeze.default, (viewed, 0), step.meta)
        scaling.last.replace_all_uses_with(viewed)
    return new
