"""Find the calls of engines' operators in a graph, and put a gemmdb operator in their place that can become a GEMM.

A call may mutate an output: then it stands in the graph as `auto_functionalized`, in either version. It is opened only
if the output is memory that the graph has just allocated for this call, so nothing else can read or write it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from gemmdb.errors import InputError
from gemmdb.inductor.match import engine_ops, epilogues, extract, fx, linears, ops
from gemmdb.inductor.match.engine_ops import BLOCK, BLOCKS, DTYPE, OUT, EngineOp, Operands, Product
from gemmdb.inductor.match.extract import Gemm
from gemmdb.inductor.match.fx import Unsupported, value
from gemmdb.key.int4 import WEIGHT
from gemmdb.key.problem import Problem

aten = torch.ops.aten
_FIRST = torch.ops.higher_order.auto_functionalized
_FUNCTIONAL = (_FIRST, torch.ops.higher_order.auto_functionalized_v2)
_ALLOCATIONS = (aten.empty.memory_format, aten.empty_strided.default, aten.new_empty.default)
_FAST_ARCHS = ("sm90",)
"""Where the engines' kernels without block scales let the tensor core keep fp8 sums in its own accumulator."""


@dataclass(frozen=True)
class Opened:
    """A call: the node of its result, its operator and operands, which are nodes, and the GEMM that it is."""

    node: Any
    op: EngineOp
    operands: Operands
    gemm: Gemm


def find(node: Any, opened: Mapping[Any, EngineOp]) -> Opened | None:
    """Return the call whose result `node` is. `opened`: the operators, by overload. None for any other node. Raises
    Unsupported, with the operator's name and the reason, for a call that cannot be opened."""
    op = _operator(node, opened)
    if op is None:
        return None
    try:
        operands = _operands(node, op)
        given = replace(operands, **{name: value(one) for name, one in _nodes(operands).items()})
        gemm = _gemm(node, operands, given, op.product(given))
    except (InputError, Unsupported) as error:
        raise Unsupported(f"{op.name}: {error}") from error
    return None if gemm is None else Opened(node, op, operands, gemm)


def rewrite(found: Opened) -> Any:
    """Put `gemmdb::engine_mm` in place of a call and return its node. The call stays in the graph, unused."""
    one, graph = found.operands, found.node.graph
    args = (one.a, one.b, one.scale_a, one.scale_b, one.bias, one.dtype, found.op.name, one.zeros)
    with graph.inserting_after(found.node):
        made = fx.call(graph, ops.overload("engine_mm"), args, found.node.meta)
    found.node.replace_all_uses_with(made)
    return made


def revert(made: Any, original: Any) -> None:
    """Undo `rewrite`."""
    made.replace_all_uses_with(original)
    made.graph.erase_node(made)


def remove(original: Any) -> None:
    """Erase a call that is not used any more, with the memory that was allocated for it."""
    graph, call = original.graph, original.args[0] if original.target is operator.getitem else original
    out = _allocated(call) if call is not original else None
    for node in dict.fromkeys((original, call, out)):
        if node is not None and not node.users:
            graph.erase_node(node)


def product_of(made: Any) -> tuple[EngineOp, Product]:
    """Return the operator and the GEMM of a `gemmdb::engine_mm` node. Raises Unsupported."""
    op, given = engine_ops.ENGINE_OPS[made.args[6]], operands_of(made)
    return op, op.product(replace(given, block=BLOCKS if BLOCK in op.roles else ()))


def operands_of(made: Any) -> Operands:
    """Return the operands of a `gemmdb::engine_mm` node, fake tensors."""
    *tensors, dtype, _, zeros = made.args
    a, b, scale_a, scale_b, bias, zeros = (None if one is None else value(one) for one in (*tensors, zeros))
    return Operands(a, b, scale_a, scale_b, bias, dtype, zeros=zeros)


