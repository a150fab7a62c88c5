"""Programmatic dependent launch in a graph: our kernels that begin early, and Inductor's own kernels beside them.

Every kernel that is launched this way waits until the one before it has ended before it reads or writes memory, and
before it lets the next one begin. So a kernel that ends has seen the end of all before it, and memory that the graph
uses again holds what it would hold without. Other kernels (of libraries, of users, ours without the parameter, large
ones) begin and end as always.

Inductor has its own setting, `triton.enable_pdl`. Its kernels then wait only where they read what the kernel just
before them has written: by the names of buffers, not by their memory. Here they wait at their beginning, and let the
next one begin where Inductor says, behind their last load.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.select_algorithm import TritonTemplateKernel
from torch._inductor.virtualized import V

from gemmdb.inductor.lower.adapter import ir_view
from gemmdb.kernels import hardware
from gemmdb.kernels.triton.dependent import LAUNCH, WAIT

_MARK = "_gemmdb_dependent"
LARGEST = 2**20
"""Elements of the largest kernel of Inductor's that takes part. Every program waits, and pays for it even where nothing
is left to wait for: a copy of 2**24 elements by many small programs took 40 to 80 us instead of 29."""


def possible(device: Any) -> bool:
    """Whether the code being generated can launch kernels this way on `device`. The C++ code of AOTInductor cannot."""
    if V.graph.cpp_wrapper or device.type != "cuda":
        return False
    found = DeviceProperties.create(device)
    return found.type == "cuda" and int(found.cc) >= hardware.HOPPER


def begin() -> None:
    """From now on the kernels that Inductor generates for the graph being lowered are launched this way."""
    setattr(V.graph, _MARK, True)


def _begun() -> bool:
    return bool(getattr(V.graph, _MARK, False))


def _takes_part(kernel: Any) -> bool:
    """Whether a kernel of Inductor's does so in a graph that has begun: one by itself, of few programs. Those of a
    cooperative reduction must all run at once, and nothing else may take their place."""
    if not isinstance(kernel, TritonKernel) or isinstance(kernel, TritonTemplateKernel):
        return False
    if kernel.is_combo_kernel or kernel.cooperative_reduction:
        return False
    sizes = [ir_view.number(size) for size in kernel.numels.values()]
    return math.prod(LARGEST + 1 if size is None else size for size in sizes) <= LARGEST


def launching(original: Callable[[], bool]) -> Callable[[], bool]:
    """Wraps Inductor's question whether the kernel being generated is launched this way."""

    @functools.wraps(original)
    def enable_pdl_codegen() -> bool:
        return _takes_part(V.kernel) if _begun() else original()

    return enable_pdl_codegen


def waiting_first(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps the step in which Inductor drops superfluous waits of a kernel's body. In a graph that has begun, a kernel
    waits once, before anything else."""

    @functools.wraps(original)
    def filter_pdl(self: Any, code: Any) -> None:
        original(self, code)
        if not _begun() or not _takes_part(self):
            return
        kept = [line for line in code._lines if not (isinstance(line, str) and line.strip() == WAIT)]
        launches = any(isinstance(line, str) and line.strip() == LAUNCH for line in kept)
        code._lines = [WAIT, *([] if launches else [LAUNCH]), *kept]

    return filter_pdl
