"""Match int8-weight GEMMs in the joint graph: all forms of x @ w.to(x.dtype), with scale and bias.

Later stages are too late: freezing folds most casts into a 16-bit weight, and Inductor's weight-only pattern takes some
of the rest. A GEMM that is not rewritten gets a mark for the post-grad stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gemmdb.inductor.match import epilogues, extract, fx, ops
from gemmdb.inductor.match.fx import Unsupported, value
from gemmdb.inductor.match.spelling import SPELLING, spelled
from gemmdb.key.epilogue import LIGHT
from gemmdb.key.operands import TensorInfo

aten = torch.ops.aten
_CAST = torch.ops.prims.convert_element_type.default
_TRANSPOSES = (aten.t.default, aten.permute.default)
_WEIGHTS = (torch.int8, torch.uint8)
_GPUS = ("cuda",)
RESPELLED = "gemmdb_respelled"
"""Key in the metadata of our operator's node: Inductor's weight-only pattern misses the program's spelling."""


@dataclass
class Mixed:
    """One GEMM. `weight`: the int8 or uint8 node; `transposed`: it is stored [N, K]. `scale`: per-channel or per-tensor
    scale, applied before the GEMM (`early`) or by `multiply` after it; None without a scale. `factor`: a Python number
    instead, applied before the GEMM. `bias`: added by the addmm, or by `addition` after it."""

    node: Any
    a: Any
    weight: Any
    transposed: bool
    scale: Any = None
    factor: float | None = None
    early: bool = False
    multiply: Any = None
    bias: Any = None
    addition: Any = None

    @property
    def packed_by_inductor(self) -> bool:
        """Whether Inductor's weight-only pattern matches this spelling: a scale after the GEMM, which is x @ w.t().to()
        without a reshape before the scale, or x @ w.to().t() with one, or a batch of views of the latter."""
        if self.early or self.multiply is None:
            return False
        b, scaled = self.node.args[1], self.multiply.args[0]
        batched = self.node.target is aten.bmm.default
        if batched and b.target is aten.expand.default:
            b = b.args[0]
        if b.op != "call_function" or not b.all_input_nodes or any(len(n.users) > 1 for n in (b, b.all_input_nodes[0])):
            return False
        if batched or b.target in _TRANSPOSES:
            return b.target in _TRANSPOSES and batched == (scaled is self.node)
        return b.target is _CAST and scaled is self.node

    def leave_mark(self, constant: bool) -> None:
        """Store the metadata that the post-grad stage needs to build the same Problem."""
        info = extract.tensor(value(self.weight))
        if not self.transposed:
            info = TensorInfo(info.dtype, info.sizes[::-1], info.strides[::-1], info.offset)
        m, n = extract.matrix(value(self.a)).sizes[0], info.sizes[0]
        bias = None if self.bias is None else extract.bias(value(self.bias), m, n).text
        fused = LIGHT.text if self.factor is not None else epilogues.fusion(self.node)
        fused = "none" if bias else fused
        fused = "scale" if self.scale is not None else fused
        attach({
            "dtype": info.dtype, "sizes": info.sizes, "strides": info.strides, "offset": info.offset,
            "constant": constant, "fusion": fused, "bias": bias,
        }, self.node, self.multiply, self.addition)  # fmt: skip

    def rewrite(self, graph: Any) -> None:
        """Replace the GEMM and its scale by `gemmdb::mixed_mm`. A bias remains a pointwise addition after it."""
        result = _replacement(graph, self)
        self.node.replace_all_uses_with(result)
        if self.multiply is not None:
            kept = next(arg for arg in self.multiply.args if arg is not self.scale)
            # Move the reshapes between the GEMM and the scale, which is now fused, right after the GEMM.
            last = kept
            while last is not result:
                last, moved = last.args[0], last
                result.append(moved)
            self.multiply.replace_all_uses_with(kept)
            graph.erase_node(self.multiply)
        graph.erase_node(self.node)


def attach(mark: dict[str, Any], *nodes: Any) -> None:
    """Attach a weight's mark to a GEMM, to the multiplication that Inductor's pattern replaces with it, and to the
    addition that may become an addmm with it (None without one)."""
    for one in nodes:
        if one is not None:
            # Inductor copies this metadata to the nodes that replace a node.
            one.meta["custom"] = {**one.meta.get("custom", {}), extract.WEIGHT_MARK: mark}


