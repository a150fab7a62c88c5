"""Random and uninitialised operands of a Problem's classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gemmdb.errors import InputError
from gemmdb.generators.measure.literals import literal, literal_bias, splits
from gemmdb.inductor.match.int4_weight import FROM
from gemmdb.key import representatives
from gemmdb.key.int4 import Int4Format
from gemmdb.key.operands import TensorInfo
from gemmdb.key.ops import SCALE_BLOCK
from gemmdb.key.problem import Problem

DTYPES = {
    "fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
    "int32": torch.int32, "int8": torch.int8, "uint8": torch.uint8,
    "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2,
}  # fmt: skip
MAGNITUDES = 3
"""How many magnitudes the rows or columns with their own scales cycle through. Most tile sizes are powers of two, so no
multiple of 3."""


def to_torch(dtype: str) -> torch.dtype:
    """The torch dtype of a dtype name of the key."""
    return DTYPES[dtype]


@dataclass(frozen=True)
class Operands:
    """The tensors of a product: `a` [m, k], `b` [k, n], for bmm with the batch as first dimension; a bias; the scale
    [n] of a `scale` fusion. fp8 operands have fp32 scales: one number [] each, or [m, 1] and [1, n]; of groups [m] and
    [groups, n]. An int4 weight is `b` as it is packed, with the scales of its groups as `scale` and their `zeros`.
    `reads`: the tensors that the epilogue reads, of the output's size and dtype. `offsets`: of a grouped_mm, int32,
    where each of its groups ends.
    """

    a: torch.Tensor
    b: torch.Tensor
    bias: torch.Tensor | None
    scale: torch.Tensor | None
    scale_a: torch.Tensor | None = None
    scale_b: torch.Tensor | None = None
    reads: tuple[torch.Tensor, ...] = ()
    offsets: torch.Tensor | None = None
    zeros: torch.Tensor | None = None

    @property
    def named(self) -> dict[str, torch.Tensor]:
        """The tensors that are present, A and B first, by their names in kernels."""
        found = {"A": self.a, "B": self.b, "bias": self.bias, "scale": self.scale}
        found |= {"scale_a": self.scale_a, "scale_b": self.scale_b, "offsets": self.offsets, "zeros": self.zeros}
        found |= {f"read{place}": tensor for place, tensor in enumerate(self.reads, 1)}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @classmethod
    def of(cls, named: Mapping[str, torch.Tensor]) -> Operands:
        """The operands among tensors by these names."""
        bias, scale, scale_a, scale_b = (named.get(name) for name in ("bias", "scale", "scale_a", "scale_b"))
        reads = tuple(named[name] for name in ("read1", "read2") if name in named)
        more = named.get("offsets"), named.get("zeros")
        return cls(named["A"], named["B"], bias, scale, scale_a, scale_b, reads, *more)


def blank(problem: Problem, device: torch.device) -> Operands:
    """Uninitialised operands of the problem's classes. Under a fake tensor mode they have no memory. Raises InputError
    when the sizes cannot have the layout classes, or no representative of the epilogue is measured."""
    _check(problem)
    first, second, _ = problem.shapes
    a = _blank(literal(problem.a, *first), device)
    bias = None if problem.bias is None else _blank(literal_bias(problem.bias, problem.m, problem.n), device)
    reads = [
        torch.empty(problem.shapes[2], dtype=to_torch(problem.out), device=device) for _ in range(read_count(problem))
    ]
    if problem.int4 is not None:
        weight = _blank_int4(problem, device, a.dtype)
        return Operands(a, weight.packed, bias, weight.scale, reads=tuple(reads), zeros=weight.zeros)
    b = _blank(literal(problem.b, *second), device)
    scale = torch.empty(problem.n, dtype=_scale_dtype(problem), device=device) if problem.fusion == "scale" else None
    scales = _scales(problem, device)
    offsets = torch.empty(problem.groups, dtype=torch.int32, device=device) if problem.ragged else None
    return Operands(a, b, bias, scale, *_pair(scales), tuple(reads), offsets)


def operands(problem: Problem, device: torch.device, seed: int) -> Operands:
    """Random operands of the problem's classes. They come from a generator of their own: torch's global random state
    does not change.

    Activations are scaled so that the outputs stay near 1, or near 100 with integer weights: no dtype overflows. fp8
    operands are quantised as real programs do it: the largest element under each scale becomes the largest number of
    the dtype. The groups of a grouped_mm are balanced. Raises InputError as `blank`.
    """
    _check(problem)
    random = torch.Generator(device=device).manual_seed(seed)
    first, second, _ = problem.shapes
    scales = _scales(problem, device)
    if scales:
        # Those of groups are stored without a dimension for K.
        parts = [scale.unsqueeze(1) for scale in scales] if problem.spec.grouped else scales
        a = _quantised(literal(problem.a, *first), random, max(problem.k, 1) ** -0.5, parts[0])
        b = _quantised(literal(problem.b, *second), random, 1.0, parts[1])
    elif problem.int4 is not None:
        a = _filled(literal(problem.a, *first), random, max(problem.k, 1) ** -0.5)
        weight = _filled_int4(problem, random, a.dtype)
        b = weight.packed
    else:
        a = _filled(literal(problem.a, *first), random, max(problem.k, 1) ** -0.5)
        b = _filled(literal(problem.b, *second), random, 1.0)
    bias = None
    if problem.bias is not None:
        bias = _filled(literal_bias(problem.bias, problem.m, problem.n), random, 1.0)
    scale = weight.scale if problem.int4 is not None else None
    if problem.fusion == "scale":
        scale = torch.rand(problem.n, generator=random, device=device).mul(0.01).add(0.001).to(_scale_dtype(problem))
    reads = [_like_output(problem, random) for _ in range(read_count(problem))]
    zeros = weight.zeros if problem.int4 is not None else None
    offsets = next((torch.tensor(ends, dtype=torch.int32, device=device) for ends in splits(problem)[:1]), None)
    return Operands(a, b, bias, scale, *_pair(scales), tuple(reads), offsets, zeros)


def _check(problem: Problem) -> None:
    reason = representatives.rejection(problem) or (problem.int4 and problem.int4.rejection(problem.n, problem.k))
    if reason:
        raise InputError(str(reason))


def read_count(problem: Problem) -> int:
    """How many full-size tensors the epilogue reads."""
    return problem.epilogue.reads if problem.epilogue else 0


def _pair(scales: list[torch.Tensor]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    return (scales[0], scales[1]) if scales else (None, None)


def _like_output(problem: Problem, random: torch.Generator) -> torch.Tensor:
    """A random tensor of the output's size and dtype."""
    sizes = problem.shapes[2]
    info = TensorInfo(problem.out, sizes, torch.empty(sizes, device="meta").stride())
    return _filled(info, random, 1.0).contiguous()


