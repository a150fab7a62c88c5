"""Programmatic dependent launch in a graph: our kernels that begin early, and Inductor's own kernels beside them.

Every kernel that is launched this way lets the next one begin, then waits until the one before it has ended, and only
then reads or writes memory. So a kernel that ends has seen the end of all before it, and memory that the graph uses
again holds what it would hold without. Other kernels (of libraries, of users, ours without the parameter) begin and end
as always.

Inductor has its own setting, `triton.enable_pdl`. Its kernels then wait only where they read what the kernel just
before them has written: by the names of buffers, not by their memory. Here they take its launch and wait at their
beginning.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.select_algorithm import TritonTemplateKernel
from torch._inductor.virtualized import V

from gemmdb.kernels import hardware
from gemmdb.kernels.triton.dependent import LINES

_MARK = "_gemmdb_dependent"


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
    """Whether a kernel of Inductor's does so in a graph that has begun. All programs of a cooperative reduction must
    run at once, so nothing else may take their place. Inductor's templates have no wait."""
    return not isinstance(kernel, TritonTemplateKernel) and not getattr(kernel, "cooperative_reduction", False)


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
        if not _begun() or not _takes_part(self):
            original(self, code)
            return
        theirs = (TritonKernel.GDC_WAIT, TritonKernel.GDC_LAUNCH)
        kept = [line for line in code._lines if not (isinstance(line, str) and line.strip() in theirs)]
        code._lines = [*LINES, *kept]

    return filter_pdl
