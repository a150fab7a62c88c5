"""Coordinate descent (`coordinate_descent_tuning`, which torchao and gpt-fast set) once per kernel and cache.

Inductor keeps what it found beside the source of the kernel. torch 2.11 ignores that where it takes a kernel from a
cached graph and the kernel began with a single choice, or where it ended with one of those that it began with: each
process tunes these kernels anew, for up to a minute per program. torch 2.13 does not. In a process that times programs,
kernels would have choices of their own, and each of its many compiles would take as long as the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def once() -> Iterator[None]:
    """Within it, a kernel that comes from a cached graph has the choice that coordinate descent found before."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    own = CachingAutotuner.recheck_autotune_cache

    def recheck(kernel: Any, reload_kernel_from_src: Callable[[], Any]) -> None:  # torch passes it by that name.
        best = known(kernel)  # torch leaves fewer choices behind, so that nothing is found afterwards.
        own(kernel, reload_kernel_from_src)
        if best is not None:
            settle(kernel, best, reload_kernel_from_src)

    CachingAutotuner.recheck_autotune_cache = recheck
    try:
        yield
    finally:
        CachingAutotuner.recheck_autotune_cache = own


def known(kernel: Any) -> Any:
    """What coordinate descent found for a CachingAutotuner: a Config of Triton, None if it never ran."""
    from torch._inductor.runtime.triton_heuristics import check_autotune_cache

    configs = [result.config for result in kernel.compile_results]
    found, _, _ = check_autotune_cache(configs, kernel.filename, kernel.inductor_meta)
    return found[0] if len(found) == 1 and getattr(found[0], "found_by_coordesc", False) else None


def settle(kernel: Any, best: Any, reload: Callable[[], Any]) -> None:
    """Let a CachingAutotuner have this choice alone, marked as found. It is compiled if it is not among the compiled
    ones."""
    from torch._inductor.runtime.runtime_utils import triton_config_to_hashable as same

    for result in kernel.compile_results:
        if same(result.config) == same(best):
            result.config.found_by_coordesc = True
            kernel.compile_results = [result]
            return
    if kernel.fn.fn is None:
        kernel.fn = reload().fn
    kernel.compile_results = [kernel._precompile_config(best)]