def _operator(node: Any, opened: Mapping[Any, EngineOp]) -> EngineOp | None:
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        call, place = node.args
        wanted = isinstance(call, torch.fx.Node) and call.target in _FUNCTIONAL and place == 1
        return opened.get(call.args[0]) if wanted else None
    return opened.get(node.target)


def _operands(node: Any, op: EngineOp) -> Operands:
    """Return the operands, which are nodes. Raises Unsupported."""
    call = node.args[0] if node.target is operator.getitem else node
    if op.mutates and call is node:
        raise Unsupported("the graph has it with an output that it mutates")
    given = dict(call.kwargs)
    if not op.mutates:
        given |= dict(zip((one.name for one in op.overload._schema.arguments), call.args, strict=False))
    roles = op.named(given)
    out = _allocated(call) if op.mutates else node
    if out is None or (out is not node and list(out.users) != [call]):
        raise Unsupported("its output is not memory that the graph allocates for this call alone")
    if list(call.users) != [node] and op.mutates:
        raise Unsupported("the graph reads more than its output")
    result = value(out)
    if result.dim() != 2 or not (fx.known(result.stride(1) == 1) and fx.known(result.stride(0) == result.shape[1])):
        raise Unsupported("the rows of its output do not follow each other in memory")
    roles[DTYPE] = roles.get(DTYPE) or result.dtype
    known = {field.name for field in fields(Operands)}
    found = Operands(**{"bias": None, "scale_a": None, **{role: one for role, one in roles.items() if role in known}})
    if result.dtype != found.dtype or result.device != value(found.a).device:
        raise Unsupported("its output has another dtype or device than it says")
    return found


def _allocated(call: Any) -> Any:
    """Return the node of the memory that an `auto_functionalized` call writes to, None if it is not freshly allocated,
    or only a part of it is written."""
    if call.target is _FIRST:
        out = call.kwargs.get(OUT)
    else:
        bases = call.kwargs.get("_all_bases", ())
        own = [name for name in call.kwargs if name.startswith(f"_{OUT}_")]
        whole = own == [f"_{OUT}_base_index"] and call.kwargs[own[0]] == 0 and len(bases) == 1
        out = bases[0] if whole else None
    return out if isinstance(out, torch.fx.Node) and out.target in _ALLOCATIONS else None


def _nodes(operands: Operands) -> dict[str, Any]:
    pairs = {field.name: getattr(operands, field.name) for field in fields(Operands)}
    return {name: one for name, one in pairs.items() if isinstance(one, torch.fx.Node)}


def _gemm(node: Any, operands: Operands, given: Operands, product: Product) -> Gemm | None:
    if product.groups is not None:
        weight = WEIGHT, product.groups
        constant, fusion = extract.is_constant(operands.b), epilogues.fusion(node)
        return linears.with_groups(node, operands.a, weight, constant, fusion, None)
    a, b = given.a, given.b.t() if product.turned else given.b
    on, m, n = a.device, a.shape[0], b.shape[1]
    if not fx.same_sizes(value(node).shape, (m, n)):
        raise Unsupported("its output is not [M, N]")
    info, device = extract.tensor(a), extract.device(on)
    fast = product.op == "scaled_mm" and product.scales != "block" and device.arch in _FAST_ARCHS
    named: dict[str, Any] = {"fusion": "scale"}
    if product.op == "scaled_mm":
        bias = None if given.bias is None else extract.bias(given.bias, extract.hint(m), n)
        named = {"scales": product.scales, "bias": bias, "fusion": epilogues.fusion(node)}
    named["numerics"] = replace(extract.numerics(info.dtype, on.type), fast=fast)
    named |= {"constant": extract.is_constant(operands.b), "out": extract.dtype_name(given.dtype)}
    problem = Problem.from_tensors(product.op, info, extract.tensor(b), **named)
    return extract.gemm(node, problem, {"m": m, "n": n, "k": a.shape[1]}, on)
