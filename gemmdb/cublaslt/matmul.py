"""One matrix multiplication of cuBLASLt: its descriptors, its algorithms, and a prepared call."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import byref, c_float, c_int8, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from gemmdb.cublaslt import library
from gemmdb.cublaslt.library import Algorithm, Heuristic, call
from gemmdb.cublaslt.shape import Matrix, Shape
from gemmdb.cublaslt.tiles import CAPABILITY, RELEASES, known
from gemmdb.key.canonical import lazy

MAX_WORKSPACE = 32 << 20
"""Bytes. cuBLAS's own workspace has as many on Hopper."""
MAX_NAMED = 16
"""Number of algorithms to ask the heuristic for. On Hopper it returned 8."""
NOT_SUPPORTED = 15
"""CUBLAS_STATUS_NOT_SUPPORTED."""
_ANYWHERE = 4096
"""An aligned address that stands for a bias or a scale before its own is known; nothing reads it."""


class Operation(c_void_p):
    """A cublasLtMatmulDesc_t, which is destroyed with this object, by the library that made it: another copy of
    cuBLASLt would end the process."""

    def __init__(self) -> None:
        super().__init__()
        self.library = library.loaded()

    def __del__(self) -> None:
        if self.value and self.library is not None:
            self.library.cublasLtMatmulDescDestroy(self)


