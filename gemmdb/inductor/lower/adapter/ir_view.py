"""Inductor IR nodes: their layouts in the key's terms, and new constants computed from constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.graph import SubgraphLowering
from torch._inductor.lowering import lowerings, pointwise_cat
from torch._inductor.virtualized import V

from gemmdb.inductor.lower.adapter import symbolic
from gemmdb.key.layout import VECTOR_BYTES, classify
from gemmdb.key.operands import Operand
from gemmdb.key.problem import Problem


def pair_of(problem: Problem, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return A and B among the arguments of an operator: (A, B), or (bias, A, B) of an addmm or baddbmm. All arguments
    of other operators: a packed linear has lost its weight's layout, and `_weight_int8pack_mm` takes [N, K] with a
    scale."""
    op = problem.spec
    biased = op.bias == "always" or (op.batched and len(args) == 3)
    return args[1:] if biased else args[:2] if op.scaled or op.grouped else args


def confirm(problem: Problem, pair: tuple[Any, ...]) -> Problem:
    """Return `problem` with the IR layouts of its operands, if Inductor has fixed them already. `pair`: A and B; the
    problem does not change for anything else."""
    if len(pair) != 2 or not all(isinstance(one, (ir.TensorBox, ir.StorageBox, ir.ReinterpretView)) for one in pair):
        return problem
    if tuple(tuple(map(symbolic.hint, node.get_size())) for node in pair) != problem.shapes[:2]:
        return problem
    a, b = (_operand(node, known) for node, known in zip(pair, (problem.a, problem.b), strict=True))
    return problem if (a, b) == (problem.a, problem.b) else replace(problem, a=a, b=b)


