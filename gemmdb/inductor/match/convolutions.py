"""Rewrite 1 x 1 convolutions that Inductor would lower as GEMMs, so they are looked up like any other GEMM.

Inductor converts them during lowering if `torch._inductor.config.conv_1x1_as_mm` is set or it autotunes (max-autotune),
and the images are channels-last. The rewrite adds only views of the same memory.
"""

from __future__ import annotations

from typing import Any

import torch

from gemmdb.inductor.lower.adapter import state
from gemmdb.inductor.match import fx
from gemmdb.inductor.match.fx import value

aten = torch.ops.aten


def rewrite(graph: Any) -> None:
    """Replace the convolutions that Inductor would lower as GEMMs."""
    if state.multiplies_convolutions():
        for node in graph.find_nodes(op="call_function", target=aten.convolution.default):
            if _becomes_gemm(node):
                _replace(graph, node)


def _becomes_gemm(node: Any) -> bool:
    """Whether a convolution is 1 x 1 on channels-last images of fixed sizes."""
    x, weight, _, stride, padding, dilation, transposed, output_padding, groups = node.args
    images, filters = value(x), value(weight)
    if images.dim() != 4 or not all(isinstance(size, int) for size in (*images.shape, *filters.shape)):
        return False
    pointwise = tuple(filters.shape[2:]) == (1, 1) and groups == 1 and not transposed and images.numel() > 0
    plain = all(step == 1 for step in (*stride, *dilation)) and not any((*padding, *output_padding))
    last = all(one.is_contiguous(memory_format=torch.channels_last) for one in (images, value(node)))
    return bool(pointwise and plain and last)


def _replace(graph: Any, node: Any) -> None:
    """Return the GEMM [N H W, C] by [C, O], with the bias, that replaces a convolution."""
    x, weight, bias = node.args[:3]
    count, channels, height, width = value(x).shape
    out = value(weight).shape[0]

    def call(target: Any, *args: Any) -> Any:
        return fx.call(graph, target, args, node.meta)

    with graph.inserting_before(node):
        rows = call(aten.permute.default, x, [0, 2, 3, 1])
        rows = call(aten.reshape.default, rows, [count * height * width, channels])
        columns = call(aten.reshape.default, weight, [out, channels])
        columns = call(aten.permute.default, columns, [1, 0])
        operands = (aten.mm.default,) if bias is None else (aten.addmm.default, bias)
        images = call(aten.reshape.default, call(*operands, rows, columns), [count, height, width, out])
        images = call(aten.permute.default, images, [0, 3, 1, 2])
    node.replace_all_uses_with(images)
    graph.erase_node(node)
