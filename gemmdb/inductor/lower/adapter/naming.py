"""Names of Triton kernels: one that was compiled for a trial keeps its name in the graph, so it is compiled once.

Inductor numbers the kernels of a graph. The name is part of the source, and Triton's cache goes by the source. So a
trial names a kernel after its code, and a graph with the same code gives it that name. All other kernels keep theirs.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch._inductor import config as inductor_config
from torch._inductor.utils import Placeholder, get_fused_kernel_name
from torch._inductor.virtualized import V

from gemmdb.inductor.lower.adapter.emitting import replaced

_local = threading.local()
_known: dict[str, str] = {}
"""Digest of the code of a kernel without its name -> how its name ends."""


@contextmanager
def trying() -> Iterator[None]:
    """Inside, kernels are generated for a trial."""
    outside = getattr(_local, "trying", False)
    _local.trying = True
    try:
        yield
    finally:
        _local.trying = outside


def keeping_names(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the function that names a Triton kernel and puts it into the output code. `src_code`: the kernel's source
    with a placeholder for its name."""

    def define_kernel(self: Any, src_code: str, node_schedule: Any, kernel: Any, *args: Any, **options: Any) -> Any:
        end = _end(src_code, node_schedule)
        if end is None or src_code in V.graph.wrapper_code.src_to_kernel:
            return original(self, src_code, node_schedule, kernel, *args, **options)
        with (
            inductor_config.patch({"triton.descriptive_names": False}),
            replaced(V.graph.wrapper_code, "next_kernel_suffix", lambda: end),
        ):
            return original(self, src_code, node_schedule, kernel, *args, **options)

    return define_kernel


def _end(source: str, nodes: Any) -> str | None:
    """How the name of a kernel ends, None where Inductor is to number it. `nodes`: what the kernel computes."""
    if str(Placeholder.KERNEL_NAME) not in source:
        return None
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    if getattr(_local, "trying", False) and digest not in _known:
        how = inductor_config.triton.descriptive_names
        _known[digest] = f"{get_fused_kernel_name(nodes, how) if how else 'kernel'}_{digest}"
    return _known.get(digest)
