"""Lowerings that apply a node's Decision. They give Inductor one choice, so it benchmarks nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from gemmdb.errors import MissError, TableError
from gemmdb.inductor.benchmark import inductor_search as searching
from gemmdb.inductor.decide import legality, outcome
from gemmdb.inductor.decide.decision import Decision, decision_of
from gemmdb.inductor.lower import branches, by_rows, emit, engine_ops, horizontal, inductor_ops, int4
from gemmdb.inductor.lower.adapter import inlining, ir_view, state
from gemmdb.inductor.match import calls, ops
from gemmdb.inductor.match.calls import Call
from gemmdb.inductor.match.spelling import SPELLING, Spelling
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels import default_mode
from gemmdb.kernels.config import ATEN, Config
from gemmdb.lookup import lowering

aten = torch.ops.aten
_OWN = ("engine_mm", "mixed_mm", "int4_mm", "int_mm_scaled", "mm_activation")
"""Our operators whose lowerings read their node's Decision themselves."""


def register() -> None:
    """Register the lowerings of our own operators. Idempotent."""
    state.register_own(ops.overload("mixed_mm"), lower_mixed)
    state.register_own(ops.overload("int_mm_scaled"), lower_scaled)
    state.register_own(ops.overload("mm_activation"), lower_activation)
    state.register_own(ops.overload("short_sum"), lambda rows, dtype: state.unrolled_sum(rows, 1, dtype))
    horizontal.register()
    int4.register()
    engine_ops.register()


