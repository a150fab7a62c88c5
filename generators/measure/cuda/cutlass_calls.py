"""A cutlass config as a call: the library loaded, bound to tensors, ready to be captured."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gemmdb.generators.measure.cuda import cutlass_build
from gemmdb.kernels import cutlass
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem

Follow = Callable[[Problem, dict[str, torch.Tensor], str], Callable[[], None]]
"""Allocates the tensor `product` in a dtype, and binds the kernel that finishes it, for a problem and its tensors."""
OPERANDS = ("A", "B", "scale", "bias")
FAILURES = {
    1: "a tensor is not 16-byte aligned",
    2: "CUTLASS cannot implement the problem",
    3: "the workspace is too small",
    4: "CUTLASS could not initialise the kernel",
    5: "the kernel could not be launched",
}
"""What the kernel's return codes mean."""


def bind(
    problem: Problem, config: Config, copies: Sequence[dict[str, torch.Tensor]], follow: Follow
) -> tuple[Callable[[int], None], float]:
    """A config bound to each copy of the operands, and the seconds that loading it took. `follow` binds a second kernel
    for the steps that the product's kernel leaves out.

    Raises RuntimeError when the library cannot be built or the kernel cannot run on the problem.
    """
    start = time.perf_counter()
    artifact = cutlass_build.library(problem, config)
    major, minor = torch.cuda.get_device_capability()
    failure = artifact.build(major * 10 + minor).failure
    if failure:
        raise RuntimeError(failure)
    library = cutlass_build.loaded(artifact.path)
    seconds = time.perf_counter() - start
    sizes, order = _sizes(problem, copies[0]), cutlass.order(config)
    # One for all copies: they follow each other on one stream, and each run begins by zeroing its counters.
    workspace = torch.empty(max(library.gemmdb_workspace(*sizes, *order), 1), dtype=torch.uint8, device="cuda")
    rest = cutlass.outside(problem)
    after = [follow(rest, tensors, problem.a.dtype) for tensors in copies] if rest is not None else []
    tensors = [[copy.get(name) for name in (*OPERANDS, "out" if rest is None else "product")] for copy in copies]
    return _Call(library, (*sizes, *order), tensors, workspace, after), seconds


@dataclass(frozen=True)
class _Call:
    """The calls of a library's function, one per copy of the operands. Keeps the tensors alive whose addresses it
    passes. `after`: the kernel that follows each call, empty if none does."""

    library: Any
    integers: tuple[int, ...]
    tensors: Sequence[Sequence[torch.Tensor | None]]
    workspace: torch.Tensor
    after: Sequence[Callable[[], None]]

    def __call__(self, index: int) -> None:
        """Enqueue the call of that number. Raises RuntimeError when the kernel refuses."""
        pointers = (tensor.data_ptr() if tensor is not None else None for tensor in self.tensors[index])
        scratch = self.workspace.data_ptr(), self.workspace.nbytes
        stream = torch.cuda.current_stream().cuda_stream
        code = self.library.gemmdb_gemm(*pointers, *self.integers, *scratch, stream)
        if code:
            raise RuntimeError(FAILURES.get(code, f"the kernel returned {code}"))
        if self.after:
            self.after[index]()


def _sizes(problem: Problem, tensors: Mapping[str, torch.Tensor]) -> tuple[int, int, int, int, int]:
    def leading(name: str, along: int, across: int, row: bool) -> int:
        # A single row's stride is never used and may be anything, but a tensor map needs an aligned one.
        return int(tensors[name].stride(0 if row else 1)) if across > 1 else along

    m, n, k = problem.m, problem.n, problem.k
    rows = [operand.layout.order.startswith("row") for operand in (problem.a, problem.b)]
    lda = leading("A", k, m, True) if rows[0] else leading("A", m, k, False)
    ldb = leading("B", n, k, True) if rows[1] else leading("B", k, n, False)
    return m, n, k, lda, ldb
