"""Which nodes of a graph have the same value: programs quantise one activation anew for each layer that reads it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from gemmdb.inductor.match import fx

DEEPEST = 64
"""How many operators one after the other are compared. A quantised activation is about ten away from what both read."""


class Values:
    """Numbers of values: two nodes of a graph with the same number have the same value. It holds while the graph does
    not change."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[Any, int] = {}

    def number(self, node: Any, deepest: int = DEEPEST) -> int:
        """The number of a node's value: from the operator and the values that it reads, if it always computes the same
        from the same; else one of its own."""
        found = self._known.get(node)
        if found is None:
            key = self._key(node, deepest) if deepest and _repeatable(node) else node
            found = self._known[node] = self._numbers.setdefault(key, len(self._numbers))
        return found

    def _key(self, node: Any, deepest: int) -> Hashable:
        args = torch.fx.map_arg((node.args, node.kwargs), lambda one: _Number(self.number(one, deepest - 1)))
        return str(node.target), repr(args)


class _Number(int):
    """The number of a value among arguments that are plain numbers."""

    def __repr__(self) -> str:
        return f"%{int(self)}"


def _repeatable(node: Any) -> bool:
    """Whether an operator computes the same value whenever it reads the same: elementwise work, reductions, views."""
    if node.op != "call_function" or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        return False
    return fx.is_pointwise(node) or fx.is_reduction(node) or node.target in fx.VIEWS
