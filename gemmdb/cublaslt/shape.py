"""What one matrix multiplication of cuBLASLt multiplies: its matrices, and the tensors beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemmdb.cublaslt import library
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.key.ops import SCALE_BLOCK
from gemmdb.key.problem import Problem


@dataclass(frozen=True)
class Matrix:
    """A matrix in memory. `by_rows`: whether its rows follow each other. `leading`: elements from one row to the next,
    or from one column to the next. `batch_stride`: elements from one matrix to the next."""

    dtype: str
    by_rows: bool
    leading: int
    batch_stride: int = 0


@dataclass(frozen=True)
class Extra:
    """A tensor besides A and B, as the library reads it: `sizes` and `strides` in elements."""

    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def fits(self, sizes: Sequence[int], strides: Sequence[int]) -> bool:
        """Whether a tensor with these sizes and strides has the same elements at the same places."""
        return _steps(sizes, strides) == _steps(self.sizes, self.strides)


def _steps(sizes: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """The sizes that count, each with its stride."""
    return [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]


EXTRAS = ("bias", "scale_a", "scale_b")
"""The names of all extras, in the order in which calls take them."""
SCALE_MODES = {
    "tensor": ("scalar", "scalar"), "row": ("outer_vector", "outer_vector"), "block": ("vector_128", "block_128x128")
}  # fmt: skip
"""The names in `library.SCALE_MODES` for the scales of A and B, by their kind in a Problem."""


@dataclass(frozen=True)
class Shape:
    """out[m, n] = activation(a[m, k] @ b[k, n] + bias[n]), `batch` times. The output is row-major. `activation`: one of
    `library.EPILOGUES`, computed before the sums are rounded to the output's dtype; empty for none. fp8 operands have
    `scales`, of one of the kinds of a Problem; `fast`: their sums may stay in the accumulator of the matrix unit.
    `matrix_bias`: the bias is bias[m, n], dense and row-major like the output, without an activation or scales. The
    library reads it as its C, where ATen copies it to the output first."""

    m: int
    n: int
    k: int
    a: Matrix
    b: Matrix
    out: Matrix
    accumulate: str = "fp32"
    bias: str = ""
    batch: int = 1
    activation: str = ""
    scales: str = ""
    fast: bool = False
    matrix_bias: bool = False

    @property
    def explored(self) -> bool:
        """Whether the algorithms that are known to be safe ran on such matrices: of 16 bits or more, each row or column
        at a multiple of 16 bytes, which the GPU's tensor copies need of operands and outputs alike. None ran with an
        activation."""
        matrices = (self.a, self.b, self.out)
        return not self.activation and all(
            ITEM_SIZES[one.dtype] > 1 and step * ITEM_SIZES[one.dtype] % VECTOR_BYTES == 0
            for one in matrices
            for step in (one.leading, one.batch_stride if self.batch > 1 else 0)
        )

    @property
    def extras(self) -> Mapping[str, Extra]:
        """The tensors besides A and B: those of EXTRAS that the shape has, in that order. Their addresses are part of
        the operation, except that of a matrix, which each call is given."""
        lies = ((self.m, self.n), (self.n, 1)) if self.matrix_bias else ((self.n,), (1,))
        found = {"bias": Extra(self.bias, *lies)} if self.bias else {}
        return found | {name: Extra("fp32", *where) for name, where in self._scales().items()}

    @property
    def vector_bias(self) -> bool:
        """Whether the operation's epilogue adds a bias."""
        return bool(self.bias) and not self.matrix_bias

    @property
    def scale_modes(self) -> tuple[int, int]:
        """The modes of the scales of A and B in `library.SCALE_MODES`. Only for a shape with scales."""
        of_a, of_b = SCALE_MODES[self.scales]
        return library.SCALE_MODES[of_a], library.SCALE_MODES[of_b]

    def _scales(self) -> Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]:
        if not self.scales:
            return {}
        if self.scales == "tensor":
            return {"scale_a": ((), ()), "scale_b": ((), ())}
        if self.scales == "row":
            return {"scale_a": ((self.m, 1), (1, 1)), "scale_b": ((1, self.n), (self.n, 1))}
        deep, wide = -(-self.k // SCALE_BLOCK), -(-self.n // SCALE_BLOCK)
        return {"scale_a": ((self.m, deep), (1, self.m)), "scale_b": ((deep, wide), (1, deep))}


def leading(sizes: Sequence[int], strides: Sequence[int], by_rows: bool) -> int:
    """The elements from one row of a matrix to the next, or from one column; its last two sizes and strides count. A
    single row or column may have any stride."""
    across, along = (-2, -1) if by_rows else (-1, -2)
    return strides[across] if sizes[across] > 1 else max(sizes[along], 1)


def shape_of(problem: Problem, a: int, b: int, strides: tuple[int, int] = (0, 0)) -> Shape:
    """The shape of a problem with a dense output, without its epilogue. `a`, `b`: the leading dimensions of A and B in
    elements; `strides`: elements from one matrix of a batch to the next."""
    m, n, k = problem.m, problem.n, problem.k
    return Shape(
        m, n, k,
        Matrix(problem.a.dtype, problem.a.row_major, a, strides[0]),
        Matrix(problem.b.dtype, problem.b.layout.order.startswith("row"), b, strides[1]),
        Matrix(problem.out, True, n, m * n),
        "int32" if problem.spec.integer else "fp32",
        problem.bias.dtype if problem.bias is not None else "", problem.batch, scales=problem.scales,
        fast=problem.numerics.fast, matrix_bias=problem.bias is not None and problem.bias.kind == "full",
    )  # fmt: skip