class Matmul:
    """The descriptors of a shape on a device. cuBLASLt's matrices lie by columns, so it computes out^T = b^T @ a^T."""

    def __init__(self, shape: Shape, device: int) -> None:
        self.shape, self.device = shape, device
        self.handle = library.handle(device)
        self.places = (_ANYWHERE,) * len(shape.extras)
        self.operation = self.operation_with(self.places)
        self.left = self._layout(shape.b, shape.k, shape.n)
        self.right = self._layout(shape.a, shape.m, shape.k)
        self.out = self._layout(shape.out, shape.m, shape.n)
        scale = self._scale
        number: Any = c_int32 if scale == "int32" else c_float
        self.alpha, self.beta = number(1), number(int(shape.matrix_bias))

    @property
    def _scale(self) -> str:
        """The dtype of alpha and beta."""
        return "int32" if self.shape.accumulate == "int32" else "fp32"

    def operation_with(self, places: tuple[int, ...]) -> c_void_p:
        """Return a new descriptor of the operation, with the shape's `extras` at these addresses."""
        shape, made = self.shape, Operation()
        call("cublasLtMatmulDescCreate", byref(made), library.COMPUTE[shape.accumulate], library.DTYPES[self._scale])
        values: dict[str, Any] = {
            "transa": c_int32(0 if shape.b.by_rows else 1), "transb": c_int32(0 if shape.a.by_rows else 1),
            "epilogue": c_uint32(library.EPILOGUES[shape.activation][shape.vector_bias]),
        }  # fmt: skip
        at = dict(zip(shape.extras, places, strict=True))
        if shape.vector_bias:
            values["bias_type"] = c_int32(library.DTYPES[shape.bias])
            values["bias_pointer"] = c_uint64(at["bias"])
        if shape.scales:
            # The library's A is our B.
            values["a_scale_pointer"], values["b_scale_pointer"] = c_uint64(at["scale_b"]), c_uint64(at["scale_a"])
            values["fast_accum"] = c_int8(shape.fast)
            of_a, of_b = shape.scale_modes
            if (of_a, of_b) != (0, 0):  # The default, and older libraries know no other.
                values["a_scale_mode"], values["b_scale_mode"] = c_int32(of_b), c_int32(of_a)
        for name, value in values.items():
            number = library.DESCRIPTION[name]
            call("cublasLtMatmulDescSetAttribute", made, number, byref(value), ctypes.sizeof(value))
        return made

    def _layout(self, matrix: Matrix, rows: int, columns: int) -> c_void_p:
        if matrix.by_rows:
            rows, columns = columns, rows
        made = c_void_p()
        call("cublasLtMatrixLayoutCreate", byref(made), library.DTYPES[matrix.dtype], rows, columns, matrix.leading)
        if self.shape.batch > 1:
            for name, value in (("batch", c_int32(self.shape.batch)), ("batch_stride", c_int64(matrix.batch_stride))):
                call("cublasLtMatrixLayoutSetAttribute", made, library.LAYOUT[name], byref(value), ctypes.sizeof(value))
        return made

    def heuristics(self, count: int, workspace: int) -> list[Heuristic]:
        """Up to `count` algorithms in the library's own order, each with at most `workspace` bytes."""
        preference, found = c_void_p(), (Heuristic * count)()
        got = c_int32()
        call("cublasLtMatmulPreferenceCreate", byref(preference))
        size = c_uint64(workspace)
        call(
            "cublasLtMatmulPreferenceSetAttribute", preference, library.PREFERENCE["workspace"], byref(size),
            ctypes.sizeof(size),
        )  # fmt: skip
        try:
            call(
                "cublasLtMatmulAlgoGetHeuristic", self.handle, self.operation, self.left, self.right, self.out,
                self.out, preference, count, found, byref(got),
            )  # fmt: skip
        finally:
            call("cublasLtMatmulPreferenceDestroy", preference)
        return [found[index] for index in range(got.value) if found[index].state == 0]

    def _types(self) -> tuple[int, ...]:
        shape = self.shape
        scale = self._scale
        types = (library.DTYPES[one] for one in (scale, shape.b.dtype, shape.a.dtype, shape.out.dtype, shape.out.dtype))
        return (library.COMPUTE[shape.accumulate], *types)

    def initial(self, number: int) -> Algorithm:
        """The algorithm of that number with the attributes unset."""
        made = Algorithm()
        call("cublasLtMatmulAlgoInit", self.handle, *self._types(), number, byref(made))
        return made

    def algorithm(self, attributes: Mapping[str, int]) -> Algorithm:
        """The algorithm with these attributes, which are all of `library.CONFIG`."""
        made = self.initial(attributes["algo"])
        for name, value in attributes.items():
            if name != "algo":
                number, kind = library.CONFIG[name]
                stored = kind(value)
                call("cublasLtMatmulAlgoConfigSetAttribute", byref(made), number, byref(stored), ctypes.sizeof(stored))
        return made

    def supported(self, attributes: Mapping[str, int]) -> tuple[Algorithm, int]:
        """The algorithm with these attributes and the bytes of workspace that it needs for this shape.

        Raises library.Error if the library does not support it. Not every algorithm may be asked for: cuBLAS 13.1 ends
        the process for some. So those that are not known to be safe are refused, unless its heuristic names them here.
        """
        if not (self._explored and known(attributes)) and dict(attributes) not in self._named:
            raise library.Error("cublasLtMatmulAlgoGetHeuristic", NOT_SUPPORTED)
        made, found = self.algorithm(attributes), Heuristic()
        call(
            "cublasLtMatmulAlgoCheck", self.handle, self.operation, self.left, self.right, self.out, self.out,
            byref(made), byref(found),
        )  # fmt: skip
        return made, int(found.workspace)

    @lazy
    def _explored(self) -> bool:
        """Whether the algorithms that are known to be safe ran with this library, on such a GPU, on such matrices."""
        here = library.capability(self.device) in (CAPABILITY, 0)  # Without a driver, nothing can go wrong on a GPU.
        return here and library.version() // 100 in RELEASES and self.shape.explored

    @lazy
    def _named(self) -> list[dict[str, int]]:
        """The attributes of the algorithms that the heuristic names. Some bytes of an older algorithm have no
        attribute."""
        return [attributes(one.algorithm) for one in self.heuristics(MAX_NAMED, MAX_WORKSPACE)]

    def run(
        self, algorithm: Algorithm, a: int, b: int, out: int, workspace: int, size: int, stream: int, *places: int
    ) -> None:
        """Run it, asynchronously, on addresses in device memory. `places`: those of the shape's `extras`."""
        added = places[0] if self.shape.matrix_bias else out
        if places != self.places and not self.shape.matrix_bias:
            self.operation, self.places = self.operation_with(places), places
        call(
            "cublasLtMatmul", self.handle, self.operation, byref(self.alpha), b, self.left, a, self.right,
            byref(self.beta), added, self.out, out, self.out, byref(algorithm), workspace, size, stream,
        )  # fmt: skip


def attributes(algorithm: Algorithm) -> dict[str, int]:
    """The attributes of an algorithm, by the names of `library.CONFIG`."""
    found = {}
    for name, (number, kind) in library.CONFIG.items():
        value, written = kind(), c_size_t()
        call(
            "cublasLtMatmulAlgoConfigGetAttribute", byref(algorithm), number, byref(value), ctypes.sizeof(value),
            byref(written),
        )  # fmt: skip
        found[name] = int(value.value)
    return found