def operands(node: Any) -> tuple[Any, Any, Any] | None:
    """Return (A, B, bias or None) of an mm, bmm or unscaled addmm; None for anything else."""
    if node.target in (aten.mm.default, aten.bmm.default):
        return (*node.args[:2], None)
    if node.target is aten.addmm.default and set(node.kwargs.values()) <= {1}:
        bias, a, b = node.args[:3]
        return a, b, bias
    return None


def find(node: Any) -> Mixed | None:
    """Return the mixed GEMM whose multiplication is `node`, None for anything else."""
    given = operands(node)
    if given is None:
        return None
    a, b, bias = given
    try:
        found = _weight(node, a, b)
        dtype = value(a).dtype
        if found is None or dtype not in (torch.float16, torch.bfloat16):
            return None
        if found.factor is not None and dtype is torch.float16:
            # The factor would be applied after the GEMM, and the sums of the unscaled integers overflow fp16.
            return None
        found.bias, last = bias, node
        # The scale may be the GEMM's only user, and the bias addition the only user after it.
        if not found.early and bias is None:
            multiply, scale = _single(last, aten.mul.Tensor)
            if multiply is not None:
                found.scale, found.multiply, last = scale, multiply, multiply
        if bias is None:
            found.addition, found.bias = added(last)
        return found
    except Unsupported:
        return None


def _expanded(batch: Any) -> tuple[Any, bool]:
    """Return (matrix, whether it is transposed) that a batch of matrices repeats by views of the matrix's memory; the
    batch itself if there is none. torch decomposes a linear like this if its activations cannot be viewed as one
    matrix."""
    whole, node = value(batch), batch
    if fx.known(whole.stride(0) == 0) or fx.known(whole.shape[0] == 1):
        memory = StorageWeakRef(whole.untyped_storage())
        while StorageWeakRef(value(node).untyped_storage()) == memory:
            if value(node).dim() == 2:
                rows, columns = zip(value(node).shape, value(node).stride(), strict=True)
                wanted = tuple(zip(whole.shape[1:], whole.stride()[1:], strict=True))
                for transposed, dims in ((False, (rows, columns)), (True, (columns, rows))):
                    if value(node).storage_offset() == whole.storage_offset() and all(map(_same_dim, dims, wanted)):
                        return node, transposed
            if node.op != "call_function" or not node.all_input_nodes:
                break
            node = node.all_input_nodes[0]
    return batch, False


