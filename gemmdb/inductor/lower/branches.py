"""Dispatch on M: run one GEMM with several kernels, each for one interval of M."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from gemmdb.inductor.decide import outcome
from gemmdb.inductor.decide.decision import DECISION, Decision
from gemmdb.inductor.lower.adapter import branching, state, symbolic
from gemmdb.inductor.match import fx, ops
from gemmdb.inductor.match.spelling import SPELLING
from gemmdb.rejected import Rejected

aten = torch.ops.aten


def lower(decision: Decision, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Lower a GEMM, in Inductor's IR, to a run-time choice between the first branch of `decision` and the rest. Return
    None with a note in the journal if the GEMM cannot be split among kernels."""
    node = state.current_node()
    place = _places().get(node.target)
    if place is None or any(isinstance(arg, torch.fx.Node) for arg in node.kwargs.values()):
        outcome.refuse(decision, "only a plain GEMM can be split among kernels")
        return None
    tensors = [i for i, arg in enumerate(node.args) if isinstance(arg, torch.fx.Node)]
    operands = [(args[i], node.args[i].meta["val"]) for i in tensors]
    m = args[place].get_size()[0]
    rejected = branching.rejection()
    if rejected is None and symbolic.number(m) is not None:
        rejected = Rejected("M is fixed")
    # A branch has each operand's start, but not its offset within its storage.
    if rejected is None and not all(fx.known(fake.storage_offset() == 0) for _, fake in operands):
        rejected = Rejected("an operand has a storage offset")
    if rejected is not None:
        outcome.refuse(decision, rejected)
        return None
    first, rest = _divided(decision)
    limit = first.query.ranges["m"][1]
    graphs = (
        branching.Branch(f"{node.name}_up_to_{limit}", _graph(node, first, kwargs)),
        branching.Branch(f"{node.name}_above_{limit}", _graph(node, rest, kwargs)),
    )
    return branching.either(m <= limit, graphs, operands, node.meta["val"])


def _places() -> dict[Any, int]:
    """Operators that support dispatch on M, each with A's argument position."""
    plain = {aten.mm.default: 0, aten._int_mm.default: 0, aten.addmm.default: 1, aten._scaled_mm.default: 0}
    groups = {aten._grouped_mm.default: 0, aten._scaled_grouped_mm.default: 0}
    return {**plain, **groups, ops.overload("mixed_mm"): 0, ops.overload("int4_mm"): 0}


def _divided(decision: Decision) -> tuple[Decision, Decision]:
    """Return the decision for the first branch, and the one for all others."""
    (limit, config), *others = decision.branches
    low, high = decision.query.ranges["m"]

    def branch(rows: tuple[int, int | None], **changes: Any) -> Decision:
        query = replace(decision.query, ranges={**decision.query.ranges, "m": rows})
        return replace(decision, query=query, is_branch=True, **changes)

    rest = tuple(others) if len(others) > 1 else ()
    return (
        branch((low, limit), config=config, branches=()),
        branch((limit + 1 if limit is not None else low, high), config=others[0][1], branches=rest),
    )


def _graph(node: Any, decision: Decision, kwargs: Mapping[str, Any]) -> torch.fx.GraphModule:
    """Build a graph of only the operator of `node`, which `decision` lowers. It takes the tensors of `node`, then the
    symbols of their shapes."""
    graph = torch.fx.Graph()
    fakes = []
    inputs: dict[int, Any] = {}
    for i, arg in enumerate(node.args):
        if isinstance(arg, torch.fx.Node):
            inputs[i] = graph.placeholder(f"operand_{i}")
            inputs[i].meta["val"] = arg.meta["val"]
            fakes.append(arg.meta["val"])
    for i, size in enumerate(branching.symbols(fakes)):
        graph.placeholder(f"size_{i}").meta["val"] = size
    gemm = graph.call_function(node.target, tuple(inputs.get(i, arg) for i, arg in enumerate(node.args)), dict(kwargs))
    gemm.meta.update({"val": node.meta["val"], DECISION: decision, SPELLING: node.meta.get(SPELLING)})
    graph.output((gemm,))
    return torch.fx.GraphModule({}, graph)
