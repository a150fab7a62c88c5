"""What computes a node of Inductor's graph for each range of rows: one of several kernels.

`rows` writes the choice into the output code. The node's buffer is the same for all kernels; a workspace is allocated
only where the kernel that needs it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch._inductor import ir
from torch._inductor.virtualized import V

from gemmdb.inductor.lower.adapter import cublaslt, cutlass
from gemmdb.rejected import Rejected


@dataclass(frozen=True)
class Aten:
    """ATen's call. `op`: of a Problem. `scalars`: alpha and beta of an addmm. `fast`: of a scaled_mm."""

    op: str
    scalars: tuple[float, float] = (1, 1)
    fast: bool = False


@dataclass(frozen=True)
class Part:
    """What computes up to `limit` rows, or any number of rows (None), beyond those of the parts before: one of
    Inductor's Triton choices, a call of cuBLASLt or CUTLASS, or one of ATen."""

    limit: int | None
    kernel: Any

    @property
    def template(self) -> bool:
        """Whether Inductor can fuse the epilogue into it."""
        return not isinstance(self.kernel, Aten | cublaslt.Kernel | cutlass.Call)

    @property
    def inputs(self) -> Sequence[Any]:
        """The nodes that it reads besides the operands that ATen and cuBLASLt read."""
        if isinstance(self.kernel, cutlass.Call):
            return list(self.kernel.operands.values())
        return self.kernel.input_nodes if self.template else ()


@dataclass(frozen=True)
class Chosen:
    """The parts of a node in the order of their rows, with M. `operands`: of the calls of ATen and cuBLASLt: A, B, then
    the extras, in memory."""

    rows: Any
    parts: Sequence[Part]
    operands: Sequence[Any]

    @property
    def inputs(self) -> list[Any]:
        """The nodes that any part reads, in memory, each once."""
        nodes = [*self.operands, *(node for part in self.parts for node in part.inputs)]
        stored = ir.InputsKernel.unwrap_storage(nodes)
        return list({node.get_name(): node for node in reversed(stored)}.values())[::-1]


def rejection() -> Rejected | None:
    """Why the graph being lowered cannot choose a kernel by its number of rows, None if it can."""
    if getattr(V.graph, "fx_wrapper", False):
        return Rejected("Inductor's FX wrapper has no run-time choice")
    return None


def cutlass_rejection() -> Rejected | None:
    """Why the graph being lowered cannot choose a kernel of CUTLASS by its number of rows, None if it can."""
    return Rejected("CUTLASS kernels are chosen by rows in Python's code alone") if V.graph.cpp_wrapper else None


def chosen_among(rows: Any, parts: Sequence[Part], operands: Sequence[Any]) -> Chosen:
    """Return a choice among parts. `operands`: in memory."""
    return Chosen(rows, parts, ir.InputsKernel.unwrap_storage(list(operands)))
