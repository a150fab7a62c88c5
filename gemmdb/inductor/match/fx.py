"""FX graph helpers: node tensors, views, operator kinds, new nodes, and a node's source location in the program."""

from __future__ import annotations

import functools
import itertools
import operator
import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.passes.shape_prop import _extract_tensor_metadata

from gemmdb.workload.entries import Origin, clean

aten, prims = torch.ops.aten, torch.ops.prims
FLAT_VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
RESHAPES = (*FLAT_VIEWS, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.expand.default)
"""Views that preserve the order of rows and columns."""
VIEWS = (*RESHAPES, aten.permute.default, aten.transpose.int, aten.t.default)
"""Operators that only change the view of memory. Elementwise work after them still fits into the GEMM's kernel."""
CASTS = (prims.convert_element_type.default, aten._to_copy.default)
SOFTMAX = "prims.prepare_softmax_online.default"
"""Inductor's operator for the maximum and sum of a softmax on a GPU. It has no tag."""
_FRAME = re.compile(r'^\s*File "([^"\n]+)", line (\d+)', re.MULTILINE)
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_INDEX = re.compile(r"\[['\"]?([^\]'\"]*)['\"]?\]")
MAX_PRODUCERS = 2
"""Maximum number of operand producers to check if an Inductor pass dropped the GEMM's own metadata."""


class Unsupported(Exception):
    """This GEMM has no Problem: a dtype or a shape outside the key."""


def value(node: Any) -> Any:
    """Return the fake tensor of an FX node; raises Unsupported for anything else."""
    val = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(val, torch.Tensor):
        raise Unsupported("no tensor metadata")
    return val


def users(node: Any, views: Container[Any] = RESHAPES) -> Iterator[Any]:
    """Return the nodes that use the value of `node`, directly or through `views`."""
    for user in node.users:
        if user.target in views:
            yield from users(user, views)
        else:
            yield user


def is_returned(node: Any) -> bool:
    """Whether the graph returns the memory of `node`, itself or a view of it, or reads it with strides of its own."""
    for user in node.users:
        if user.op == "output" or user.target is aten.as_strided.default:
            return True
        arguments = user.target._schema.arguments if isinstance(user.target, torch._ops.OpOverload) else ()
        if any(one.alias_info is not None for one in arguments) and is_returned(user):
            return True
    return False


def is_pointwise(node: Any) -> bool:
    """Whether `node` is an elementwise operator, which Inductor can fuse into a template."""
    tags = getattr(node.target, "tags", ())
    return node.op == "call_function" and (torch.Tag.pointwise in tags or node.target in CASTS)


def known(condition: Any) -> bool:
    """Whether a condition on sizes is statically true. Adds no guard, and does not raise for an unbacked size."""
    return bool(statically_known_true(condition))