def _scale_dtype(problem: Problem) -> torch.dtype:
    return to_torch(problem.out if problem.spec.integer else problem.a.dtype)


def _scales(problem: Problem, device: torch.device) -> list[torch.Tensor]:
    """Memory for the scales of A and B, none for other ops. Scales of blocks lie as torch wants them: along M, and
    along K with room for a multiple of four."""
    if not problem.scaled:
        return []
    first, second = problem.scale_sizes
    if problem.scales != "block":
        return [torch.empty(sizes, dtype=torch.float32, device=device) for sizes in (first, second)]
    room = -(-second[0] // 4) * 4
    return [
        torch.empty_strided(sizes, (1, apart), dtype=torch.float32, device=device)
        for sizes, apart in ((first, problem.m), (second, room))
    ]


def _quantised(info: TensorInfo, random: torch.Generator, factor: float, scale: torch.Tensor) -> torch.Tensor:
    """A random fp8 matrix; its fp32 scales are written to `scale`. A scale is the largest magnitude of its elements
    divided by the largest number of the dtype. If each row, column or block has its own scale, neighbours get different
    magnitudes: random rows are so alike that a kernel with the wrong row's scale would pass."""
    dtype = to_torch(info.dtype)
    exact = torch.randn(info.sizes, generator=random, device=random.device).mul_(factor)
    if scale.dim():
        # Powers of two do not change the fp8 numbers.
        places = torch.meshgrid(*(torch.arange(size, device=random.device) for size in scale.shape), indexing="ij")
        turns = torch.stack(places).sum(0) % MAGNITUDES
        exact.mul_(spread((turns - MAGNITUDES // 2).exp2(), info.sizes))
    scale.copy_(_largest(exact.abs(), scale.shape).clamp(min=1e-12).div_(torch.finfo(dtype).max))
    storage = torch.zeros(_elements(info), dtype=dtype, device=random.device)
    matrix = storage.as_strided(info.sizes, info.strides, info.offset)
    return matrix.copy_((exact / spread(scale, info.sizes)).to(dtype))


def _largest(values: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """The largest of the values that share a scale, for scales of these sizes."""
    if not values.numel():
        return torch.zeros(sizes).to(values)
    if not sizes:
        return values.amax()
    pairs = list(zip(sizes, values.shape, strict=True))
    if all(size in (1, full) for size, full in pairs):
        return values.amax([dim for dim, size in enumerate(sizes) if size == 1], keepdim=True)
    steps = [1 if size == full else full if size == 1 else SCALE_BLOCK for size, full in pairs]
    (rows, columns), (high, wide) = sizes, steps
    padded = values.new_zeros(rows * high, columns * wide)
    padded[: values.shape[0], : values.shape[1]] = values
    return padded.view(rows, high, columns, wide).amax((1, 3))


def spread(scale: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """The scale of each element of a matrix of `sizes`."""
    for dim, size in enumerate(sizes if scale.dim() else ()):
        if scale.shape[dim] not in (1, size):
            scale = scale.repeat_interleave(SCALE_BLOCK, dim).narrow(dim, 0, size)
    return scale.expand(*sizes)


def _blank(info: TensorInfo, device: torch.device) -> torch.Tensor:
    storage = torch.empty(_elements(info), dtype=to_torch(info.dtype), device=device)
    return storage.as_strided(info.sizes, info.strides, info.offset)


def _elements(info: TensorInfo) -> int:
    """How many elements of storage a tensor reaches into."""
    extent = sum(max(size - 1, 0) * stride for size, stride in zip(info.sizes, info.strides, strict=True)) + 1
    return info.offset + extent


def _filled(info: TensorInfo, random: torch.Generator, factor: float) -> torch.Tensor:
    dtype = to_torch(info.dtype)
    elements = _elements(info)
    if dtype.is_floating_point:
        kind = torch.float64 if dtype is torch.float64 else torch.float32
        storage = torch.randn(elements, generator=random, device=random.device, dtype=kind).mul_(factor).to(dtype)
    else:
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max + 1
        storage = torch.randint(low, high, (elements,), generator=random, device=random.device, dtype=dtype)
    return storage.as_strided(info.sizes, info.strides, info.offset)


@dataclass(frozen=True)
class Int4Weight:
    """The tensors of an int4 weight [n, k], as `gemmdb.key.int4` describes them: `packed`, the scales, and the zero
    points if they are not beside the scales."""

    packed: torch.Tensor
    scale: torch.Tensor
    zeros: torch.Tensor | None = None

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Those that are present."""
        return tuple(one for one in (self.packed, self.scale, self.zeros) if one is not None)


def _blank_int4(problem: Problem, device: torch.device, dtype: torch.dtype) -> Int4Weight:
    """An uninitialised weight. `dtype`: that of the activation, of which the scales are."""
    own, n, k = _own(problem), problem.n, problem.k
    count = k // own.size
    if own.inner:
        sizes = (n // 8, k // (16 * own.inner), 32, own.inner // 2)
        packed = torch.empty(sizes, dtype=torch.int32, device=device)
        return Int4Weight(packed, torch.empty(count, n, 2, dtype=dtype, device=device))
    zeros = None
    if own.zeros != "none":
        kind = {"uint8": torch.uint8, "int8": torch.int8}.get(own.zeros, dtype)
        zeros = torch.empty(n, count, dtype=kind, device=device)
    packed = torch.empty(n, k // 2, dtype=torch.uint8, device=device)
    return Int4Weight(packed, torch.empty(n, count, dtype=dtype, device=device), zeros)


def _filled_int4(problem: Problem, random: torch.Generator, dtype: torch.dtype) -> Int4Weight:
    """A random weight whose numbers are near 1. Scales and zero points differ from group to group by much more than the
    error of a kernel, so one that takes those of another group is found out."""
    own, device = _own(problem), torch.device(random.device)
    weight = _blank_int4(problem, device, dtype)
    bits = torch.iinfo(weight.packed.dtype)
    weight.packed.random_(bits.min, bits.max + 1, generator=random)
    sizes = (problem.k // own.size, problem.n)
    scale = torch.rand(sizes, generator=random, device=device).add(0.5).mul(0.2)
    if own.inner:
        added = torch.rand(sizes, generator=random, device=device).sub(0.5)
        weight.scale.copy_(torch.stack([scale, added], dim=-1))
        return weight
    weight.scale.copy_(scale.t())
    if weight.zeros is not None:
        # About the middle of the numbers.
        weight.zeros.copy_(torch.randint(FROM - 2, FROM + 3, sizes[::-1], generator=random, device=device))
    return weight


def _own(problem: Problem) -> Int4Format:
    if problem.int4 is None:
        raise InputError(f"{problem.text} has no int4 weight")
    return problem.int4
