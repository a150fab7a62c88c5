"""Lower `gemmdb::engine_mm`: to the kernel that was timed against the engine's operator, or to that operator."""

from __future__ import annotations

from typing import Any

import torch

from gemmdb.inductor.decide import deciding, outcome
from gemmdb.inductor.decide.decision import Decision, decision_of
from gemmdb.inductor.lower import emit, int4
from gemmdb.inductor.lower.adapter import ir_view, operators, state, templates
from gemmdb.inductor.match import opening, ops
from gemmdb.inductor.match.calls import Call
from gemmdb.inductor.match.engine_ops import ENGINE_OPS, Operands, Product
from gemmdb.inductor.match.fx import value
from gemmdb.kernels.config import ATEN

aten = torch.ops.aten


def register() -> None:
    """Register the lowering of our own operator. Idempotent."""
    state.register_own(ops.overload("engine_mm"), lower)


def lower(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any, dtype: torch.dtype, name: str, zeros: Any = None
) -> Any:
    """Lower the GEMM. The output code never calls our operator."""
    operands = Operands(a, b, scale_a, scale_b, bias, dtype, zeros=zeros)
    decision = decision_of(state.current_node())
    result = outcome.attempt(decision, lambda decision: _decided(decision, operands))
    return _by_engine(operands, name) if result is None else result


def _by_engine(operands: Operands, name: str) -> Any:
    """Call the engine's own operator."""
    op, node = ENGINE_OPS[name], state.current_node()
    fakes = op.arguments(opening.operands_of(node))
    made = None
    if op.mutates:
        made = operators.allocated(value(node).shape, operands.dtype, value(node).device)
    given = op.arguments(operands, made)
    kept = [one if isinstance(one, torch.Tensor) else None for one in fakes]
    result = operators.call(op.overload, given, kept)
    return made if op.mutates else result


def _decided(decision: Decision, operands: Operands) -> Any:
    """Lower the GEMM as decided. None if the engine's operator was chosen, or, with a note in the journal, if the
    decided config is not possible."""
    if decision.config in (None, ATEN):
        return None
    _, product = opening.product_of(state.current_node())
    if product.groups is not None:
        sizes = operands.b.get_size()[0], operands.a.get_size()[1]
        weight = int4.Weight(operands.b, operands.scale_b, operands.zeros, product.groups, sizes)
        return int4.decided(decision, operands.a, weight)
    a = templates.settled(operands.a)
    b = templates.settled(_turned(operands.b) if product.turned else operands.b)
    if ir_view.confirm(decision.problem, (a, b)) != decision.problem:
        outcome.refuse(decision, deciding.LAYOUT_CHANGED)
        return None
    if decision.problem.spec.integer:
        return _integers(decision, operands, (a, b))
    scales = _scales(operands, product)
    fast = decision.problem.numerics.fast
    return emit.generated(decision, Call(a, b, scales, operands.bias, fast=fast))


def _integers(decision: Decision, operands: Operands, pair: tuple[Any, Any]) -> Any:
    m, n = (pair[0].get_size()[0], pair[1].get_size()[1])
    rows, columns = _vector(operands.scale_a, m), _vector(operands.scale_b, n)
    return emit.generated(decision, Call(*pair, bias=operands.bias), columns, rows)


def _scales(operands: Operands, product: Product) -> tuple[Any, Any]:
    """Return the scales of fp8 operands as `_scaled_mm` takes them."""
    if product.scales == "row":
        return _viewed(operands.scale_a, [-1, 1]), _viewed(operands.scale_b, [1, -1])
    return operands.scale_a, _turned(operands.scale_b) if product.turned else operands.scale_b


def _vector(scale: Any, size: Any) -> Any:
    """Return a scale of one number, or of a number for each row or column, as a vector."""
    flat = _viewed(scale, [-1])
    return flat if list(flat.get_size()) == [size] else state.lowering_of(aten.expand.default)(flat, [size])


def _viewed(node: Any, sizes: list[int]) -> Any:
    return state.lowering_of(aten.reshape.default)(node, sizes)


def _turned(node: Any) -> Any:
    return state.lowering_of(aten.permute.default)(node, [1, 0])
