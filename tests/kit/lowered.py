"""Inductor's IR on a GPU that need not be there: inputs of a graph, and the output code that a lowering defines."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.virtualized import V


class Operand:
    """An input of a graph on a GPU that need not be there."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph

    def __call__(self, name: str, sizes: list[Any], strides: list[Any], dtype: Any, offset: int = 0) -> Any:
        layout = ir.FixedLayout(torch.device("cuda", 0), dtype, sizes, strides)
        self.graph.graph_inputs[name] = ir.InputBuffer(name=name, layout=layout)
        box = ir.StorageBox(self.graph.graph_inputs[name])
        if not offset:
            return ir.TensorBox(box)
        moved = ir.FixedLayout(torch.device("cuda", 0), dtype, sizes, strides, offset)
        return ir.TensorBox(ir.ReinterpretView(data=box, layout=moved))


class Output:
    """The output code of a graph: which kernels it defines."""

    def __init__(self) -> None:
        self.src_to_kernel: dict[str, str] = {}
        self.defined: dict[str, str] = {}

    def define_kernel(self, name: str, body: str) -> None:
        self.defined[name] = body


def rendered(result: Any) -> tuple[Any, str]:
    """The kernel of a lowered GEMM, and its source."""
    buffer = result.data.data
    kernel, render = buffer.make_kernel_render(buffer)
    with V.set_kernel_handler(kernel):
        return kernel, render()
