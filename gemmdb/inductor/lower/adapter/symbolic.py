"""Sizes, strides and offsets that may be symbolic or data-dependent (`nonzero`, `item`, `mark_unbacked`). For
data-dependent ones, torch has at most bounds, and no value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy
from torch._inductor.codegen.triton import TritonScheduling
from torch._inductor.ir import TensorBox
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.value_ranges import bound_sympy

from gemmdb.hit import LARGEST


def from_data(expression: Any) -> bool:
    """Whether a size (a number, a SymInt, or Inductor's expression) depends on data."""
    if isinstance(expression, int):
        return False
    return bool(free_unbacked_symbols(getattr(getattr(expression, "node", None), "expr", expression)))


def guess(expression: Any, shape_env: Any) -> int:
    """Return a lookup value for a data-dependent expression. Each such symbol takes the program's typical value
    (`hint_override`), else the geometric mean of its bounds."""
    expression = shape_env.replace(expression)
    values = {symbol: sympy.Integer(_value(symbol, shape_env)) for symbol in expression.free_symbols}
    return int(expression.xreplace(values))


def _value(symbol: Any, shape_env: Any) -> int:
    if not from_data(symbol):
        return int(shape_env.create_symintnode(symbol, hint=None).node.hint)
    said = shape_env.var_to_hint_override.get(symbol)
    if said is not None:
        return int(said)
    found = bound_sympy(symbol, shape_env.var_to_range)
    return middle(*(int(end) if end.is_Integer else None for end in (found.lower, found.upper)))


def middle(low: int | None, high: int | None) -> int:
    """Return the power of two nearest to the geometric mean of two bounds, because tables have powers of two; if it is
    outside the bounds, return the mean itself. None means no bound; the range then ends with the sizes that a
    lookup compares."""
    low = max(low or 1, 1)
    high = max(low, min(LARGEST if high is None else high, LARGEST))
    power = 2 ** round(math.log2(low * high) / 2)
    return power if low <= power <= high else math.isqrt(low * high)


def number(size: Any) -> int | None:
    """Return the value of a size, stride or offset; None if it is symbolic."""
    try:
        return int(size)
    except TypeError:
        return None


def hint(size: Any) -> int:
    """Return the value of a size, stride or offset. For a symbolic one: the value at the start of the compile, or the
    graph pass's guess."""
    known = number(size)
    if known is not None:
        return known
    sizes = V.graph.sizevars
    return guess(size, sizes.shape_env) if from_data(size) else int(sizes.optimization_hint(size))


def product(size: Any) -> tuple[int | str, ...]:
    """Return the constant factor and the names of the symbols whose product a SymInt is; empty for anything else."""
    node = getattr(size, "node", None)
    if node is None:
        return ()
    factor, symbols = node.shape_env.replace(node.expr).as_coeff_mul()
    if not factor.is_Integer or not all(symbol.is_Symbol for symbol in symbols):
        return ()
    return int(factor), *map(str, symbols)


def places(graph: Any) -> dict[str, tuple[int, int | None]]:
    """Return by name where a call of a lowered graph has the value of a symbol: the index of an input, and a dimension
    of it, None for a number."""
    found: dict[str, tuple[int, int | None]] = {}
    inputs = getattr(graph, "graph_inputs", {})
    for index, name in enumerate(getattr(graph, "graph_input_names", ())):
        value = inputs.get(name)
        if isinstance(value, sympy.Symbol):
            found[str(value)] = index, None
        elif isinstance(value, TensorBox):
            for dim, size in enumerate(value.get_size()):
                if isinstance(size, sympy.Symbol):
                    found.setdefault(str(size), (index, dim))
    return found


def divides(step: int, size: Any) -> bool:
    """Whether a size or stride is a multiple of `step`. For a symbolic one: whether that is known for all its
    values."""
    known = number(size)
    return bool(V.graph.sizevars.statically_known_multiple_of(size, step)) if known is None else known % step == 0


def addressable(sizes: Sequence[Any], nodes: Sequence[Any]) -> bool:
    """Whether 32-bit indices cover an output of those sizes and each node's storage. If that depends on symbols, adds a
    guard to the graph, by Inductor's rule for its own kernels."""
    return bool(TritonScheduling.can_use_32bit_indexing(sympy_product(sizes), nodes))
