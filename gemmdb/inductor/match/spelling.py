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
    those that are None, then the `constants`. `addmm`: the program adds the bias in the GEMM, not after it."""

    graph: Any = field(repr=False)
    constants: tuple[torch.Tensor, ...] = field(default=(), repr=False)
    addmm: bool = False


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
    new[a], views = given(a), [given(view) for _, view in parts]
    order = _behind(b, {read for read, _ in parts})
    for one in order:
        if one.op == "get_attr" and (tensor := known.tensor(one)) is not None:
            new[one] = given(one)
            constants.append(tensor)
        elif one.op != "call_function":
            return None
    for (read, seen), view in zip(parts, views, strict=True):
        new[read] = _read(graph, read, seen, view)
    for one in order:
        if one not in new:
            new[one] = graph.node_copy(one, new.__getitem__)
    gemm = graph.call_function(aten.mm.default, (new[a], new[b]))
    gemm.meta = {name: found for name, found in node.meta.items() if name != "eager_input_vals"}
    return Spelling(graph, tuple(constants), node.target is aten.addmm.default)


def restore_addmm(node: Any) -> bool:
    """Replace our operator at `node`, whose result has a bias added, by the program's own GEMM, if default mode adds
    the bias in that. Return whether it does. Then no pass over the result is left for the bias."""
    spelling, users = node.meta.get(SPELLING), list(node.users)
    if spelling is None or len(users) != 1 or users[0].target is not aten.add.Tensor or users[0].kwargs:
        return False
    (addition,) = users
    bias = addition.args[addition.args[0] is node]
    if not isinstance(bias, torch.fx.Node) or bias is node or not _may_be_bias(value(bias), value(node)):
        return False
    # Inductor keeps the addmm of 16-bit dtypes. It makes one of an mm unless it can fuse the addition with other work.
    if not spelling.addmm and all(_fuses(user) for user in addition.users):
        return False
    graph, new = node.graph, dict[Any, Any]()
    given = iter([
        *(one for one in node.args if isinstance(one, torch.fx.Node)),
        *(fx.constant(graph, one, node) for one in spelling.constants),
    ])  # fmt: skip
    with graph.inserting_before(addition):
        *others, gemm = spelling.graph.nodes
        for one in others:
            new[one] = next(given) if one.op == "placeholder" else graph.node_copy(one, new.__getitem__)
        a, b = (new[one] for one in gemm.args)
        made = fx.call(graph, aten.addmm.default, (bias, a, b), addition.meta)
    addition.replace_all_uses_with(made)
    graph.erase_node(addition)
    graph.erase_node(node)
    return True


def _may_be_bias(bias: Any, result: Any) -> bool:
    """Whether an addmm can add a tensor, of the dtype and device of its result."""
    if not fx.alike(bias, result) or bias.dim() > 2:
        return False
    ends = result.shape[result.dim() - bias.dim() :]
    return all(fx.known(size == 1) or fx.known(size == end) for size, end in zip(bias.shape, ends, strict=True))


def _fuses(user: Any) -> bool:
    """Whether a use of a tensor is elementwise, also through views. Mirrors `is_pointwise_use` of Inductor."""
    return all(map(_fuses, user.users)) if user.target in fx.VIEWS else fx.is_pointwise(user)


def _read(graph: Any, read: Any, seen: Any, view: Any) -> Any:
    """Return in `graph` the node that the program reads, of the `view` of it that our operator reads, where that is
    `seen`."""
    if seen.target is aten.permute.default and seen.args[0] is read:
        return fx.call(graph, aten.permute.default, (view, seen.args[1]))  # A matrix is transposed back.
    if fx.same_sizes(value(view).shape, value(read).shape):
        return view
    if fx.known(value(read).numel() == 1):
        view = fx.call(graph, aten.slice.Tensor, (view, 0, 0, 1))  # A vector repeats one number.
    return fx.call(graph, aten.reshape.default, (view, list(value(read).shape)))


def _behind(node: Any, ends: set[Any]) -> list[Any]:
    """Return the nodes that `node` is computed by, itself included, up to `ends`, in the order of the graph."""
    found, waiting = {node}, [node]
    while waiting:
        new = [one for one in waiting.pop().all_input_nodes if one not in found and one not in ends]
        found.update(new)
        waiting += new
    return sorted(found)
