"""Rewrite the routing of experts, as transformers spells it, around their grouped GEMMs. Results stay the same, except
that rows of no expert, whose ids are out of range, may change places among each other.

- `chosen.sort()` (or `argsort`) of the experts' ids is a radix sort of 64 bits: 8 passes. `histc` over `experts` bins
  says that only ids below `experts` matter, so one byte is sorted if it holds them, otherwise two.
- `histc` and `cumsum` give the groups' ends in four kernels. A binary search in the sorted numbers gives them in one.
- Inductor sums up to 7 results of a token in pointwise code, more in a reduction whose reads do not coalesce.
  `short_sum` unrolls up to MOST.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from gemmdb.inductor.match import fx, ops
from gemmdb.inductor.match.fx import Unsupported, value

aten, prims = torch.ops.aten, torch.ops.prims
FEWEST, MOST = 8, 16
"""Numbers of results of a token whose sum is unrolled here."""
_GROUPED = (aten._grouped_mm.default, aten._scaled_grouped_mm.default)
_BETWEEN = (
    *fx.RESHAPES, *fx.CASTS, aten.index.Tensor, aten.mul.Tensor, aten.where.self, aten.add.Tensor,
)  # fmt: skip
"""Operators between a grouped GEMM and the sum of a token's results: the order of tokens, shares, masks."""
_MAX_BETWEEN = 12


def rewrite(graph: Any) -> None:
    """Rewrite the routing of all experts in a graph."""
    if not any(graph.find_nodes(op="call_function", target=target) for target in _GROUPED):
        return
    for routing in [*_routings(graph)]:
        routing.rewrite(graph)
    for total in graph.find_nodes(op="call_function", target=aten.sum.dim_IntList):
        with suppress(Unsupported):
            if _sums_results(total):
                _unroll(graph, total)


@dataclass(frozen=True)
class Routing:
    """The sorted ids of experts. `sort`: the operator; `numbers`, `order`: its outputs, the first if it is used.
    `ends`: the running sums of the numbers of rows per expert. `experts`: how many there are."""

    sort: Any
    numbers: Any
    order: Any
    ends: tuple[Any, ...]
    experts: int

    @property
    def dtype(self) -> torch.dtype:
        """A dtype that holds the numbers from 0 to `experts` + 1."""
        return torch.uint8 if self.experts + 1 <= 255 else torch.int16

    def rewrite(self, graph: Any) -> None:
        """Sort fewer bits, and search for the ends."""
        chosen = self.sort.args[0]
        call = partial(_call, graph, self.sort.meta)
        with graph.inserting_before(self.sort):
            # Ids out of range stay in front of or behind all others, where histc leaves them out.
            kept = call(aten.clamp_max.default, call(aten.clamp_min.default, chosen, -1), self.experts)
            keys = call(prims.convert_element_type.default, call(aten.add.Tensor, kept, 1), self.dtype)
            found = call(self.sort.target, keys, *self.sort.args[1:], **self.sort.kwargs)
            numbers, order = (fx.output(graph, found, one) for one in (0, 1))
            experts = fx.iota(graph, keys, self.experts + 1)
            behind = call(aten.searchsorted.Tensor, numbers, experts, out_int32=True, right=True)
            before, ends = (call(aten.slice.Tensor, behind, 0, *part) for part in ((0, 1), (1, self.experts + 1)))
            ends = call(aten.sub.Tensor, ends, before)
            if self.numbers is not None:
                self.numbers.replace_all_uses_with(call(aten.index.Tensor, chosen, [order]))
        self.order.replace_all_uses_with(order)
        for end in self.ends:
            with graph.inserting_before(end):
                made = fx.call(graph, prims.convert_element_type.default, (ends, value(end).dtype), end.meta)
            end.replace_all_uses_with(made)
        graph.eliminate_dead_code()


def _call(graph: Any, meta: Mapping[str, Any], target: Any, *args: Any, **options: Any) -> Any:
    return fx.call(graph, target, args, meta, **options)


def _routings(graph: Any) -> Iterator[Routing]:
    for target in (aten.sort.default, aten.sort.stable):
        for node in graph.find_nodes(op="call_function", target=target):
            with suppress(Unsupported):
                if (found := _routing(node)) is not None:
                    yield found


def _routing(sort: Any) -> Routing | None:
    """What a sort of the ids of experts is used for; None for other sorts, and where it matters that ids out of range
    are sorted, too."""
    outputs = {user.args[1]: user for user in sort.users}
    chosen, rising = sort.args[0], not sort.kwargs.get("descending", False) and len(sort.args) <= 2
    integers = value(chosen).dtype in (torch.int32, torch.int64) and value(chosen).dim() == 1
    if not (rising and integers and 1 in outputs) or len(outputs) != len(sort.users):
        return None
    numbers, order = outputs.get(0), outputs[1]
    again = [user for user in order.users if user.target is aten.index.Tensor and user.args == (chosen, [order])]
    read = [user for one in (numbers, *again) if one is not None for user in _users(one)]
    if not all(_counts(one) or fx.is_pointwise(one) or one.target is aten.index.Tensor for one in read):
        return None
    ends = {end: count.args[1] for count in read if _counts(count) for end in count.users if _is_running_sum(end)}
    experts = set(ends.values())
    if len(experts) != 1 or max(experts) >= torch.iinfo(torch.int16).max:
        return None
    return Routing(sort, numbers, order, tuple(ends), experts.pop())


def _users(ids: Any) -> Iterator[Any]:
    """Yield the nodes that use ids, directly or through casts that keep them."""
    for user in ids.users:
        if user.target in fx.CASTS and value(user).element_size() >= 4 and value(user).device == value(ids).device:
            yield from _users(user)
        else:
            yield user


def _counts(node: Any) -> bool:
    """Whether a node counts, for each number from 0 on, how often it occurs."""
    if node.target is not aten.histc.default or len(node.args) != 4:
        return False
    _, bins, least, most = node.args
    return bool(least == 0 and most == bins - 1 and bins > 1)


def _is_running_sum(node: Any) -> bool:
    return node.target is aten.cumsum.default and node.args[1] in (0, -1)


def _sums_results(total: Any) -> bool:
    """Whether a node sums a grouped GEMM's rows of each token, and Inductor would not unroll it."""
    rows, dims, *more = total.args
    found = value(rows)
    alone = dims in ([1], [-2]) and not more and not total.kwargs.get("keepdim", False)
    if found.dim() != 3 or not alone or not found.is_floating_point():
        return False
    many = found.shape[1]
    return isinstance(many, int) and FEWEST <= many <= MOST and _is_result(rows)


def _is_result(node: Any) -> bool:
    """Whether a node has the rows of a grouped GEMM, in any order, scaled or masked."""
    seen, waiting = set[Any](), [node]
    while waiting and len(seen) <= _MAX_BETWEEN:
        one = waiting.pop()
        if one.target in _GROUPED:
            return True
        if one not in seen and one.target in _BETWEEN:
            waiting += one.all_input_nodes
        seen.add(one)
    return False


def _unroll(graph: Any, total: Any) -> None:
    with graph.inserting_before(total):
        dtype = total.kwargs.get("dtype") or value(total).dtype
        made = fx.call(graph, ops.overload("short_sum"), (total.args[0], dtype), total.meta)
    total.replace_all_uses_with(made)
    graph.erase_node(total)
