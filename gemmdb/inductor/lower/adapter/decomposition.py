"""Keep GEMMs whole that torch decomposes into elementwise work before any graph pass, so our passes can look them up.
`Decompositions.decompose` later applies torch's own decomposition."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.utils import counters
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.passes.shape_prop import _extract_tensor_metadata

from gemmdb.inductor.lower.adapter import slots

log = logging.getLogger("gemmdb")
aten = torch.ops.aten
Function = Callable[..., Any]

MATRICES: Mapping[Any, tuple[int, int]] = {
    aten.mm.default: (0, 1), aten.bmm.default: (0, 1), aten.addmm.default: (1, 2)
}  # fmt: skip
"""Operators that can be kept whole, with the positions of A and B in their arguments."""
_ONLY_COUNTED = ("mm.dtype", "bmm.dtype", "addmm.dtype", "mv.default", "addmv.default", "dot.default", "vdot.default")
DECOMPOSED = "torch decomposes it into elementwise work and a sum"
OUTER = "torch makes elementwise work of a GEMM with k=1"


@dataclass
class Decompositions:
    """The GEMMs of one compile that torch would decompose.

    `table`: torch's own decompositions of that compile. `kept`: whether a GEMM was kept whole. `lost`: one line for
    each GEMM that torch has decomposed, with the reason.
    """

    table: Mapping[Any, Function] = field(default_factory=dict)
    kept: bool = False
    lost: list[str] = field(default_factory=list)
    _taken: dict[Any, bool] = field(default_factory=dict)
    _graphs: dict[Any, Any] = field(default_factory=dict)

    def keeping(self, table: Mapping[Any, Function]) -> dict[Any, Function]:
        """Return `table` with decompositions that keep GEMMs whole."""
        self.table = table
        ours = {target: self._whole(target, table[target]) for target in MATRICES if target in table}
        names = (name.partition(".") for name in _ONLY_COUNTED)
        counted = [getattr(getattr(aten, packet), overload, None) for packet, _, overload in names]
        others = {target: self._lost(target, table[target]) for target in counted if target in table}
        return {**table, **ours, **others}

    def _whole(self, target: Any, original: Function) -> Function:
        @functools.wraps(original)
        def decompose(*args: Any, **kwargs: Any) -> Any:
            try:
                if self._keeps(target, args, kwargs):
                    self.kept = True
                    return NotImplemented
            except Exception as error:
                log.debug("keeping %s whole: %s", target, error, exc_info=True)
            return original(*args, **kwargs)

        return decompose

    def _lost(self, target: Any, original: Function) -> Function:
        @functools.wraps(original)
        def decompose(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if result is not NotImplemented:
                self.lost.append(f"{target}: {DECOMPOSED}")
            return result

        return decompose

    def _keeps(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        numbers = [value for value in (*args, *kwargs.values()) if not isinstance(value, torch.Tensor)]
        if not all(isinstance(value, (int, float)) for value in numbers) or not self.decomposes(target, args, kwargs):
            return False
        a = args[MATRICES[target][0]]
        if statically_known_true(a.shape[-1] == 1):
            # As elementwise work it fuses with its neighbors. No GEMM kernel does.
            self.lost.append(f"{target}: {OUTER}")
            return False
        with disable_proxy_modes_tracing():
            apart, whole = _quietly(self.table[target], args, kwargs), target(*args, **kwargs)
        if not _alike(apart, whole):
            # Later nodes were traced for other strides.
            self.lost.append(f"{target}: {DECOMPOSED}, with other strides")
            return False
        return True

    def decomposes(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether torch decomposes a call of `target` with these fake tensors and numbers. Traces nothing."""
        original = self.table.get(target)
        a, b = (args[i] for i in MATRICES[target])
        # All of torch's rules require a size of 1. Asking torch itself takes milliseconds.
        if original is None or not any(statically_known_true(size == 1) for size in (*a.shape[-2:], *b.shape[-2:])):
            return False
        key = _key(target, args, kwargs)
        if key is not None and key in self._taken:
            return self._taken[key]
        with disable_proxy_modes_tracing():
            taken = _quietly(original, args, kwargs) is not NotImplemented
        if key is not None:
            self._taken[key] = taken
        return taken

    def concerns(self, node: Any) -> bool:
        """Whether torch decomposes the GEMM at a node; False if this compile kept none whole."""
        if not self.kept or node.op != "call_function" or node.target not in MATRICES:
            return False
        return self.decomposes(node.target, *_values(node))

    def decompose(self, node: Any, late: bool = False) -> None:
        """Replace the GEMM at `node` by torch's decomposition. `late`: in the post-grad graph."""
        self._replace(node, node.target, self.table[node.target], (node.target if late else None, None))

    def sum_concerns(self, node: Any) -> bool:
        """Whether torch decomposes the GEMM of an addmm, but not the addmm."""
        if not self.kept or node.target is not aten.addmm.default or set(node.kwargs.values()) - {1}:
            return False
        args, kwargs = _values(node)
        return not self.decomposes(node.target, args, kwargs) and self.decomposes(aten.mm.default, args[1:], {})

    def decompose_sum(self, node: Any) -> None:
        """Like `decompose`, for an addmm that a pass fused from a GEMM and a sum."""
        origins = (aten.mm.default, aten.add.Tensor)
        self._replace(node, "sum", lambda bias, a, b, **_: self.table[aten.mm.default](a, b) + bias, origins)

    def _replace(self, node: Any, name: Any, function: Function, origins: tuple[Any, Any]) -> None:
        args, kwargs = _values(node)
        key = _key(name, args, kwargs)
        found = self._graphs.get(key) if key is not None else None
        if found is None:
            found = _trace(function, args, kwargs, self.table)
            if key is not None:
                self._graphs[key] = found
        traced, counted = found
        counters["inductor"].update(counted)
        _inline(node, traced, origins)


