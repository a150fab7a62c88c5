"""Every kernel that a Config may name, one record each.

A table is data from strangers, so a Config is only built from what is listed here. To add a kernel, write its folder
and list its record here: docs/contributing/kernel.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from gemmdb.kernels import aten, cpp, cutlass, inductor
from gemmdb.kernels.kernel import Kernel
from gemmdb.kernels.triton import gemv, narrow, persistent, tile

_ALL = (
    aten.DEFAULT,
    aten.INT8PACK,
    aten.PADDED,
    tile.KERNEL,
    persistent.KERNEL,
    narrow.KERNEL,
    gemv.KERNEL,
    cutlass.KERNEL,
    cpp.PACKED_GEMM,
    *inductor.TEMPLATES,
)

KERNELS: Mapping[tuple[str, str], Kernel] = {(kernel.backend, kernel.name): kernel for kernel in _ALL}
"""Every kernel by (backend, name)."""

INDUCTOR_ALONE: Mapping[str, str] = {"bmm": "products of batches"}
"""Ops that none of our own kernels solves, in words."""
GPU_ALONE: Mapping[str, str] = {**INDUCTOR_ALONE, "scaled_mm": "products of fp8"}
"""Ops that nothing but ATen solves on a CPU, in words."""