def _same_dim(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    """Whether two (size, stride) pairs reach the same elements."""
    sizes, strides = zip(one, other, strict=True)
    return fx.known(sizes[0] == sizes[1]) and (fx.known(sizes[0] == 1) or fx.known(strides[0] == strides[1]))


def _weight(node: Any, a: Any, b: Any) -> Mixed | None:
    """Walk from the GEMM's B through transposes, one scale and the cast to the integer weight."""
    b, transposed = _expanded(b) if node.target is aten.bmm.default else (b, False)
    scale, cast = None, False
    while b.op == "call_function":
        if b.target in _TRANSPOSES and value(b).dim() == 2:
            if b.target is aten.permute.default and list(b.args[1]) == [0, 1]:
                return None
            transposed = not transposed
            b = b.args[0]
        elif b.target is _CAST and not cast and value(b).dtype == value(a).dtype:
            cast, b = True, b.args[0]
        elif cast:
            # Any node may produce the integers, for example a slice of the weight of a fused projection.
            break
        elif b.target is aten.mul.Tensor and scale is None:
            b, scale = _scaled_weight(b, transposed)
            if scale is None:
                return None
        else:
            return None
    if not cast or value(b).dtype not in _WEIGHTS or value(b).dim() != 2:
        return None
    if isinstance(scale, (int, float)):
        return Mixed(node, a, b, transposed, factor=scale, early=True)
    return Mixed(node, a, b, transposed, scale, early=scale is not None)


def _scaled_weight(multiply: Any, transposed: bool) -> tuple[Any, Any]:
    """Return (cast weight, scale) of a multiplication whose scale runs along N or is one number, else (multiply,
    None)."""
    along_k = 1 if transposed else 0
    for weight, scale in (multiply.args, multiply.args[::-1]):
        if not isinstance(weight, torch.fx.Node):
            continue
        if isinstance(scale, (int, float)):
            return weight, scale
        if not fx.same_sizes(value(multiply).shape, value(weight).shape) or not fx.alike(value(scale), value(weight)):
            continue
        shape = (1, 1, *value(scale).shape)[-2:]
        if value(scale).dim() <= 2 and fx.known(shape[along_k] == 1):
            return weight, scale
    return multiply, None


def added(node: Any) -> tuple[Any, Any]:
    """Return (addition, bias) if the only user of a GEMM adds a bias; else (None, None)."""
    addition, bias = _single(node, aten.add.Tensor)
    # A residual of one row looks like a bias. With several rows it is no bias, and one table serves both.
    if bias is None or (value(bias).dim() > 1 and fx.same_sizes(value(bias).shape, value(addition).shape)):
        return None, None
    return addition, bias


def _single(node: Any, target: Any) -> tuple[Any, Any]:
    """Return (user, other operand) if `node`, through reshapes that keep its columns, has one user, which is `target`
    with a vector over N or a number of the same dtype and device; else (None, None)."""
    source, columns = node, value(node).shape[-1]
    while len(source.users) == 1 and next(iter(source.users)).target in fx.FLAT_VIEWS:
        source = next(iter(source.users))
        if not fx.keeps_columns(source, columns):
            return None, None
    if len(source.users) != 1:
        return None, None
    user = next(iter(source.users))
    if user.target is not target or user.kwargs or len(user.args) != 2:
        return None, None
    other = user.args[1] if user.args[0] is source else user.args[0]
    if other is source or not isinstance(other, torch.fx.Node) or not fx.alike(value(other), value(node)):
        return None, None
    return (
        (user, other)
        if fx.same_sizes(value(user).shape, value(source).shape) and fx.over_columns(value(other), columns)
        else (None, None)
    )


def _replacement(graph: Any, found: Mixed) -> Any:
    """Create the node that `Mixed.rewrite` uses to replace the GEMM. The graph does not change otherwise, so an
    exception leaves only unused nodes."""
    node = found.node
    with graph.inserting_before(found.multiply or node):
        weight = found.weight
        if found.transposed:
            weight = fx.call(graph, aten.permute.default, (weight, [1, 0]))
        parts, scale = [(found.weight, weight)], tuple[Any, ...]()
        if found.scale is not None:
            # The sums of the unscaled integers fit bf16, and bf16 has kernels that only scale after the GEMM.
            first = found.early and value(found.a).dtype is torch.float16
            exact = _exact(found.scale) if value(found.a).device.type in _GPUS else found.scale
            scale = (fx.vector(graph, exact, weight), *((True,) if first else ()))
            parts.append((exact, scale[0]))
        a = found.a
        if node.target is aten.bmm.default:
            a = fx.call(graph, aten.reshape.default, (a, [-1, fx.size(graph, a, 2)]), node.meta)
        result = fx.call(graph, ops.overload("mixed_mm"), (a, weight, *scale), node.meta)
        result.meta[RESPELLED] = not found.packed_by_inductor
        if found.multiply is None and found.factor is None and node.target is not aten.bmm.default:
            result.meta[SPELLING] = spelled(node, a, node.args[-1], parts)
        if found.factor is not None:
            # A vector would be rounded to the weight's dtype, with the same error in all columns.
            result = fx.call(graph, aten.mul.Tensor, (result, found.factor), node.meta)
        if node.target is aten.bmm.default:
            sizes = [fx.size(graph, found.a, dim) for dim in (0, 1)]
            result = fx.call(graph, aten.reshape.default, (result, [*sizes, -1]), node.meta)
        if node.target is aten.addmm.default:
            result = fx.call(graph, aten.add.Tensor, (result, found.bias), node.meta)
    return result


def _exact(scale: Any) -> Any:
    """Return the fp32 values that a scale was cast from, as in torchao, or `scale` itself: our kernels read fp32
    directly, and the cast would be an extra kernel per call. Not for CPUs: freezing makes the cast a constant, which
    the C++ template needs."""
    node = scale
    while node.op == "call_function":
        source = node.args[0]
        if node.target is _CAST:
            return source if value(source).dtype is torch.float32 else scale
        if node.target not in fx.RESHAPES or not fx.known(value(source).numel() == value(node).numel()):
            return scale
        node = source
    return scale
