"""Convert FX values to key fields: sizes to hints and ranges, strides and offset to layout classes, torch's state to
numerics; and build a GEMM's Query.

Sympy and symbolic integers stay in this module. Results contain only plain integers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch

from gemmdb.devices import detect
from gemmdb.inductor.lower.adapter import state, symbolic
from gemmdb.inductor.match import fx
from gemmdb.inductor.match.fx import Unsupported, known, value
from gemmdb.key.device import Device
from gemmdb.key.layout import VECTOR_BYTES, classify
from gemmdb.key.operands import Bias, Numerics, TensorInfo, default_numerics
from gemmdb.key.problem import Problem, Query
from gemmdb.key.rules import LARGEST_SIZE

DTYPES = {
    torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16",
    torch.int8: "int8", torch.uint8: "uint8", torch.int32: "int32",
    torch.float8_e4m3fn: "fp8_e4m3", torch.float8_e5m2: "fp8_e5m2",
}  # fmt: skip
TORCH = {name: dtype for dtype, name in DTYPES.items()}

Range = tuple[int, int | None]
WEIGHT_MARK = "gemmdb_mixed"
"""Key in the `custom` metadata of a GEMM with a cast int8 or uint8 weight. The value describes the weight as [N, K],
with the GEMM's fusion and bias. For an int4 weight it also has the group size, zero points and packing."""
aten = torch.ops.aten


def dtype_name(dtype: Any) -> str:
    """Return the key's name of a torch dtype."""
    if dtype not in DTYPES:
        raise Unsupported(f"dtype {dtype}")
    return DTYPES[dtype]


def hint(size: Any) -> int:
    """Return the lookup size: a plain size unchanged, a symbolic size's hint, a guess for a data-dependent size."""
    if isinstance(size, int):
        return size
    node = size.node
    if symbolic.from_data(size):
        return symbolic.guess(node.expr, node.shape_env)
    if node.hint is None:
        raise Unsupported("a size without a hint")
    return int(node.hint)


def bounds(size: Any) -> Range | None:
    """Return (min, max or None) of a symbolic size, None for a plain one."""
    if isinstance(size, int):
        return None
    from torch.utils._sympy.value_ranges import bound_sympy

    shape_env = size.node.shape_env
    if size.node.expr.is_number:
        return None
    found = bound_sympy(size.node.expr, shape_env.var_to_range)
    # Anything but an integer is an infinity of sympy or torch. A bound beyond int32 counts as infinite too.
    lower = int(found.lower) if found.lower.is_Integer else 0
    upper = int(found.upper) if found.upper.is_Integer else LARGEST_SIZE
    return max(lower, 0), None if upper >= LARGEST_SIZE else upper


def tensor(val: Any, sizes: Sequence[int] | None = None, strides: Sequence[int] | None = None) -> TensorInfo:
    """Describe a fake tensor, or another view of it (`sizes`, `strides`), in plain integers."""
    for step in (*val.stride(), val.storage_offset()):
        # The alignment class would be a guess.
        if symbolic.from_data(step) and not known(step * val.itemsize % VECTOR_BYTES == 0):
            raise Unsupported("rows of data-dependent length may not be 16-byte aligned")
    if any(symbolic.from_data(size) and hint(size) < 1 for size in val.shape):
        raise Unsupported("a data-dependent size without known bounds, so it cannot be guessed")
    return TensorInfo(
        dtype_name(val.dtype),
        tuple(hint(s) for s in val.shape) if sizes is None else tuple(sizes),
        tuple(hint(s) for s in val.stride()) if strides is None else tuple(strides),
        hint(val.storage_offset()),
    )


def matrix(val: Any) -> TensorInfo:
    """Return `val` as [rows, last size], the matrix that a linear sees for an activation of any rank. Ignores
    dimensions of size 1."""
    info = tensor(val)
    if len(info.sizes) == 2:
        return info
    if len(info.sizes) < 2:
        raise Unsupported("a vector")
    rows, columns = math.prod(info.sizes[:-1]), info.sizes[-1]
    rest = [pair for pair in zip(info.sizes[:-1], info.strides[:-1], strict=True) if pair[0] != 1]
    if any(stride != size * step for (_, stride), (size, step) in pairwise(rest)):
        # These dimensions cannot be viewed as one, so Inductor copies to dense rows.
        return TensorInfo(info.dtype, (rows, columns), (columns, 1), 0)
    inner = rest[-1][1] if rest else columns
    return TensorInfo(info.dtype, (rows, columns), (inner, info.strides[-1]), info.offset)