def tracing(original: Function) -> Function:
    """Wrap AOTAutograd's tracing of a graph: keep GEMMs whole in our compiles."""

    @functools.wraps(original)
    def create_graph(*args: Any, aot_config: Any, **kwargs: Any) -> Any:
        whole = _of_this_compile()
        if whole is not None and aot_config.decompositions:
            aot_config = dataclasses.replace(aot_config, decompositions=whole.keeping(aot_config.decompositions))
        return original(*args, aot_config=aot_config, **kwargs)

    return create_graph


def replacing(original: Function) -> Function:
    """Wrap the tracing of a pattern's replacement: keep GEMMs whole in our compiles."""

    @functools.wraps(original)
    def fwd_only(*args: Any, **kwargs: Any) -> Any:
        whole = _of_this_compile()
        if whole is not None and "get_decomp_fn" not in kwargs:
            kwargs["get_decomp_fn"] = lambda: whole.keeping(select_decomp_table())
        return original(*args, **kwargs)

    return fwd_only


def _of_this_compile() -> Decompositions | None:
    body = slots.in_force("joint_custom_pre_pass")
    return getattr(body, "apart", None)


@contextmanager
def _uncounted() -> Iterator[None]:
    """Context manager: preserve torch's counters of decompositions."""
    before = dict(counters["inductor"])
    try:
        yield
    finally:
        counters["inductor"].clear()
        counters["inductor"].update(before)


def _quietly(function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    with _uncounted():
        return function(*args, **kwargs)


def _alike(one: Any, other: Any) -> bool:
    """Whether two fake tensors are statically known to have the same dtype, sizes and strides."""
    if one.dtype != other.dtype or one.dim() != other.dim():
        return False
    pairs = (*zip(one.shape, other.shape, strict=True), *zip(one.stride(), other.stride(), strict=True))
    return all(statically_known_true(first == second) for first, second in pairs)


def _values(node: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a node, with fake tensors in place of nodes."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda one: one.meta["val"])
    return tuple(args), dict(kwargs)


def _key(what: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the cache key of a decomposition; None if a size or number is symbolic."""
    found: tuple[Any, ...] = (what,)
    for value in (*args, *kwargs.items()):
        if isinstance(value, torch.Tensor):
            numbers = (*value.shape, *value.stride())
            if not all(isinstance(number, int) for number in numbers):
                return None
            found += ((numbers, value.dtype, value.device),)
        else:
            found += (value,)
    try:
        hash(found)
    except TypeError:
        return None
    return found


def _trace(
    function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any], table: Mapping[Any, Function]
) -> tuple[Any, Counter[str]]:
    """Return the graph of a decomposition, with one input per tensor in `args`, and torch's counts for it."""
    places = [i for i, value in enumerate(args) if isinstance(value, torch.Tensor)]

    def call(tensors: list[Any]) -> Any:
        given = dict(zip(places, tensors, strict=True))
        return function(*(given.get(i, value) for i, value in enumerate(args)), **kwargs)

    tensors = [args[i] for i in places]
    before = Counter(counters["inductor"])
    with _uncounted(), enable_python_dispatcher(), torch.no_grad(), tensors[0].fake_mode:
        traced = make_fx(call, dict(table), tracing_mode="real")(tensors)
        counted = Counter(counters["inductor"]) - before
    traced.graph.eliminate_dead_code()
    return traced.graph, counted


def _inline(node: Any, traced: Any, origins: tuple[Any, Any]) -> None:
    """Replace `node` by the nodes of `traced`. They take over its metadata, with their own fake tensors. `origins`: the
    operators that kernels are named after, with a different one for the last node; None for that of `node`."""
    inputs = iter([one for one in node.args if isinstance(one, torch.fx.Node)])
    kept = {name: value for name, value in node.meta.items() if name != "eager_input_vals"}
    (result,) = traced.output_node().all_input_nodes
    of: dict[Any, Any] = {}
    with node.graph.inserting_before(node):
        for one in traced.nodes:
            if one.op == "placeholder":
                of[one] = next(inputs)
            elif one.op == "call_function":
                made = of[one] = node.graph.node_copy(one, of.__getitem__)
                args, kwargs = _values(made)
                with node.meta["val"].fake_mode:
                    value = one.target(*args, **kwargs)
                made.meta = {**kept, "val": value, "tensor_meta": _extract_tensor_metadata(value)}
                if origin := origins[one is result]:
                    made.meta["original_aten"] = origin
    node.replace_all_uses_with(of[result])
    node.graph.erase_node(node)