def same_sizes(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two shapes are statically equal."""
    return len(one) == len(other) and all(known(a == b) for a, b in zip(one, other, strict=True))


def alike(one: Any, other: Any) -> bool:
    """Whether two tensors have the same dtype and device. GPU kernels cannot read a number in CPU memory."""
    return bool(one.dtype == other.dtype and one.device == other.device)


def over_columns(val: Any, columns: Any) -> bool:
    """Whether `val` broadcasts as one number, or as a vector over the last dimension of size `columns`."""
    shape = val.shape
    return all(known(size == 1) for size in shape[:-1]) and (
        not shape or known(shape[-1] == 1) or known(shape[-1] == columns)
    )


def keeps_columns(node: Any, columns: Any) -> bool:
    """Whether the last dimension of `node`, a view of a GEMM's output, is still N of size `columns`."""
    shape = value(node).shape
    return bool(shape) and known(shape[-1] == columns)


def base(node: Any) -> Any:
    """Return the node that owns the memory of a node, through views."""
    while node.target in VIEWS:
        node = node.args[0]
    return node


def is_reduction(node: Any) -> bool:
    """Whether an operator is a reduction."""
    return str(node.target) == SOFTMAX or torch.Tag.reduction in getattr(node.target, "tags", ())


def call(graph: Any, target: Any, args: tuple[Any, ...], meta: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Create a node that calls `target`, whose first argument is a tensor node. `meta`: metadata of the replaced node;
    the stack trace, partitioner and recompute tags are kept. `options`: keyword arguments of the operator."""
    inputs = torch.fx.map_arg(args, lambda node: node.meta["val"])
    with inputs[0].fake_mode:
        result = target(*inputs, **options)
    return _described(graph.call_function(target, args, options), result, meta or {})


def output(graph: Any, node: Any, index: int) -> Any:
    """Create the node of one output of an operator that has several."""
    return _described(graph.call_function(operator.getitem, (node, index)), node.meta["val"][index], node.meta)


def iota(graph: Any, like: Any, length: int) -> Any:
    """Create the node of the numbers from 0 to `length` - 1, of the dtype and on the device of `like`."""
    one = value(like)
    options = {"start": 0, "step": 1, "dtype": one.dtype, "device": one.device, "requires_grad": False}
    with one.fake_mode:
        result = prims.iota.default(length, **options)
    return _described(graph.call_function(prims.iota.default, (length,), options), result, like.meta)


def _described(node: Any, result: Any, meta: Mapping[str, Any]) -> Any:
    """Store the fake result of a new node, and the metadata of the one that it replaces."""
    node.meta = {**meta, "val": result}
    for stale in ("eager_input_vals", "tensor_meta"):
        node.meta.pop(stale, None)
    if isinstance(result, torch.Tensor):  # The partitioner treats a node without it as one of several outputs.
        node.meta["tensor_meta"] = _extract_tensor_metadata(result)
    return node


def constant(graph: Any, tensor: torch.Tensor, before: Any) -> Any:
    """Return a new constant of a graph, which holds `tensor`, before the node `before`, which has a fake tensor."""
    owner = graph.owning_module
    name = next(name for name in map("_gemmdb_constant{}".format, itertools.count()) if not hasattr(owner, name))
    owner.register_buffer(name, tensor)
    with graph.inserting_before(before):
        made = graph.get_attr(name)
    made.meta["val"] = value(before).fake_mode.from_tensor(tensor)
    return made


def size(graph: Any, node: Any, dim: int) -> Any:
    """Return a size of `node`'s tensor as an argument for new nodes: a number, or a node if the size is symbolic."""
    found = value(node).shape[dim]
    if isinstance(found, int):
        return found
    made = graph.call_function(aten.sym_size.int, (node, dim))
    made.meta["val"] = found
    return made


def vector(graph: Any, scale: Any, matrix: Any, dim: int = 1) -> Any:
    """Return `scale` as a vector. It holds one number, or one per step along dimension `dim` of `matrix`: the columns
    of a weight [K, N] for 1, the rows of an activation [M, K] for 0."""
    single = known(value(scale).numel() == 1)
    if value(scale).dim() == 1 and not single:
        return scale
    length = size(graph, matrix, dim)
    if not single:
        return call(graph, aten.reshape.default, (scale, [length]), scale.meta)
    one = call(graph, aten.reshape.default, (scale, [1]), scale.meta)
    return call(graph, aten.expand.default, (one, [length]), scale.meta)


def origin(node: Any) -> Origin:
    """Return the path of the innermost module, and the innermost source line outside of torch; both may be empty. A
    GEMM in a backward has those of its forward. Never raises."""
    try:
        metas = [node.meta]
        if not any(node.meta.get(name) for name in ("nn_module_stack", "fwd_nn_module_stack", "stack_trace")):
            metas += [one.meta for one in node.all_input_nodes[:MAX_PRODUCERS]]
        module = next(filter(None, map(_module, metas)), "")
        return Origin(clean(module), clean(next(filter(None, map(_source, metas)), "")))
    except Exception:  # Any pass may write metadata.
        return Origin()


def _module(meta: Mapping[str, Any]) -> str:
    """Return the path relative to the root module: torch writes `L['self'].layers.0` or `layers.0`."""
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
    name = str(list(stack.values())[-1][0]) if stack else ""
    for root in ("L['self']", "L['fn']", "L__self__"):  # `fn` is Dynamo's own name for a torch module.
        name = name.removeprefix(root)
    if name.startswith("L["):  # A local variable of the compiled function: `L['model'].up`.
        name = _INDEX.sub(r"\1", name[1:], count=1)
    name = _INDEX.sub(r".\1", name.replace("._modules", ""))
    return name.strip(".")


def _source(meta: Mapping[str, Any]) -> str:
    frames = _FRAME.findall(meta.get("stack_trace") or "")
    own = [(path, line) for path, line in frames if not path.startswith(_TORCH)] or frames
    if not own:
        return ""
    path, line = own[-1]
    # Shared files must not contain local paths. The package's own folder distinguishes modules.
    parts = PurePath(path).parts[-2 if _is_package(Path(path).parent) else -1 :]
    return f"{'/'.join(parts).lstrip('/')}:{line}"


@functools.lru_cache(maxsize=256)
def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").exists()
