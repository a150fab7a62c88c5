"""What Inductor's lowering of a GEMM hands to its choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemmdb.exchange import lookup_table
from gemmdb.key.problem import Problem


def scales_of(problem: Problem) -> list[tuple[list[int], list[int]]]:
    """Sizes and strides of the scales, as torchao stores them."""
    return [([], []), ([], [])] if problem.scales == "tensor" else [([problem.m, 1], [1, 1]), ([1, problem.n], [1, 1])]


def kernel_inputs(problem: Problem) -> Any:
    """The inputs of a GEMM: real buffers on a GPU that need not be here."""
    import torch
    from torch._inductor import ir
    from torch._inductor.kernel_inputs import MMKernelInputs
    from torch._inductor.lowering import lowerings

    def node(name: str, operand_dtype: str, sizes: Sequence[int], strides: Sequence[int]) -> Any:
        dtype = getattr(torch, lookup_table.TORCH[operand_dtype])
        layout = ir.FixedLayout(torch.device("cuda", 0), dtype, list(sizes), list(strides))
        return ir.InputBuffer(name=name, layout=layout)

    batch = [problem.batch] if problem.spec.batched else []
    nodes = []
    for name, operand, (rows, columns) in (
        ("a", problem.a, (problem.m, problem.k)),
        ("b", problem.b, (problem.k, problem.n)),
    ):
        real = torch.empty(*batch, rows, columns) if operand.row_major else torch.empty(*batch, columns, rows).mT
        nodes.append(node(name, operand.dtype, real.shape, real.stride()))
    if problem.scaled:
        for name, (sizes, strides) in zip("xy", scales_of(problem), strict=True):
            nodes.append(ir.TensorBox(ir.StorageBox(node(name, "fp32", sizes, strides))))
        if problem.bias is not None:
            nodes.append(node("bias", problem.bias.dtype, [problem.n], [1]))
        return MMKernelInputs(nodes, mat1_idx=0, mat2_idx=1, out_dtype=torch.bfloat16)
    if problem.bias is None:
        return MMKernelInputs(nodes, out_dtype=torch.int32 if problem.op == "int_mm" else None)
    m, n = problem.m, problem.n
    real = {"1d": torch.empty(n), "full": torch.empty(m, n), "column": torch.empty(m, 1)}[problem.bias.kind]
    bias = ir.TensorBox(ir.StorageBox(node("bias", problem.bias.dtype, real.shape, real.stride())))
    nodes.insert(0, lowerings[torch.ops.aten.expand](bias, [m, n]))
    return MMKernelInputs(nodes, scalars={"alpha": 1, "beta": 1})
