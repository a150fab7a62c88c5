"""Lowerings: carry out the Decision that a pass left on the node, with exactly one choice, so nothing is timed."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from gemmdb.config import ATEN, Config
from gemmdb.errors import MissError, TableError
from gemmdb.inductor import (
    branches,
    casting,
    cutlass_kernels,
    fp8,
    inductor_templates,
    legality,
    ops,
    padding,
    passes,
    searching,
    triton_kernels,
)
from gemmdb.inductor.adapter import ir_view, state
from gemmdb.inductor.asking import is_default
from gemmdb.inductor.journal import JOURNAL
from gemmdb.inductor.passes import DECISION
from gemmdb.inductor.session import Decision
from gemmdb.problem import Problem
from gemmdb.sources import INDUCTOR

aten = torch.ops.aten
log = logging.getLogger("gemmdb")


def steered_targets() -> list[Any]:
    """The operators whose lowering obeys a Decision on the node being lowered."""
    targets: list[Any] = [aten.mm.default, aten.addmm.default, aten._int_mm.default, aten._weight_int8pack_mm]
    targets += [aten.bmm.default, *fp8.targets()]
    if torch._C._has_mkldnn:
        targets.append(torch.ops.mkldnn._linear_pointwise)
        if torch._C.has_mkl:
            targets.append(torch.ops.mkl._mkl_linear)
    return targets


def register() -> None:
    """Wrap the lowerings of the steered operators and register that of `gemmdb::mixed_mm`. Idempotent."""
    for target in steered_targets():
        state.wrap_lowering(target, steer)
    state.register_own(ops.register(), lower_mixed)
    state.register_own(ops.register_scaled(), lower_scaled)
    cutlass_kernels.register()


def steer(original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, except on nodes that carry a Decision."""

    @functools.wraps(original)
    def lower(*args: Any, **kwargs: Any) -> Any:
        node = state.current_node()
        decision = node.meta.get(DECISION) if node is not None else None
        if decision is None or node.target in (ops.register(), ops.register_scaled()):
            return original(*args, **kwargs)
        try:
            return carry_out(decision, original, args, kwargs)
        except (MissError, TableError):
            raise
        except Exception as error:
            _failed(decision, error)
        with state.only_aten():
            return original(*args, **kwargs)

    lower._gemmdb = True  # type: ignore[attr-defined]
    return lower


