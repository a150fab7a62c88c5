"""Random and uninitialized operands of a Problem's classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gemmdb.errors import InputError
from gemmdb.generators.measure.literals import literal, literal_bias, splits
from gemmdb.key import representatives
from gemmdb.key.int4 import (
    EXPONENT_BIAS,
    IN_WORDS,
    INT4,
    MXFP4,
    PACKED,
    PLAIN,
    ZERO_BYTES,
    ZERO_NUMBER,
    Int4Format,
)  # fmt: skip
from gemmdb.key.operands import TensorInfo
from gemmdb.key.ops import SCALE_BLOCK
from gemmdb.key.problem import Problem

DTYPES = {
    "fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
    "int32": torch.int32, "int8": torch.int8, "uint8": torch.uint8,
    "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2,
}  # fmt: skip
OPTIONAL = ("bias", "scale", "scale_a", "scale_b", "offsets", "zeros")
"""Tensors that not every GEMM has."""
MAGNITUDES = 3
"""Number of magnitudes that the rows or columns with separate scales cycle through. Most tile sizes are powers of two,
so none is a multiple of 3."""


@dataclass(frozen=True)
class Operands:
    """The tensors of a GEMM: `a` [m, k], `b` [k, n], for bmm with the batch as first dimension; a bias; the scale [n]
    of a `scale` fusion. fp8 operands have fp32 scales: one number [] each, or [m, 1] and [1, n]; for groups [m] and
    [groups, n]. A weight with groups is `b` in packed form, with its groups' scales as `scale` and their `zeros`.
    `reads`: tensors that the epilogue reads, of the output's size and dtype. `offsets`: int32, the end of each group of
    a grouped_mm."""

    a: torch.Tensor
    b: torch.Tensor
    bias: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    scale_a: torch.Tensor | None = None
    scale_b: torch.Tensor | None = None
    offsets: torch.Tensor | None = None
    zeros: torch.Tensor | None = None
    reads: tuple[torch.Tensor, ...] = ()

    @property
    def named(self) -> dict[str, torch.Tensor]:
        """Return the tensors that are present, A and B first, by their names in kernels."""
        found = {"A": self.a, "B": self.b} | {name: getattr(self, name) for name in OPTIONAL}
        found |= {f"read{place}": tensor for place, tensor in enumerate(self.reads, 1)}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @classmethod
    def of(cls, named: Mapping[str, torch.Tensor]) -> Operands:
        """Return the operands among tensors with these names."""
        reads = tuple(named[name] for name in ("read1", "read2") if name in named)
        return cls(named["A"], named["B"], reads=reads, **{name: named.get(name) for name in OPTIONAL})


def blank(problem: Problem, device: torch.device) -> Operands:
    """Return uninitialized operands of the problem's classes. Under a fake tensor mode they have no memory. Raises
    InputError if the sizes cannot have the layout classes, or no representative of the epilogue is measured."""
    reason = representatives.rejection(problem) or (problem.int4 and problem.int4.rejection(problem.n, problem.k))
    if reason:
        raise InputError(str(reason))
    first, second, out = problem.shapes
    a = _blank(literal(problem.a, *first), device)
    bias = None if problem.bias is None else _blank(literal_bias(problem.bias, problem.m, problem.n), device)
    count = problem.epilogue.reads if problem.epilogue else 0
    reads = tuple(torch.empty(out, dtype=DTYPES[problem.out], device=device) for _ in range(count))
    if problem.int4 is not None:
        b, scale, zeros = _blank_int4(problem, problem.int4, device)
        return Operands(a, b, bias, scale, zeros=zeros, reads=reads)
    b, scale = _blank(literal(problem.b, *second), device), None
    if problem.fusion == "scale":
        dtype = DTYPES[problem.out if problem.spec.integer else problem.a.dtype]
        scale = torch.empty(problem.n, dtype=dtype, device=device)
    offsets = torch.empty(problem.groups, dtype=torch.int32, device=device) if problem.ragged else None
    return Operands(a, b, bias, scale, *_blank_scales(problem, device), offsets, reads=reads)


def operands(problem: Problem, device: torch.device, seed: int) -> Operands:
    """Return random operands of the problem's classes, without changing torch's global random state.

    Activations are scaled so that the outputs stay near 1, or near 100 with integer weights: no dtype overflows. fp8
    operands are quantized as real programs do it: the largest element under each scale becomes the largest number of
    the dtype. The groups of a grouped_mm are balanced. Raises InputError as `blank`.
    """
    made, random = blank(problem, device), torch.Generator(device=device).manual_seed(seed)
    small = max(problem.k, 1) ** -0.5
    if made.scale_a is not None and made.scale_b is not None:
        # Group scales are stored without a dimension for K.
        parts = [one.unsqueeze(1) if problem.spec.grouped else one for one in (made.scale_a, made.scale_b)]
        _quantise(made.a, random, small, parts[0])
        _quantise(made.b, random, 1.0, parts[1])
    else:
        _fill(made.a, random, small)
        if problem.int4 is not None:
            _fill_int4(made, random, problem.int4)
        else:
            _fill(made.b, random, 1.0)
    if made.bias is not None:
        _fill(made.bias, random, 1.0)
    if made.scale is not None and problem.int4 is None:
        made.scale.copy_(torch.rand(problem.n, generator=random, device=device).mul(0.01).add(0.001))
    for read in made.reads:
        _fill(read, random, 1.0)
    if made.offsets is not None:
        made.offsets.copy_(torch.tensor(splits(problem)[0], dtype=torch.int32, device=device))
    return made


def _blank_scales(problem: Problem, device: torch.device) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the uninitialized scales of A and B, None for other ops. Block scales use torch's layout: along M, and
    along K padded to a multiple of four."""
    if not problem.scaled:
        return None, None
    first, second = problem.scale_sizes
    if problem.scales != "block":
        a, b = (torch.empty(sizes, dtype=torch.float32, device=device) for sizes in (first, second))
        return a, b
    room = -(-second[0] // 4) * 4
    a = torch.empty_strided(first, (1, problem.m), dtype=torch.float32, device=device)
    return a, torch.empty_strided(second, (1, room), dtype=torch.float32, device=device)


def _quantise(matrix: torch.Tensor, random: torch.Generator, factor: float, scale: torch.Tensor) -> None:
    """Fill a random fp8 matrix, and write its fp32 scales, as in `operands`, to `scale`. If each row, column or block
    has a separate scale, neighbors get different magnitudes: random rows are so alike that a kernel with the wrong
    row's scale would pass."""
    sizes = matrix.shape
    exact = torch.randn(sizes, generator=random, device=random.device).mul_(factor)
    if scale.dim():
        # Powers of two do not change the fp8 numbers.
        places = torch.meshgrid(*(torch.arange(size, device=random.device) for size in scale.shape), indexing="ij")
        turns = torch.stack(places).sum(0) % MAGNITUDES
        exact.mul_(spread((turns - MAGNITUDES // 2).exp2(), sizes))
    scale.copy_(_largest(exact.abs(), scale.shape).clamp(min=1e-12).div_(torch.finfo(matrix.dtype).max))
    _memory(matrix).zero_()
    matrix.copy_((exact / spread(scale, sizes)).to(matrix.dtype))


def _largest(values: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Return the largest of the values that share a scale, for scales of these sizes."""
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
    """Return the scale of each element of a matrix of `sizes`."""
    for dim, size in enumerate(sizes if scale.dim() else ()):
        if scale.shape[dim] not in (1, size):
            scale = scale.repeat_interleave(SCALE_BLOCK, dim).narrow(dim, 0, size)
    return scale.expand(*sizes)


def _blank(info: TensorInfo, device: torch.device) -> torch.Tensor:
    extent = sum(max(size - 1, 0) * stride for size, stride in zip(info.sizes, info.strides, strict=True)) + 1
    storage = torch.empty(info.offset + extent, dtype=DTYPES[info.dtype], device=device)
    return storage.as_strided(info.sizes, info.strides, info.offset)


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return all memory behind a tensor, with its gaps and offset, as a vector."""
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)


def _fill(tensor: torch.Tensor, random: torch.Generator, factor: float) -> None:
    """Fill a tensor's memory with random numbers: normally distributed times `factor`, or any integers."""
    memory, dtype, device = _memory(tensor), tensor.dtype, random.device
    if dtype.is_floating_point:
        kind = torch.float64 if dtype is torch.float64 else torch.float32
        memory.copy_(torch.randn(len(memory), generator=random, device=device, dtype=kind).mul_(factor))
    else:
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max + 1
        memory.copy_(torch.randint(low, high, (len(memory),), generator=random, device=device, dtype=dtype))


def _blank_int4(
    problem: Problem, own: Int4Format, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return the tensors of an uninitialized weight [n, k] with groups, as `gemmdb.key.int4` describes them: packed,
    scales, and the zero points unless they are stored with the scales."""
    n, k, dtype = problem.n, problem.k, DTYPES[problem.a.dtype]
    if own.inner:
        tiles = (n // 8, k // (16 * own.inner), 32, own.inner // 2)
        packed = torch.empty(tiles, dtype=torch.int32, device=device)
        return packed, torch.empty(k // own.size, n, 2, dtype=dtype, device=device), None
    packing, kind = PACKED[own.packing], torch.int32 if own.along_n else DTYPES.get(problem.b.dtype, torch.uint8)
    packed = torch.empty(packing.sizes(n, k, kind.itemsize), dtype=kind, device=device)
    factor = DTYPES[own.scale] if own.scale else dtype
    scale, zeros = torch.empty(packing.groups(n, k, own.size), dtype=factor, device=device), None
    if own.zeros != "none":
        in_words = own.zeros in (INT4, IN_WORDS)
        kind = {"uint8": torch.uint8, "int8": torch.int8}.get(own.zeros, torch.int32 if in_words else dtype)
        sizes = packing.groups(n // packing.in_word if in_words else n, k, own.size)
        zeros = torch.empty(sizes, dtype=kind, device=device)
    return packed, scale, zeros


def _fill_int4(made: Operands, random: torch.Generator, own: Int4Format) -> None:
    """Fill a random weight with groups whose values are near 1. Scales and zero points differ between groups by much
    more than a kernel's error, so a kernel that uses another group's values is detected."""
    assert made.scale is not None
    bits, device = torch.iinfo(made.b.dtype), random.device
    made.b.random_(bits.min, bits.max + 1, generator=random)
    if own.packing == MXFP4:
        made.scale.random_(EXPONENT_BIAS - 3, EXPONENT_BIAS + 1, generator=random)
        return
    in_groups = bool(own.inner or own.along_n or own.packing == PLAIN)
    sizes = tuple(made.scale.shape[:2]) if in_groups else tuple(reversed(made.scale.shape))  # [groups, n]
    # Numbers of eight bits are 16 times as large.
    scale = torch.rand(sizes, generator=random, device=device).add(0.5).mul(0.2 if own.bits == 4 else 0.0125)
    if own.inner:
        added = torch.rand(sizes, generator=random, device=device).sub(0.5)
        made.scale.copy_(torch.stack([scale, added], dim=-1))
        return
    made.scale.copy_(scale if in_groups else scale.t())
    if made.zeros is None:
        return
    if own.packing == PLAIN:
        made.zeros.copy_(torch.rand(sizes, generator=random, device=device).sub(0.5))
        return
    # About the middle of the numbers.
    packing, in_words = PACKED[own.packing], own.zeros in (INT4, IN_WORDS)
    middle = ZERO_NUMBER if own.bits == 4 else ZERO_BYTES["int8" if made.b.dtype is torch.int8 else "uint8"]
    most = 2 if own.bits == 4 else 40
    order = packing.zero_order if in_words else (0,)
    sizes = (*made.zeros.shape, len(order))
    zeros = torch.randint(middle - most, middle + most + 1, sizes, generator=random, device=device)
    made.zeros.copy_((zeros << own.bits * torch.arange(len(order), device=device)).sum(-1))