def literal(node: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return (sizes, strides) of a node whose layout is fixed and free of symbols, else None."""
    layout = node.maybe_get_layout() if hasattr(node, "maybe_get_layout") else None
    if not isinstance(layout, ir.FixedLayout):
        return None
    sizes, strides = (tuple(symbolic.number(part) for part in parts) for parts in (layout.size, layout.stride))
    return None if None in (*sizes, *strides, symbolic.number(layout.offset)) else (sizes, strides)  # type: ignore[return-value]


def hinted(node: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return (sizes, strides) of a node whose layout is fixed, with hints instead of symbols. None for another layout,
    or if the storage offset depends on a symbol."""
    layout = node.maybe_get_layout() if hasattr(node, "maybe_get_layout") else None
    if not isinstance(layout, ir.FixedLayout) or symbolic.number(layout.offset) is None:
        return None
    sizes, strides = (tuple(symbolic.hint(part) for part in parts) for parts in (layout.size, layout.stride))
    return sizes, strides


def _operand(node: Any, known: Operand) -> Operand:
    layout = node.maybe_get_layout() if hasattr(node, "maybe_get_layout") else None
    box = node.data if isinstance(node, ir.TensorBox) else node
    if not isinstance(layout, ir.FixedLayout) or not isinstance(box, (ir.StorageBox, ir.ReinterpretView)):
        # The layout is flexible, or this is a view by index, which reports the layout of the node behind it. Inductor
        # has not decided yet, and usually follows the strides from the graph pass.
        return known
    size, stride = ([symbolic.hint(part) for part in parts] for parts in (layout.size, layout.stride))
    found = classify(size, stride, symbolic.hint(layout.offset), known.dtype)
    if _given(node):
        found = replace(found, align=min(found.align, known.layout.align))
    return Operand(known.dtype, found)


def _given(node: Any) -> bool:
    """Whether the memory behind `node` comes from outside the graph. The offset of its layout then counts from the
    start of that memory. Only the graph pass had the storage offset of that start."""
    graph, name = V.graph, node.maybe_get_name()
    return any(name in names for names in (graph.graph_inputs, graph.constants, graph.unaligned_buffers))


def misplaced(node: Any) -> bool:
    """Whether `node` is a constant that is not 16-byte aligned. Inductor tells Triton that all constants are."""
    constant = V.graph.constants.get(node.maybe_get_name())
    if constant is None or constant.layout != torch.strided:
        return False
    return bool(constant.storage_offset() * constant.itemsize % VECTOR_BYTES)


def anywhere(node: Any) -> bool:
    """Whether the memory behind `node` may be misaligned (16 bytes) at run time. For each input that was aligned at
    compile time, Inductor ensures the alignment by a copy."""
    return node.maybe_get_name() in V.graph.unaligned_buffers or misplaced(node)


def concatenated(vectors: Sequence[Any]) -> Any:
    """Concatenate vectors. Inductor's lowering of `cat` reads the graph's current node, which is no `cat` here."""
    return pointwise_cat(list(vectors), 0)


def aligned(node: Any) -> Any:
    """Return `node` in memory that is always 16-byte aligned at run time; None if that is impossible. A misaligned
    constant is copied now, a misaligned input at each call that passes one, by Inductor's check for inputs on GPUs.
    Memory that the graph allocates is aligned."""
    if not ir.is_storage_and_layout(node):
        return node  # It becomes a buffer of the graph.
    storage, layout = ir.as_storage_and_layout(node, freeze=False)
    name = storage.get_name()
    if (constant := V.graph.constants.get(name)) is not None:
        value = _strided(constant, layout)
        return V.graph.add_tensor_constant(value.clone()) if value.data_ptr() % VECTOR_BYTES else node
    if not symbolic.divides(VECTOR_BYTES // node.get_dtype().itemsize, layout.offset):
        return None
    return node if name not in V.graph.graph_inputs or _watched(name) else None


_outer_watches: ContextVar[bool] = ContextVar("_outer_watches", default=False)


@contextmanager
def within_watched() -> Iterator[None]:
    """Context manager: all inputs of the subgraphs being lowered count as `aligned` already."""
    token = _outer_watches.set(True)
    try:
        yield
    finally:
        _outer_watches.reset(token)


def _watched(name: str) -> bool:
    """Have an input of the graph checked at each call. Return whether that works: AOTInductor checks none on a CPU."""
    graph = V.graph
    if isinstance(graph, SubgraphLowering) or graph.aot_mode:
        return isinstance(graph, SubgraphLowering) and _outer_watches.get()
    known, index = tuple(graph.inputs_to_check or ()), graph.graph_input_names.index(name)
    graph.inputs_to_check = known if index in known else (*known, index)
    return True


def _constant_value(node: Any) -> torch.Tensor:
    return _strided(V.graph.constants[node.get_name()], node.get_layout())


def _strided(tensor: torch.Tensor, layout: Any) -> torch.Tensor:
    sizes = [int(size) for size in layout.size]
    strides = [int(stride) for stride in layout.stride]
    # The offset of the layout counts from the start of the constant, which may be inside its storage.
    return tensor.as_strided(sizes, strides, tensor.storage_offset() + int(layout.offset))


def cast_constant(node: Any, dtype: Any, scale: Any = None) -> Any:
    """Return `node` cast to `dtype`, times `scale` if given, rounded as in eager. It is a new constant if these are
    constants or views of constants. A branch's inputs are not constants."""
    if not all(map(_is_constant, (node,) if scale is None else (node, scale))):
        cast = lowerings[torch.ops.prims.convert_element_type.default](node, dtype)
        return cast if scale is None else lowerings[torch.ops.aten.mul.Tensor](cast, scale)
    value = _constant_value(node).to(dtype)
    return V.graph.add_tensor_constant(value if scale is None else value * _constant_value(scale))


def computed_constant(nodes: Sequence[Any], compute: Callable[..., torch.Tensor]) -> Any:
    """Return what `compute` returns for these constants, or views of constants, as a new constant; None if one is none.
    A branch's inputs are not constants."""
    if not all(map(_is_constant, nodes)):
        return None
    return V.graph.add_tensor_constant(compute(*map(_constant_value, nodes)))


def _is_constant(node: Any) -> bool:
    """Whether `node` is a constant or a strided view of one. A view by index reports the layout of the node behind
    it."""
    box = node.data if isinstance(node, ir.TensorBox) else node
    return isinstance(box, (ir.StorageBox, ir.ReinterpretView)) and node.maybe_get_name() in V.graph.constants


def from_the_start(node: Any) -> Any:
    """Return `node`, or a copy if it is a constant with a storage offset. Inductor's C++ template packs a weight from
    the start of the storage."""
    tensor = V.graph.constants.get(node.maybe_get_name()) if isinstance(node, ir.TensorBox) else None
    if tensor is None or tensor.layout != torch.strided or not tensor.storage_offset():
        return node
    return V.graph.add_tensor_constant(_constant_value(node).clone())


def ones(w: Any, a: Any) -> Any:
    """Return a vector of ones over the columns of `w`, in the dtype of `a`. It is a constant, except for a symbolic
    size and in a branch, because Inductor never fills in the constants of a branch."""
    columns = w.get_size()[1]
    if symbolic.number(columns) is not None and not isinstance(V.graph, SubgraphLowering):
        return V.graph.add_tensor_constant(torch.ones(int(columns), dtype=a.get_dtype()))
    made = lowerings[torch.ops.aten.full.default]([columns], 1, dtype=a.get_dtype(), device=w.get_device())
    made.realize()
    return made


def is_whole(node: Any) -> bool:
    """Whether a tensor of fixed sizes is contiguous."""
    found = literal(node)
    if found is None:
        return False
    sizes, strides = found
    return all(size == 1 or strides[dim] == math.prod(sizes[dim + 1 :]) for dim, size in enumerate(sizes))


def is_dense(vector: Any) -> bool:
    """Whether `vector` is already a contiguous buffer."""
    layout = vector.maybe_get_layout() if hasattr(vector, "maybe_get_layout") else None
    return layout is not None and list(layout.stride) == [1] and layout.offset == 0


def fresh(matrix: Any) -> Any:
    """Return a dense copy of `matrix` at the start of an allocation. ATen's weight-only kernel reads rows by aligned
    32-byte loads. The key only covers 16 bytes, and no guard checks an input's offset."""
    return ir.ExternKernel.require_contiguous(ir.ExternKernel.copy_input(matrix))


def dense(vector: Any) -> Any:
    """Return `vector` in contiguous memory: the weight-only kernels read their scale by pointer and ignore its
    stride."""
    if is_dense(vector):
        return vector
    return ir.ExternKernel.require_contiguous(ir.ExternKernel.copy_input(vector))