def carry_out(decision: Decision, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Lower one product as decided; ATen, with a note in the journal, where that turns out not to be possible."""
    if decision.config is None:
        return searching.search(decision, functools.partial(original, *map(ir_view.from_the_start, args), **kwargs))
    if decision.branches:
        result = branches.lower(decision, args, kwargs)
        if result is not None:
            return result
    config = ATEN if decision.branches else _confirmed(decision, args)
    if config.backend in ("cpp", "cutlass", "triton") or config.kernel == "padded":
        if config.backend == "cpp":
            from_the_start = map(ir_view.from_the_start, args)
            result = _cpp(decision, config, functools.partial(original, *from_the_start, **kwargs))
        else:
            operands = _operands(decision, args, kwargs)
            result = _generated(decision, operands, scalars=(kwargs.get("alpha", 1), kwargs.get("beta", 1)))
        if result is not None:
            return result
    elif not is_default(config):
        _note(decision, f"{config.name} is not a choice of this operator")
    with state.only_aten():
        return original(*args, **kwargs)


def _operands(decision: Decision, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """What `triton_kernels.Operands.of` takes, of an operator's arguments."""
    if decision.problem.op != "scaled_mm":
        return args
    return fp8.read(state.current_node().target, args, kwargs).operands


def _confirmed(decision: Decision, args: tuple[Any, ...]) -> Config:
    """The decided config, looked up again if the IR's operands are not those that the graph pass saw."""
    assert decision.config is not None
    problem = ir_view.confirm(decision.problem, args)
    if problem == decision.problem:
        return decision.config
    try:
        again = passes.decide(decision.session, replace(decision.query, problem=problem))
    except (MissError, TableError):
        raise
    event, new = decision.event, again.event
    event.problem, event.rung, event.config, event.note = new.problem, new.rung, new.config, new.note
    event.expected_us, event.speedup, event.table, event.evidence = (
        new.expected_us, new.speedup, new.table, new.evidence,
    )  # fmt: skip
    return again.config or ATEN


def _bound_to_its_constants(decision: Decision) -> None:
    """Keep the graph out of the compile caches where what was made of it holds for a constant's values, or for where it
    begins: the caches only know its shape, and would serve the graph to another model."""
    if decision.problem.constant:
        JOURNAL.provisional = True


def _cpp(decision: Decision, config: Config, lower: Callable[[], Any]) -> Any:
    """The product as Inductor's C++ template with the config's blocking, which packs its weight while it is lowered;
    None when it is not legal here."""
    node = state.current_node()
    if node is not None and node.target is aten.bmm.default:
        # A mixed product that is spelled as a batch; Inductor has another template for these.
        _note(decision, "the C++ template was measured on matrices, not on a batch")
        return None
    _bound_to_its_constants(decision)
    values = config.values
    threads, blocks = (_factors(values, name) for name in ("threads", "blocks"))
    since = state.operations()
    try:
        with state.only_cpp(threads, blocks):
            result = lower()
    except Exception as error:
        _note(decision, f"the C++ template refused: {type(error).__name__}")
        return None
    if not state.made_cpp_template(since):
        _note(decision, "the C++ template is not legal here")
    return result


def _generated(
    decision: Decision, args: tuple[Any, ...], scale: Any = None, scalars: tuple[float, float] = (1, 1)
) -> Any:
    """The product as a Triton kernel or on padded operands, for the layouts that its operands have in the end; None,
    with a note, when it is not to be that after all."""
    try:
        operands = triton_kernels.Operands.of(decision.query, args, scale)
        pair = (operands.a, operands.b)
        problem = ir_view.confirm(decision.problem, pair)
        config = _confirmed(decision, pair)
        if is_default(config):
            return None
        refusal = legality.objection(config, replace(decision.query, problem=problem))
        if refusal is None:
            return _lower(config, problem, operands, scalars)
        _note(decision, refusal)
    except (MissError, TableError):
        raise
    except triton_kernels.Refused as error:
        _note(decision, str(error))
    except Exception as error:
        log.debug("gemmdb: %s as %s", decision.problem.text, decision.event.config, exc_info=True)
        _note(decision, f"Inductor could not generate the kernel: {type(error).__name__}: {error}")
    return None


def _lower(config: Config, problem: Problem, operands: triton_kernels.Operands, scalars: tuple[float, float]) -> Any:
    if config.kernel == "padded":
        return padding.lower(config, problem, operands, scalars)
    if config.backend == "cutlass":
        return cutlass_kernels.lower(config, problem, operands)
    if problem.op == "int_mm" and operands.scale is not None:
        raise triton_kernels.Refused("only CUTLASS takes an integer product with its scale in one node")
    if config.kernel in INDUCTOR:
        return inductor_templates.lower(config, problem, operands, scalars)
    return triton_kernels.lower(config, problem, operands, scalars)


def _factors(values: Any, name: str) -> tuple[int, int, int] | None:
    """(m, n, k) of a blocking parameter, None when any is 0: the template's own rule."""
    found = (int(values[f"{name}_m"]), int(values[f"{name}_n"]), int(values[f"{name}_k"]))
    return found if all(found) else None


def _note(decision: Decision, why: str) -> None:
    decision.event.refuse(why)


def _failed(decision: Decision, error: Exception) -> None:
    passes.note_failure("lowering", error)
    _note(decision, f"the lowering failed: {type(error).__name__}")


def lower_mixed(a: Any, w: Any, scale: Any = None, scale_first: bool = False) -> Any:
    """Lower `gemmdb::mixed_mm`. Whatever happens, no call of our operator is left in the output code."""
    node = state.current_node()
    decision = node.meta.get(DECISION) if node is not None else None
    if decision is not None:
        try:
            result = _decided_mixed(decision, a, w, scale, scale_first)
            if result is not None:
                return result
        except (MissError, TableError):
            raise
        except Exception as error:
            _failed(decision, error)
    with state.only_aten():
        return casting.cast_product(a, w, scale, scale_first)


def lower_scaled(a: Any, b: Any, scale: Any, dtype: Any) -> Any:
    """Lower `gemmdb::int_mm_scaled`. Whatever happens, no call of our operator is left in the output code."""
    node = state.current_node()
    decision = node.meta.get(DECISION) if node is not None else None
    result = _generated(decision, (a, b), scale) if decision is not None else None
    if result is not None:
        return result
    with state.only_aten():
        scaled = state.lowering_of(aten.mul.Tensor)(state.lowering_of(aten._int_mm.default)(a, b), scale)
    return state.lowering_of(torch.ops.prims.convert_element_type.default)(scaled, dtype)


def _decided_mixed(decision: Decision, a: Any, w: Any, scale: Any, scale_first: bool) -> Any:
    """The product as decided; None where that is ATen, or turns out not to be possible. `scale_first` is nothing to
    kernels of ours, which scale the fp32 accumulator."""
    if decision.config is None:
        return searching.search(decision, functools.partial(casting.cast_product, a, w, scale, scale_first))
    if decision.branches:
        return branches.lower(decision, (a, w) if scale is None else (a, w, scale), {})
    if is_default(decision.config):
        return None
    config = _confirmed(decision, (a, w))
    refusal = legality.refuses(config, decision.problem)
    if refusal is not None:
        _note(decision, refusal)
        return None
    if config.backend in ("cutlass", "triton"):
        return _generated(decision, (a, w), scale)
    return None if is_default(config) else _mixed_with(decision, config, (a, w, scale), scale_first)


def _mixed_with(decision: Decision, config: Config, operands: tuple[Any, Any, Any], scale_first: bool) -> Any:
    """The product by the C++ template, or as ATen's weight-only one, to which no fp16 comes: it scales last. None, with
    a note, where that turns out not to be possible."""
    a, w, scale = operands
    if config.backend == "cpp" and (decision.problem.a.dtype, decision.problem.b.dtype) != ("bf16", "int8"):
        # No micro kernel dequantises these, so the weight is cast once, at compile time.
        lower: Callable[[], Any] = functools.partial(casting.constant_product, a, w, scale, scale_first)
    else:
        weight = ir_view.from_the_start(w) if config.backend == "cpp" else ir_view.aligned(w)
        if weight is None:  # ATen's kernel loads 16 bytes of it at once, and would end the process.
            _note(decision, "the weight may begin at no multiple of 16 bytes")
            return None
        lower = functools.partial(casting.weight_only, a, weight, scale, config.backend)
    if config.backend == "cpp":
        return _cpp(decision, config, lower)
    _bound_to_its_constants(decision)
    with state.only_aten():
        return lower()
