"""Which algorithm of cuBLAS ATen's call runs, as far as that decides what the call costs the host."""

from __future__ import annotations

import functools

import torch

from gemmdb.cublaslt import library
from gemmdb.cublaslt.matmul import Matmul
from gemmdb.cublaslt.shape import Shape, leading, shape_of
from gemmdb.kernels.menus.cublaslt_nearby import heuristic
from gemmdb.key.problem import Query

OPS, DTYPES = ("mm", "addmm"), ("bf16", "fp16")
ORDERS = ("row", "col", "row-padded", "col-padded")
"""The operands that ATen passes on as they are."""


def splits(query: Query, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether ATen's call splits K, so that it launches a second kernel, which adds the parts. `a`, `b`: the matrices,
    as fake tensors. False if unknown, also where nothing runs on the GPU yet.

    cuBLAS runs the first algorithm that cuBLASLt's heuristic names: where that splits K, ATen takes as long as it (40
    of 40 GEMMs, within 5%; benchmarks/results/h200/dense/2026-11-28e.jsonl.xz).
    """
    problem = query.problem
    if query.device.kind != "cuda" or query.ranges or problem.op not in OPS or problem.a.dtype not in DTYPES:
        return False
    if library.loaded() is None or not {problem.a.layout.order, problem.b.layout.order} <= set(ORDERS):
        return False
    gpu = torch.cuda.is_available()
    if gpu and not _has_context():
        return False
    here = torch.cuda.current_device() if gpu else 0
    if a.device.index not in (None, here):  # A handle belongs to the current device.
        return False
    of_a = leading(a.shape, a.stride(), problem.a.row_major)
    of_b = leading(b.shape, b.stride(), problem.b.layout.order.startswith("row"))
    if not isinstance(of_a, int) or not isinstance(of_b, int):  # A symbolic stride, although no size of the GEMM is.
        return False
    return first_splits(shape_of(problem, of_a, of_b), here)


def _has_context() -> bool:
    """Whether this process has a context on its GPU. Asking cuBLASLt would take one, and processes that generate code
    take none, although torch is initialized in them."""
    return torch.cuda.is_initialized() and bool(torch._C._cuda_hasPrimaryContext(torch.cuda.current_device()))


@functools.lru_cache(maxsize=1024)
def first_splits(shape: Shape, device: int) -> bool:
    """Whether the first algorithm that cuBLASLt names for a shape on the current device splits K."""
    try:
        named = heuristic(Matmul(shape, device), 1)
    except library.Error:
        return False
    return any(int(config.values["split_k"]) > 1 for config in named)
