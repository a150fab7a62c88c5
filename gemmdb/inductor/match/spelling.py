"""A GEMM in the program's own words, for where ATen serves one that was rewritten to an operator of ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gemmdb.inductor.match import fx
from gemmdb.inductor.match.constants import Constants
from gemmdb.inductor.match.fx import value

aten = torch.ops.aten
SPELLING = "gemmdb_spelling"
"""Key in the metadata of our operator's node: a Spelling."""


@dataclass(frozen=True, eq=False)
class Spelling:
    """A graph whose last node is the GEMM. Its placeholders are the operands of our operator, in order and without
    those that are None, then the `constants`."""

    graph: Any = field(repr=False)
    constants: tuple[torch.Tensor, ...] = field(default=(), repr=False)


def spelled(node: Any, a: Any, b: Any, parts: Sequence[tuple[Any, Any]]) -> Spelling | None:
    """Return the GEMM [M, N] at `node` of `a` and the weight `b`, which the program computes from the tensors of
    `parts`: pairs of the node that it reads, and of a view of it, which our operator reads. None if it reads others
    that are no constants."""
    graph, known = torch.fx.Graph(), Constants({})
    new, constants = dict[Any, Any](), list[torch.Tensor]()

    def given(one: Any) -> Any:
        made = graph.placeholder(one.name)
        made.meta["val"] = value(one)
        return made

    # Placeholders come first.
    new[a], views = given(a), [(read, given(view)) for read, view in parts]
    order = _behind(b, {read for read, _ in parts})
    for one in order:
        if one.op == "get_attr" and (tensor := known.tensor(one)) is not None:
            new[one] = given(one)
            constants.append(tensor)
        elif one.op != "call_function":
            return None
    for read, view in views:
        same = value(view).shape == value(read).shape
        new[read] = view if same else fx.call(graph, aten.reshape.default, (view, list(value(read).shape)))
    for one in order:
        if one not in new:
            new[one] = graph.node_copy(one, new.__getitem__)
    gemm = graph.call_function(aten.mm.default, (new[a], new[b]))
    gemm.meta = {name: found for name, found in node.meta.items() if name != "eager_input_vals"}
    return Spelling(graph, tuple(constants))


def _behind(node: Any, ends: set[Any]) -> list[Any]:
    """Return the nodes that `node` is computed by, itself included, up to `ends`, in the order of the graph."""
    found, waiting = {node}, [node]
    while waiting:
        new = [one for one in waiting.pop().all_input_nodes if one not in found and one not in ends]
        found.update(new)
        waiting += new
    return sorted(found)
