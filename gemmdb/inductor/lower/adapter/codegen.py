"""Changes to Inductor's code generation for our kernels: epilogue fusion, kernel names, workspace zeroing."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from torch._inductor import config as inductor_config
from torch._inductor.dependencies import MemoryDep
from torch._inductor.scheduler import SchedulerNode
from torch._inductor.utils import Placeholder, get_fused_kernel_name
from torch._inductor.virtualized import V

from gemmdb.inductor.lower.adapter.state import replaced
from gemmdb.kernels.triton import MAX_COUNTERS

_MARK = "_gemmdb_choice"
WORKSPACE = "workspace_gemmdb"
"""Name prefix of the workspaces that a graph's kernels share, one per GPU."""


def fusible(output: Any) -> Any:
    """Mark `output`, the output of a template that we chose, in Inductor's IR, and return it. Later work that reads it
    through views may become its epilogue."""
    setattr(output.data.data, _MARK, True)
    return output


def scoring_any_loops(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the scheduler's fusion score of two nodes. If the first node is our choice, reorder the loops of the second
    to match our store order: the scheduler does so among elementwise nodes, but never for a template, so
    `relu(y).t().contiguous()` needed a separate kernel after each GEMM. If nothing is fused after all, the scheduler of
    torch 2.13 undoes the reordering, and that of torch 2.11 keeps it.

    If the scheduler finds no shared memory, score the memory that the nodes share once loops are merged: torch 2.11
    compares loops as written, and loops over the [B, S, N] after a linear differ from loops over [M, N]. torch 2.12 and
    later compare names.
    """

    @functools.wraps(original)
    def score_fusion_memory(self: Any, node1: Any, node2: Any, *args: Any, **kwargs: Any) -> Any:
        if _chosen(node1):
            with contextlib.suppress(Exception):  # Without it the work stays a separate kernel, as before.
                turn(node1, node2)
        found = original(self, node1, node2, *args, **kwargs)
        score, *rest = found if isinstance(found, tuple) else (found,)
        if score or not (_chosen(node1) or _chosen(node2)):
            return found
        score = sum(self.dep_size_hint(dep) for dep in shared(node1, node2))
        return (score, *rest) if rest else score

    return score_fusion_memory


def turn(gemm: Any, consumer: Any) -> None:
    """Reorder the loops of `consumer` to the store order of `gemm`, if `consumer` is elementwise and then reads
    everything that `gemm` stores for it in that order."""
    if not isinstance(consumer, SchedulerNode) or consumer.is_template() or consumer.is_reduction():
        return
    stored = {dep.name: _merged(dep) for dep in gemm.read_writes.writes}
    reads = [dep for dep in consumer.read_writes.reads if dep.name in stored]
    loops = len(consumer.get_ranges()[0])
    if not reads or any(not isinstance(dep, MemoryDep) or dep.num_vars != loops for dep in reads):
        return
    strides = V.graph.sizevars.stride_hints(reads[0].index, reads[0].var_names)
    if 0 in strides:  # It reads some elements several times.
        return
    order = sorted(range(loops), key=lambda loop: -strides[loop])
    if order != list(range(loops)) and all(_merged(_turned(dep, order)) == stored[dep.name] for dep in reads):
        consumer.apply_new_loop_order(order)


def _turned(dep: MemoryDep, order: Sequence[int]) -> MemoryDep:
    return replace(
        dep, var_names=tuple(dep.var_names[loop] for loop in order), size=tuple(dep.size[loop] for loop in order)
    )


def shared(node1: Any, node2: Any) -> set[Any]:
    """Return the memory that both scheduler nodes read or write, independent of their loops."""
    first, second = ({_merged(dep) for dep in (*n.read_writes.reads, *n.read_writes.writes)} for n in (node1, node2))
    return first & second


def _merged(dep: Any) -> Any:
    return dep.normalize() if isinstance(dep, MemoryDep) else dep


def _chosen(node: Any) -> bool:
    return node.is_template() and getattr(node.get_template_node(), _MARK, False)


class _Local(threading.local):
    trying = False


_local = _Local()
_known: dict[str, str] = {}
"""Digest of a kernel's code without its name -> suffix of its name."""


def trying() -> AbstractContextManager[None]:
    """Context manager: kernels are generated for a trial."""
    return replaced(_local, "trying", True)


def is_trial() -> bool:
    """Whether kernels are generated for a trial."""
    return _local.trying


def keeping_names(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function that names a Triton kernel and puts it into the output code. `src_code`: the kernel's source
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
    """Return a kernel's name suffix, None if Inductor numbers it. `nodes`: the computation of the kernel."""
    if str(Placeholder.KERNEL_NAME) not in source:
        return None
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    if _local.trying and digest not in _known:
        how = inductor_config.triton.descriptive_names
        _known[digest] = f"{get_fused_kernel_name(nodes, how) if how else 'kernel'}_{digest}"
    return _known.get(digest)


def zeroing_counters_only(make_zero_buffer: Callable[[Any, str], str]) -> Callable[[Any, str], str]:
    """Wrap the method that writes the line that zeroes a buffer: skip the partial sums of our workspaces, which may be
    tens of megabytes per call of a graph. Inductor's C++ code still zeroes them."""

    def make(self: Any, name: str) -> str:
        line = str(make_zero_buffer(self, name))
        if not name.startswith(WORKSPACE):
            return line
        return line.replace(f"{name}.zero_()", f"{name}[:{MAX_COUNTERS}].zero_()")

    return make
