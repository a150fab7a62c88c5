"""Lower `gemmdb::horizontal_mm` and `horizontal_int4`: one of our multi-weight Triton kernels, or the GEMMs one by
one."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gemmdb.inductor.decide import outcome
from gemmdb.inductor.decide.decision import Fused
from gemmdb.inductor.lower import inductor_ops, int4, triton
from gemmdb.inductor.lower.adapter import ir_view, state, symbolic, templates
from gemmdb.inductor.match import ops
from gemmdb.inductor.match.horizontal import HORIZONTAL
from gemmdb.kernels.triton import names as triton_names
from gemmdb.kernels.triton import parts
from gemmdb.key.problem import Problem

log = logging.getLogger("gemmdb")
aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Operands:
    """The operator's operands in Inductor's IR, in argument order."""

    a: Any
    weights: Sequence[Any]
    scales: Sequence[Any] = field(default_factory=list)
    biases: Sequence[Any] = field(default_factory=list)
    a_scale: Any = None
    dtype: Any = None
    fast: bool = False


def register() -> None:
    """Register the lowerings. Idempotent."""
    state.register_own(ops.overload("horizontal_mm"), lower)
    state.register_own(ops.overload("horizontal_int4"), lower_int4)


def lower(*args: Any) -> Any:
    """Lower the GEMMs in Inductor's IR to one concatenated vector. The output code never calls our operator."""
    operands = Operands(*args)

    @functools.cache
    def settled() -> Operands:
        """Require the strides that ATen wants, those of the graph. Inductor keeps them for operators that it knows."""
        if operands.a_scale is None:
            return operands
        return replace(operands, a=templates.settled(operands.a, True), a_scale=templates.contiguous(operands.a_scale))

    count = len(operands.weights)
    return _lowered(count, lambda fused: _kernel(fused, operands), lambda place: _alone(settled(), place))


def lower_int4(
    a: Any, weights: Sequence[Any], scales: Sequence[Any], zeros: Sequence[Any], group: int, packing: str
) -> Any:
    """Lower the GEMMs with int4 weights; see `lower`."""
    made = [
        int4.Weight.of(a, weight, scale, zero, group, packing)
        for weight, scale, zero in zip(weights, scales, zeros or [None] * len(weights), strict=True)
    ]
    return _lowered(len(made), lambda fused: _int4_kernel(fused, a, made), lambda place: int4.plain(a, made[place]))


def _lowered(count: int, kernel: Callable[[Fused], Any], alone: Callable[[int], Any]) -> Any:
    """Return the result of `kernel`; if it fails, lower the GEMMs with Inductor, which may autotune if the user enabled
    it."""
    fused: Fused | None = state.current_node().meta.get(HORIZONTAL)
    if fused is not None:
        try:
            return kernel(fused)
        except Exception as error:
            log.debug("gemmdb: %s horizontally", fused.decision.problem.text, exc_info=True)
            for member in fused.members:
                outcome.refuse(member, f"not in one kernel: {type(error).__name__}: {error}")
    flat, results = state.lowering_of(aten.reshape.default), []
    for place in range(count):
        with outcome.fallback(fused.members[place]) if fused is not None else state.only_aten():
            results.append(flat(alone(place), [-1]))
    return ir_view.concatenated(results)


def _kernel(fused: Fused, operands: Operands) -> Any:
    config, problem = fused.decision.config, fused.decision.problem
    assert config is not None
    # With several GEMMs per activation, Inductor stores it, and each weight, with the graph's strides.
    a = templates.settled(operands.a, problem.a.row_major)
    weights = [templates.settled(one, problem.b.row_major) for one in operands.weights]
    first = [] if operands.a_scale is None else [operands.a_scale]
    vectors = [templates.settled(one) for one in (*operands.scales, *operands.biases, *first)]
    _check_widths(fused)
    for member, weight in zip(fused.members, weights, strict=True):
        triton.check(member.problem, triton.Operands(a, weight))
        _check_order(member.problem, a, weight)
    if len({ir_view.literal(weight)[1] for weight in weights}) > 1:  # type: ignore[index]
        raise triton.Refused("the weights have different strides")
    for vector in vectors:  # [N], [1, N] or [M, 1]; a single number may have any layout.
        found = ir_view.literal(vector)
        dense = found is not None and all(size == 1 or stride == 1 for size, stride in zip(*found, strict=True))
        if not dense or ir_view.misplaced(vector):
            raise triton.Refused("a scale or bias is not a contiguous vector")
    own = triton.constants(config, problem, triton.Operands(a, weights[0]))
    constants = own | parts.constants(len(weights), bool(operands.scales), bool(operands.biases), problem.scales)
    return _gemm(fused, constants, (a, *weights, *vectors), operands.dtype or a.get_dtype())


def _int4_kernel(fused: Fused, a: Any, weights: Sequence[int4.Weight]) -> Any:
    config, problem = fused.decision.config, fused.decision.problem
    assert config is not None
    _check_widths(fused)
    tensors = [int4.activation(a), *(tensor for weight in weights for tensor in weight.tensors)]
    constants = {**triton_names(config, problem), "ACC_TYPE": "tl.float32", **parts.constants(len(weights))}
    return _gemm(fused, constants, tensors, a.get_dtype())


def _check_widths(fused: Fused) -> None:
    """Raise Refused if the kernel cannot take weights of these widths."""
    assert fused.decision.config is not None
    if rejected := parts.rejection(fused.decision.config, [int(member.problem.n) for member in fused.members]):
        raise triton.Refused(rejected.reason)


def _gemm(fused: Fused, constants: Mapping[str, Any], operands: Sequence[Any], out: torch.dtype) -> Any:
    """Return the kernel's output. `operands`: those that the template names."""
    config, problem = fused.decision.config, fused.decision.problem
    assert config is not None
    size = problem.m * problem.n
    if not symbolic.addressable((size,), operands):
        raise triton.Refused("offsets are 32 bits wide")
    kernel = triton.template_kernel(config, constants, problem)
    return templates.gemm(kernel, operands, (out, (size,)), launched=(problem.m, problem.n))


def _check_order(problem: Problem, a: Any, weight: Any) -> None:
    """Raise Refused if an operand's memory order differs from the problem's: some kernels rely on it."""
    found = ir_view.confirm(problem, (a, weight))
    if [one.layout.order for one in (found.a, found.b)] != [one.layout.order for one in (problem.a, problem.b)]:
        raise triton.Refused("an operand's layout changed during lowering")


def _alone(operands: Operands, place: int) -> Any:
    """Lower the GEMM with the weight at `place`."""
    a, weight = operands.a, operands.weights[place]
    scale, bias = (vectors[place] if vectors else None for vectors in (operands.scales, operands.biases))
    if operands.a_scale is not None:
        multiply = state.lowering_of(aten._scaled_mm.default)
        return multiply(a, weight, operands.a_scale, scale, bias, None, operands.dtype, operands.fast)
    if bias is not None:
        return state.lowering_of(aten.addmm.default)(bias, a, weight)
    return inductor_ops.cast_weight(a, weight, inductor_ops.cast_scale(scale, a))
