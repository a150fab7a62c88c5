"""What Inductor is doing now: its config, its lowering table, the graph being lowered; and this process's job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.lowering import lowerings
from torch._inductor.virtualized import V


def benchmarks() -> int:
    """How often Inductor has benchmarked so far: choice lists, and paddings (pad_mm runs in default mode too)."""
    names = ("select_algorithm_autotune", "pad_mm_bench")
    return sum(int(counters["inductor"].get(name, 0)) for name in names)


def autotuning() -> bool:
    """Whether the compile in progress would benchmark GEMMs if left alone."""
    return bool(inductor_config.max_autotune or inductor_config.max_autotune_gemm)


def multiplies_convolutions() -> bool:
    """Whether the compile in progress makes GEMMs of 1 x 1 convolutions whose images are stored channels last."""
    return bool(inductor_config.conv_1x1_as_mm) or autotuning()


def compiles_in_workers() -> bool:
    """Whether kernels compile in other processes now. The first time this starts the processes, as in Inductor."""
    return bool(AsyncCompile.use_process_pool())


def may_be_cached() -> bool:
    """Whether the graph of a joint pass may still come out of Inductor's cache: AOTAutograd's, which is asked before,
    is off."""
    return bool(inductor_config.fx_graph_cache) and not functorch_config.enable_autograd_cache


def freezing() -> bool:
    """Whether parameters become constants in the compile in progress."""
    return bool(inductor_config.freezing)


def deterministic() -> bool:
    """Whether this compile must take deterministic kernels."""
    return torch.are_deterministic_algorithms_enabled() or bool(getattr(inductor_config, "deterministic", False))


def frozen_parameters() -> set[int]:
    """The indices of the placeholders of the joint graph that freezing will turn into constants: parameters and buffers
    that the graph does not mutate and of which it returns no view."""
    context = torch._guards.TracingContext.try_get()
    flat = getattr(context, "params_flat_unwrap_subclasses", None)
    metadata = getattr(context, "fw_metadata", None)
    if not freezing() or flat is None or metadata is None:
        return set()
    kept = {i for i, info in enumerate(metadata.input_info) if info.mutation_type.name != "NOT_MUTATED"}
    kept |= {info.base_idx for info in metadata.output_info if info.base_idx is not None}
    return set(range(len(flat))) - kept


def lowers(target: Any) -> bool:
    """Whether Inductor has a lowering of `target` that obeys a decision. It has none for what it leaves to ATen."""
    return bool(getattr(lowerings.get(target), "_gemmdb", False))


def lowering_of(target: Any) -> Any:
    """Inductor's lowering of `target`."""
    return lowerings[target]


def register_own(target: Any, lower: Callable[..., Any]) -> None:
    """Register the lowering of an operator of ours, once."""
    from torch._inductor.lowering import register_lowering

    if target not in lowerings:
        register_lowering(target, type_promotion_kind=None)(lower)


def current_node() -> Any:
    """The FX node that is being lowered, or None."""
    graph = V.graph
    return getattr(graph, "current_node", None)


@contextmanager
def only_aten() -> Iterator[None]:
    """Inside, every GEMM lowering has ATen (oneDNN, MKL) as its one choice, so Inductor times nothing."""
    with inductor_config.patch(max_autotune=False, max_autotune_gemm=False):
        yield


@contextmanager
def only_cpp(threads: tuple[int, ...] | None, blocks: tuple[int, ...] | None) -> Iterator[None]:
    """Inside, every GEMM lowering has Inductor's C++ template as its one choice, or no choice if it is not legal.
    `threads`: threads along M, N, K. `blocks`: cache blocks along M, N, K, in register blocks. None stands for the
    template's own rule."""
    patches: dict[str, Any] = {"max_autotune": False, "max_autotune_gemm": True, "max_autotune_gemm_backends": "CPP"}
    if threads is not None:
        patches["cpp.gemm_thread_factors"] = ",".join(map(str, threads))
    if blocks is not None:
        patches["cpp.gemm_cache_blocking"] = ",".join(map(str, blocks))
    with inductor_config.patch(patches):
        yield


@contextmanager
def searching() -> Iterator[None]:
    """Inside, GEMM lowerings search as under max_autotune_gemm."""
    with inductor_config.patch(max_autotune_gemm=True):
        yield


def operations() -> int:
    """How many operations the graph being lowered has so far."""
    return len(V.graph.operations)


def made_cpp_template(since: int) -> bool:
    """Whether one of the operations after the first `since` is a C++ template."""
    return any(isinstance(operation, ir.CppTemplateBuffer) for operation in V.graph.operations[since:])


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, the attribute `name` of `owner` is `value`."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def is_distributed() -> bool:
    """Whether this process belongs to a job of more than one."""
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def first_rank(key: str, value: str) -> tuple[int, str] | None:
    """(this rank, the `value` of the first process of the job that called this); None without a job. No collective:
    none waits for another."""
    if not is_distributed():
        return None
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    return rank, bytes(store.compare_set(key, "", value)).decode()
