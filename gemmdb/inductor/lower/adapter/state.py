"""Inductor's current state: its config, its lowering table, the graph being lowered; and this process's job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from math import prod
from statistics import median
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
from torch.utils._python_dispatch import _disable_current_modes

from gemmdb.cost.host import TRAINING_HIDDEN_FLOPS
from gemmdb.settings import Policy


def benchmarks() -> int:
    """Count Inductor's benchmarks so far: choice lists, and paddings (pad_mm runs in default mode too)."""
    names = ("select_algorithm_autotune", "pad_mm_bench")
    return sum(int(counters["inductor"].get(name, 0)) for name in names)


def autotuning() -> bool:
    """Whether the compile in progress would benchmark GEMMs without gemmdb."""
    return bool(inductor_config.max_autotune or inductor_config.max_autotune_gemm)


def applied(policy: Policy) -> Policy:
    """Return the policy with what Inductor says of the graph that it compiles: whether it captures the graph in a CUDA
    graph, as in mode `reduce-overhead`, and whether the graph is part of a training step that waits for the host."""
    if None not in (policy.captured, policy.training):
        return policy
    captured = bool(inductor_config.triton.cudagraphs) if policy.captured is None else policy.captured
    training = _training.get() if policy.training is None else policy.training
    return replace(policy, captured=captured, training=training)


_training: ContextVar[bool] = ContextVar("_training", default=False)


@contextmanager
def training(found: bool) -> Iterator[None]:
    """Context manager: the graph being compiled is part of a training step that waits for the host, or not."""
    token = _training.set(found)
    try:
        yield
    finally:
        _training.reset(token)


_weights: ContextVar[frozenset[int] | None] = ContextVar("_weights", default=None)


@contextmanager
def weights(places: Iterable[int] | None) -> Iterator[None]:
    """Context manager: the indices of the parameters and buffers among the inputs of the graph being compiled; None if
    they are unknown."""
    token = _weights.set(None if places is None else frozenset(places))
    try:
        yield
    finally:
        _weights.reset(token)


def may_be_weight(given: torch.fx.Node) -> bool:
    """Whether an input or a constant of the graph being compiled is a parameter or a buffer, or may be one."""
    places = _weights.get()
    if places is None or given.op == "get_attr":
        return True
    return any(node is given and place in places for place, node in enumerate(given.graph.find_nodes(op="placeholder")))


def hides_calls(graph: torch.fx.Graph) -> bool:
    """Whether the GPU takes longer for a graph of a training step than the host takes to launch it: half of its GEMMs
    are long. False where no GEMM has fixed sizes."""
    found = [flops for node in graph.nodes if (flops := _flops(node)) is not None]
    return bool(found) and median(found) >= TRAINING_HIDDEN_FLOPS


def _flops(node: torch.fx.Node) -> float | None:
    """Return the floating-point operations of a GEMM, None for other operators and symbolic sizes."""
    first = _GEMMS.get(getattr(node.target, "overloadpacket", None))
    if first is None or len(node.args) <= first:
        return None
    result, rows = (getattr(one, "meta", {}).get("val") for one in (node, node.args[first]))
    if result is None or rows is None:
        return None
    sizes = (*result.shape, rows.shape[-1])
    return 2.0 * prod(sizes) if all(isinstance(size, int) for size in sizes) else None


_aten = torch.ops.aten
_GEMMS = {_aten.mm: 0, _aten.addmm: 1, _aten.bmm: 0, _aten.baddbmm: 1, _aten._scaled_mm: 0}
"""The operators of GEMMs, with the position of the matrix [..., M, K] among their arguments."""


def multiplies_convolutions() -> bool:
    """Whether the compile in progress lowers channels-last 1 x 1 convolutions as GEMMs."""
    return bool(inductor_config.conv_1x1_as_mm) or autotuning()


def compiles_in_workers() -> bool:
    """Whether kernels currently compile in other processes. The first call starts the processes, as in Inductor."""
    return bool(AsyncCompile.use_process_pool())


def may_be_cached() -> bool:
    """Whether Inductor's cache may still have the graph of a joint pass: AOTAutograd's cache, which comes first, is
    off."""
    return bool(inductor_config.fx_graph_cache) and not functorch_config.enable_autograd_cache


def freezing() -> bool:
    """Whether parameters become constants in the compile in progress. Inductor freezes nothing if gradients are enabled
    around the program, also where the program itself disables them."""
    return bool(inductor_config.freezing) and not torch.is_grad_enabled()


def deterministic() -> bool:
    """Whether this compile must use deterministic kernels."""
    return torch.are_deterministic_algorithms_enabled() or bool(getattr(inductor_config, "deterministic", False))


