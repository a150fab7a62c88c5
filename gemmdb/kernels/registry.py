"""Every kernel that a Config may name, one record each.

Tables may come from untrusted sources, so a Config can only name the kernels listed here. To add a kernel, write its
folder and list its record here: docs/contributing/kernel.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gemmdb.kernels import aten, cpp, cublaslt, cutlass, inductor
from gemmdb.kernels.kernel import Kernel
from gemmdb.kernels.triton import (
    batch,
    gemv,
    grouped,
    groupwise,
    int4,
    int4_skinny,
    narrow,
    persistent,
    scaled_blocks,
    tile,
)
from gemmdb.key.ops import OPS


def _unsolved(kernels: Iterable[Kernel]) -> dict[str, str]:
    solved = {op for kernel in kernels for op in kernel.ops}
    return {op.name: op.words for op in OPS.values() if op.name not in solved}


_ALL = (
    aten.DEFAULT,
    aten.SYMBOLIC_ROWS,
    aten.INT8PACK,
    aten.PADDED,
    aten.DEQUANTISED,
    tile.KERNEL,
    persistent.KERNEL,
    narrow.KERNEL,
    gemv.KERNEL,
    int4.KERNEL,
    int4_skinny.KERNEL,
    groupwise.KERNEL,
    grouped.KERNEL,
    cutlass.KERNEL,
    cublaslt.MATMUL,
    cublaslt.MATMUL_ACTIVATION,
    cpp.PACKED_GEMM,
    *inductor.TEMPLATES,
    inductor.SUM,
    batch.KERNEL,
    scaled_blocks.KERNEL,
    cutlass.SCALED_BLOCKS,
    cutlass.INT4,
    cutlass.INT4_STREAM,
)

KERNELS: Mapping[tuple[str, str], Kernel] = {(kernel.backend, kernel.name): kernel for kernel in _ALL}
"""Every kernel by (backend, name)."""

_OURS = [k for k in _ALL if (k.template is not None or k.backend == "cutlass") and not k.emitted]
_CPU = [kernel for kernel in _ALL if kernel is not aten.DEFAULT and "cpu" in kernel.devices]

INDUCTOR_ALONE: Mapping[str, str] = _unsolved(_OURS)
"""Ops whose kernels only Inductor can build, in words."""
GPU_ALONE: Mapping[str, str] = _unsolved(_CPU)
"""Ops that nothing but ATen solves on a CPU, in words."""
