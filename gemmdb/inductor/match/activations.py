"""Activations that are the whole epilogue of a GEMM, and that a library computes in its own kernel.

Programs write the tanh form of GELU in several ways, and torch decomposes its own. So the operators are not matched one
by one: their function is compared with the activation's.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from gemmdb.inductor.match import epilogues, fx, ops
from gemmdb.inductor.match.epilogues import Chain
from gemmdb.inductor.match.fx import value
from gemmdb.kernels.cublaslt import ACTIVATIONS
from gemmdb.key.problem import Problem

aten = torch.ops.aten
_CAST = torch.ops.prims.convert_element_type.default
_ARITHMETIC: Mapping[Any, Callable[..., float]] = {
    aten.add.Tensor: operator.add, aten.mul.Tensor: operator.mul, aten.pow.Tensor_Scalar: operator.pow,
    aten.tanh.default: math.tanh,
}  # fmt: skip
"""Smooth functions: two combinations of a few that agree at all POINTS are the same."""
POINTS = tuple(place + 0.3 for place in range(-7, 7))
TOLERANCE = 1e-7
"""Maximum difference from GELU, relative to 1 or the input: programs round its constants."""


def name_of(gemm: Any, problem: Problem) -> str:
    """Return the activation that is the whole epilogue of an mm or addmm, one of ACTIVATIONS; empty if there is another
    epilogue or none."""
    chain = epilogues.follow(gemm) if problem.fusion in ACTIVATIONS.values() else None
    return "" if chain is None else _name(gemm, chain)


def absorb(gemm: Any, activation: str) -> Any:
    """Replace the GEMM and its epilogue, which is the `activation`, by one `gemmdb::mm_activation` and return it. The
    old nodes stay in the graph, unused. If that is not the epilogue, change nothing and return None."""
    chain = epilogues.follow(gemm)
    if chain is None or _name(gemm, chain) != activation:
        return None
    graph, (last,) = gemm.graph, chain.stored
    a, b, bias = (*gemm.args[1:3], gemm.args[0]) if gemm.target is aten.addmm.default else (*gemm.args[:2], None)
    with graph.inserting_before(last):
        new = fx.call(graph, ops.overload("mm_activation"), (a, b, activation, bias), gemm.meta)
        sizes = [-1 if isinstance(size, torch.SymInt) else size for size in value(last).shape]
        viewed = fx.call(graph, aten.reshape.default, (new, sizes), last.meta)
        last.replace_all_uses_with(viewed)
    return new


def _name(gemm: Any, chain: Chain) -> str:
    alone = not (chain.kept or chain.reads or chain.beside) and len(chain.stored) == 1
    # A reshape infers one size.
    alone = alone and sum(isinstance(size, torch.SymInt) for size in value(chain.stored[0]).shape) <= 1
    if not alone or _read_elsewhere(chain) or value(chain.stored[0]).dtype != value(gemm).dtype:
        return ""
    first, *others = chain.members
    if first.target is aten.relu.default and not others:
        return "relu" if _base(first.args[0]) is gemm else ""
    return "gelu_tanh" if all(_is_gelu(gemm, chain, x) for x in POINTS) else ""


def _read_elsewhere(chain: Chain) -> bool:
    """Return whether another kernel computes a value before the last again: the GEMM would then run twice."""
    inner = (one for one in chain.members if one is not chain.stored[0])
    return any(user not in chain.members for one in inner for user in fx.users(one, fx.VIEWS))


def _is_gelu(gemm: Any, chain: Chain, x: float) -> bool:
    found, wanted = _evaluated(gemm, chain, x), _gelu(x)
    return found is not None and abs(found - wanted) <= TOLERANCE * max(1.0, abs(x))


def _gelu(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _evaluated(gemm: Any, chain: Chain, x: float) -> float | None:
    """Return the epilogue's value where the GEMM's is `x`; None if it has operators other than ARITHMETIC's, or no real
    value there. Casts do not round, as in Inductor's kernels."""
    values = {gemm: x}

    def of(argument: Any) -> Any:
        return values[_base(argument)] if isinstance(argument, torch.fx.Node) else argument

    for node in chain.members:
        function = _identity if _is_cast(node) else _ARITHMETIC.get(node.target)
        if function is None or node.kwargs or any(_base(one) not in values for one in node.all_input_nodes):
            return None
        try:
            values[node] = function(*map(of, node.args))
        except (ArithmeticError, TypeError, ValueError):
            return None
    return values[chain.stored[0]]


def _base(node: Any) -> Any:
    """Return the node that a value is a view of, with the same order of rows and columns."""
    while node.target in fx.RESHAPES:
        node = node.args[0]
    return node


def _is_cast(node: Any) -> bool:
    return node.target is _CAST and bool(value(node).dtype.is_floating_point)


def _identity(number: float, dtype: Any) -> float:
    return number