def frozen_parameters() -> dict[int, Any]:
    """Return the tensors of the joint graph's placeholders that freezing will turn into constants, by their indices:
    parameters and buffers that the graph does not mutate and does not return a view of."""
    context = torch._guards.TracingContext.try_get()
    flat = getattr(context, "params_flat_unwrap_subclasses", None)
    metadata = getattr(context, "fw_metadata", None)
    if not freezing() or flat is None or metadata is None:
        return {}
    kept = {i for i, info in enumerate(metadata.input_info) if info.mutation_type.name != "NOT_MUTATED"}
    kept |= {info.base_idx for info in metadata.output_info if info.base_idx is not None}
    return {i: tensor for i, tensor in enumerate(flat) if i not in kept}


def real_tensors() -> AbstractContextManager[Any]:
    """Inside, a pass over fake tensors can compute with the constants of its graph."""
    found: AbstractContextManager[Any] = _disable_current_modes()
    return found


def mark_frozen(tensor: torch.Tensor) -> torch.Tensor:
    """Mark a new constant of a graph as Inductor marks those that freezing makes: a key of the FX graph cache then has
    its shape alone, not a list of its numbers, and a cached graph takes that of the graph at hand."""
    if freezing():
        with suppress(ImportError):  # A torch that names this otherwise makes a long key.
            from torch._inductor.freezing_utils import enter_freezing, maybe_set_is_frozen_param

            with enter_freezing():
                maybe_set_is_frozen_param(tensor)
    return tensor


def makes_constants(lowered: Any, graph: torch.fx.GraphModule) -> bool:
    """Whether `graph`, frozen, was `lowered` with constants of its lowering, such as a packed weight or a copy. The key
    of the FX graph cache says nothing of their values, which a cached graph would take along to other models."""
    names = lowered.allocated_constant_name
    made = (getattr(graph, names[name], None) is not value for name, value in lowered.constants.items())
    return freezing() and any(made)


def integers(tensor: Any) -> list[int]:
    """Return the numbers of a constant of a graph, row by row, in a pass over fake tensors."""
    with real_tensors():
        return [int(number) for number in tensor.flatten().tolist()]


def floats(tensor: Any) -> list[float]:
    """Return the floats of a constant of a graph, as `integers`."""
    with real_tensors():
        return [float(number) for number in tensor.flatten().tolist()]


def lowers(target: Any) -> bool:
    """Whether Inductor has a lowering of `target` that obeys a decision. It has none for ATen-only operators."""
    return bool(getattr(lowerings.get(target), "_gemmdb", False))


def lowering_of(target: Any) -> Any:
    """Return Inductor's lowering of `target`."""
    return lowerings[target]


def register_own(target: Any, lower: Callable[..., Any]) -> None:
    """Register the lowering of one of our operators, once."""
    from torch._inductor.lowering import register_lowering

    if target not in lowerings:
        register_lowering(target, type_promotion_kind=None)(lower)


def unrolled_sum(values: Any, dim: int, dtype: torch.dtype) -> Any:
    """Return the sum over a short dimension as pointwise code. From 8 on, Inductor would make it a reduction, where
    threads share the few numbers of an element."""
    with inductor_config.patch(unroll_reductions_threshold=int(values.get_size()[dim]) + 1):
        return lowerings[torch.ops.aten.sum.dim_IntList](values, [dim], dtype=dtype)


def current_node() -> Any:
    """Return the FX node being lowered, or None."""
    graph = V.graph
    return getattr(graph, "current_node", None)


@contextmanager
def only_aten() -> Iterator[None]:
    """Context manager: ATen (oneDNN, MKL) is the only choice of every GEMM lowering, so Inductor benchmarks nothing."""
    with inductor_config.patch(max_autotune=False, max_autotune_gemm=False):
        yield


@contextmanager
def only_cpp(threads: tuple[int, ...] | None, blocks: tuple[int, ...] | None) -> Iterator[None]:
    """Context manager: Inductor's C++ template is the only choice of every GEMM lowering, or there is none if it is not
    legal. `threads`: threads along M, N, K. `blocks`: cache blocks along M, N, K, in register blocks. None means the
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
    """Context manager: GEMM lowerings autotune as under max_autotune_gemm."""
    with inductor_config.patch(max_autotune_gemm=True):
        yield


def operations() -> int:
    """Count the operations so far in the graph being lowered."""
    return len(V.graph.operations)


def made_cpp_template(since: int) -> bool:
    """Whether one of the operations after the first `since` is a C++ template."""
    return any(isinstance(operation, ir.CppTemplateBuffer) for operation in V.graph.operations[since:])


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Context manager: set the attribute `name` of `owner` to `value`."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def is_distributed() -> bool:
    """Whether this process belongs to a multi-process job."""
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def first_rank(key: str, value: str) -> tuple[int, str] | None:
    """Return (this rank, the `value` of the job's first process to call this); None without a job. Not a collective: no
    process waits for another."""
    if not is_distributed():
        return None
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    return rank, bytes(store.compare_set(key, "", value)).decode()
