"""Padded products in Inductor's IR. Also keeps Inductor's own padding, which times, off products with an answer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.kernel import mm
from torch._inductor.lowering import lowerings
from torch._inductor.select_algorithm import realize_inputs

aten = torch.ops.aten


def padded(matrix: Any, sizes: Sequence[int], row_major: bool) -> Any:
    """`matrix` [rows, columns], padded with zeros at its end up to `sizes`. Its order in memory stays."""
    have = [int(size) for size in matrix.get_size()]
    if have == list(sizes):
        return matrix
    missing = [size - old for size, old in zip(sizes, have, strict=True)]
    if not isinstance(matrix, ir.TensorBox):
        matrix = ir.TensorBox(matrix)
    stored = matrix if row_major else _turned(matrix)
    rows, columns = missing if row_major else missing[::-1]
    # The lengths start with the last dimension, each as (before, after).
    stored = lowerings[aten.constant_pad_nd.default](stored, [0, columns, 0, rows], 0)
    stored = ir.TensorBox(ir.ExternKernel.require_contiguous(ir.ExternKernel.realize_input(stored)))
    return stored if row_major else _turned(stored)


def product(op: str, a: Any, b: Any, bias: tuple[Any, float, float] | None = None) -> Any:
    """ATen's product [M, N] of `a` and `b` (int32 for int_mm), plus a `bias` with alpha and beta."""
    a, b = realize_inputs(a, b)
    dtype = torch.int32 if op == "int_mm" else a.get_dtype()
    layout = ir.FixedLayout(a.get_device(), dtype, [a.get_size()[0], b.get_size()[1]])
    if bias is not None:
        value, alpha, beta = bias
        return mm.aten_addmm.bind([realize_inputs(value), a, b], layout, alpha=alpha, beta=beta).output_node()
    choice = mm.aten__int_mm if op == "int_mm" else mm.aten_mm
    return choice.bind([a, b], layout).output_node()


def sliced(matrix: Any, rows: int, columns: int) -> Any:
    """The first rows and columns of `matrix`, as a view."""
    for dim, size in enumerate((rows, columns)):
        if int(matrix.get_size()[dim]) != size:
            matrix = lowerings[aten.slice.Tensor](matrix, dim, 0, size)
    return matrix


def _turned(matrix: Any) -> Any:
    return lowerings[aten.permute.default](matrix, [1, 0])


def unless(answered: Callable[[Any], bool]) -> Callable[[Callable[..., Any]], Callable[..., bool]]:
    """Wraps the decision of Inductor's padding pass. If the graph node of a product is `answered`, the pass leaves the
    product alone and times nothing, unless the user forces padding. It only asks about products that could be
    padded."""

    def around(original: Callable[..., Any]) -> Callable[..., bool]:
        @functools.wraps(original)
        def should_pad(match: Any, *args: Any, **kwargs: Any) -> bool:
            if not inductor_config.force_shape_pad and answered(match.output_node()):
                return False
            return bool(original(match, *args, **kwargs))

        return should_pad

    return around