def as_decided(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `original` to lower nodes that carry a Decision."""

    @functools.wraps(original)
    def lower(*args: Any, **kwargs: Any) -> Any:
        node = state.current_node()
        decision = decision_of(node)
        if decision is None or node.target in map(ops.overload, _OWN):
            return original(*args, **kwargs)
        try:
            return carry_out(decision, original, args, kwargs)
        except (MissError, TableError):
            raise
        except Exception as error:
            outcome.failed(decision, error)
        with outcome.fallback(decision):
            return original(*args, **kwargs)

    return lower


def carry_out(decision: Decision, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Lower one GEMM as decided. If that is not possible, use Inductor's own choice and leave a note in the journal."""
    if decision.config is None:
        return searching.search(decision, functools.partial(original, *map(ir_view.from_the_start, args), **kwargs))
    if decision.branches:
        if by_rows.joined(decision):
            scalars = (kwargs.get("alpha", 1), kwargs.get("beta", 1))
            result = emit.generated(decision, _call(decision, args, kwargs), scalars=scalars)
        else:
            result = branches.lower(decision, args, kwargs)
        if result is not None:
            return result
    config = ATEN if decision.branches else emit.confirmed(decision, ir_view.pair_of(decision.problem, args))
    if config.backend in ("cpp", "cublaslt", "cutlass", "triton") or config.kernel == "padded":
        if config.backend == "cpp":
            from_the_start = map(ir_view.from_the_start, args)
            result = emit.cpp(decision, config, functools.partial(original, *from_the_start, **kwargs))
        else:
            call = _call(decision, args, kwargs)
            result = emit.generated(decision, call, scalars=(kwargs.get("alpha", 1), kwargs.get("beta", 1)))
        if result is not None:
            return result
    elif config != ATEN:
        outcome.refuse(decision, f"{config.name} is not a choice of this operator")
    with outcome.fallback(decision):
        return original(*args, **kwargs)


def _call(decision: Decision, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Return an operator's operands in Inductor's IR. A baddbmm with a Decision adds nothing."""
    spec = decision.problem.spec
    if spec.grouped or decision.problem.scaled:
        return calls.read(state.current_node().target, args, kwargs)
    if spec.bias == "always":
        bias, a, b = args
        return Call(a, b, bias=bias)
    a, b = args[-2:] if spec.batched else args
    return Call(a, b)


def lower_mixed(a: Any, w: Any, scale: Any = None, scale_first: bool = False) -> Any:
    """Lower `gemmdb::mixed_mm`. The output code never calls our operator."""
    decision = decision_of(state.current_node())
    result = outcome.attempt(decision, lambda decision: _decided_mixed(decision, a, w, scale, scale_first))
    if result is not None:
        return result
    with outcome.fallback(decision) if decision is not None else state.only_aten():
        return _mixed_of_aten(decision, a, w, scale, scale_first)


def lower_scaled(a: Any, b: Any, scale: Any, dtype: Any, rows: Any = None, bias: Any = None) -> Any:
    """Lower `gemmdb::int_mm_scaled`. The output code never calls our operator."""
    decision = decision_of(state.current_node())
    result = emit.generated(decision, Call(a, b, bias=bias), scale, rows) if decision is not None else None
    if result is not None:
        return result
    with outcome.fallback(decision) if decision is not None else state.only_aten():
        integers = state.lowering_of(aten._int_mm.default)(a, b)
    return inductor_ops.scaled_integers(integers, (rows, scale, bias), dtype)


def lower_activation(a: Any, b: Any, activation: str, bias: Any = None) -> Any:
    """Lower `gemmdb::mm_activation`. The output code never calls our operator."""
    decision = decision_of(state.current_node())
    result = emit.generated(decision, Call(a, b, bias=bias)) if decision is not None else None
    if result is not None:
        return result
    with outcome.fallback(decision) if decision is not None else state.only_aten():
        return inductor_ops.activated(a, b, bias, activation)


def _decided_mixed(decision: Decision, a: Any, w: Any, scale: Any, scale_first: bool) -> Any:
    """Lower the GEMM as decided. None if ATen was chosen, or if the decided config is not possible. Our own kernels
    ignore `scale_first`, because they scale the fp32 accumulator."""
    cast = inductor_ops.cast_scale(scale, a)
    if decision.config is None:
        return searching.search(decision, functools.partial(_mixed_of_aten, decision, a, w, scale, scale_first))
    if decision.branches:
        if by_rows.joined(decision):
            return emit.generated(decision, Call(a, w), scale)
        return branches.lower(decision, (a, w) if scale is None else (a, w, cast), {})
    if decision.config == ATEN:
        return None
    config = emit.confirmed(decision, (a, w))
    refusal = legality.lowering_rejection(config, decision.problem)
    if refusal is not None:
        outcome.refuse(decision, refusal)
        return None
    if config.backend in ("cutlass", "triton"):
        return emit.generated(decision, Call(a, w), scale if config.backend == "triton" else cast)
    return None if config == ATEN else _mixed_with(decision, config, (a, w, cast), scale_first)


def _mixed_of_aten(decision: Decision | None, a: Any, w: Any, scale: Any, scale_first: bool) -> Any:
    """Lower the GEMM as what ATen stands for in the tables: on a CPU `_weight_int8pack_mm` where default mode runs
    that, else the cast and the GEMM, as the program spells them if that is known."""
    query = None if decision is None else decision.query
    packed = query and query.device.kind == "cpu" and default_mode.packs_int8(query.problem, query.ranges)
    weight = ir_view.aligned(w) if packed else None
    cast = inductor_ops.cast_scale(scale, a)
    if decision is None or weight is None:
        spelling: Spelling | None = state.current_node().meta.get(SPELLING)
        if spelling is None:
            return inductor_ops.cast_weight(a, w, cast, scale_first)
        return inlining.lowered(spelling.graph, [a, w, *([] if scale is None else [scale])], spelling.constants)
    JOURNAL.bound |= decision.problem.constant  # Another model's weight may be misaligned.
    if decision.respelled:
        outcome.respelled(decision, lowering.WEIGHT_ONLY)
    return inductor_ops.weight_only(a, weight, cast, "aten")


def _mixed_with(decision: Decision, config: Config, operands: tuple[Any, Any, Any], scale_first: bool) -> Any:
    """Lower the GEMM to the C++ template or ATen's weight-only kernel. ATen's kernel scales last, so fp16 GEMMs never
    get here. Return None with a note in the journal if that is not possible."""
    a, w, scale = operands
    if config.backend == "cpp" and (decision.problem.a.dtype, decision.problem.b.dtype) != ("bf16", "int8"):
        # No micro kernel dequantizes this pair of dtypes, so the weight is cast once, at compile time.
        lower: Callable[[], Any] = functools.partial(inductor_ops.cast_constant, a, w, scale, scale_first)
    else:
        weight = ir_view.from_the_start(w) if config.backend == "cpp" else ir_view.aligned(w)
        if weight is None:  # ATen's kernel loads the weight in 16-byte vectors, and would crash the process.
            outcome.refuse(decision, "the weight may not be 16-byte aligned")
            return None
        lower = functools.partial(inductor_ops.weight_only, a, weight, scale, config.backend)
    if config.backend == "cpp":
        return emit.cpp(decision, config, lower)
    JOURNAL.bound |= decision.problem.constant  # Another model's weight may be misaligned.
    with state.only_aten():
        return lower()
