"""Sizes that come out of data (`nonzero`, `item`, `mark_unbacked`): torch knows at most their bounds, and no value."""

from __future__ import annotations

import math
from typing import Any

import sympy
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.value_ranges import bound_sympy

from gemmdb.hit import LARGEST


def from_data(expression: Any) -> bool:
    """Whether a size (a number, a SymInt, or Inductor's expression) depends on data."""
    if isinstance(expression, int):
        return False
    return bool(free_unbacked_symbols(getattr(getattr(expression, "node", None), "expr", expression)))


def guess(expression: Any, shape_env: Any) -> int:
    """A value to look up by, for an expression that depends on data. Each such symbol takes the value that the program
    names as usual (`hint_override`), else the geometric middle of its bounds."""
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
    """The power of two nearest to the geometric middle of two bounds, because tables have powers of two. If that lies
    outside the bounds: the middle itself. None stands for no bound; the range then ends where the ladder ends."""
    low = max(low or 1, 1)
    high = max(low, min(LARGEST if high is None else high, LARGEST))
    power = 2 ** round(math.log2(low * high) / 2)
    return power if low <= power <= high else math.isqrt(low * high)