def bias(val: Any, m: int, n: int) -> Bias:
    """Return the bias class of an addmm for an [m, n] output: `1d`, `full` or `column`, after broadcasting."""
    info = tensor(val)
    sizes, strides = info.sizes, info.strides
    if len(sizes) < 2:
        sizes, strides = (1,) * (2 - len(sizes)) + sizes, (0,) * (2 - len(strides)) + strides
    kind = "full"
    if sizes[0] == 1 or strides[0] == 0:
        kind, sizes, strides = "1d", (1, sizes[1]), (sizes[1], strides[1])
    elif (sizes[1] == 1 or strides[1] == 0) and n != 1:
        kind, sizes, strides = "column", (m, 1), (strides[0], 1)
    return Bias(kind, info.dtype, classify(sizes, strides, info.offset, info.dtype).align)


def scalars(alpha: Any, beta: Any) -> str:
    """Return the class of alpha and beta."""
    if beta == 0:
        return "beta0"
    return "unit" if alpha == 1 and beta == 1 else "general"


def numerics(dtype: str, device_type: str) -> Numerics:
    """Return the numerics that torch's settings allow for inputs of `dtype` on a device."""
    base = default_numerics(dtype)
    fp32 = _fp32_mode(device_type) if dtype == "fp32" else "ieee"
    reduced = base.reduced
    if device_type == "cuda" and reduced:
        name = "allow_fp16_reduced_precision_reduction" if dtype == "fp16" else "allow_bf16_reduced_precision_reduction"
        reduced = bool(getattr(torch.backends.cuda.matmul, name))
    return Numerics(fp32, base.acc, reduced, state.deterministic())


def _fp32_mode(device_type: str) -> str:
    if device_type == "cuda":
        try:
            return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
        except RuntimeError:
            # torch forbids reading the old switch once the new one is set
            return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"
    mode = getattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision", "none")
    if mode == "bf16" or (mode == "tf32" and detect.cpu_multiplies_tf32()):
        return str(mode)
    try:
        return "bf16" if torch.get_float32_matmul_precision() == "medium" else "ieee"
    except RuntimeError:
        # as above; only CUDA's new switch is set, which does not affect the CPU
        return "ieee"


def device(of: Any) -> Device:
    """Return the Device of a torch device. For the CPU it includes torch's current thread count."""
    if of.type == "cpu":
        return detect.cpu(torch.get_num_threads())
    found = detect.cuda(of.index or 0) if of.type == "cuda" else None
    if found is None:
        raise Unsupported(f"device {of.type}")
    return found


@dataclass(frozen=True)
class Gemm:
    """One GEMM node and its Query. `guessed`: a size is data-dependent, and the problem has a guess for it. `b`: the
    node of its second operand, None if that is a weight. `symbols`: as of an Event."""

    node: Any
    query: Query
    guessed: bool = False
    b: Any = None
    symbols: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)


def two_operands(op: str, node: Any, a: Any, b: Any, fast: bool = False, **fields: Any) -> Gemm | None:
    """Return the GEMM at `node` of two matrices (or batches of matrices), taken unchanged. `fields`: of the Problem.
    `fast`: fp8 operands may be accumulated below fp32 precision."""
    first, second = value(a), value(b)
    info = tensor(first)
    problem = Problem.from_tensors(
        op, info, tensor(second), constant=is_constant(b),
        numerics=replace(numerics(info.dtype, first.device.type), fast=fast),
        **{"out": dtype_name(value(node).dtype), **fields},
    )  # fmt: skip
    sizes = {"m": first.shape[-2], "n": second.shape[-1], "k": first.shape[-1]}
    found = gemm(node, problem, sizes, first.device)
    return found and replace(found, b=b)


def gemm(node: Any, problem: Problem, sizes: dict[str, Any], on: Any) -> Gemm | None:
    """Return the Gemm of a problem whose sizes are hints, with the ranges of all symbolic `sizes`, on a torch device.
    None for an empty GEMM: Inductor removes it or fills the output."""
    if problem.empty:
        return None
    limits = {name: bounds(size) for name, size in sizes.items()}
    ranges = {name: one for name, one in limits.items() if one is not None}
    guessed = any(symbolic.from_data(size) for size in sizes.values())
    symbols = {name: factors for name in ranges if (factors := symbolic.product(sizes[name]))}
    return Gemm(node, Query(problem, device(on), ranges), guessed, symbols=symbols)


def is_constant(node: Any) -> bool:
    """Whether `node` is a constant of the graph, or a view of one."""
    while node.op == "call_function" and node.target in (aten.permute.default, aten.t.default, *fx.RESHAPES):
        node = node.args[0]
    return bool(node.op == "get_attr")
