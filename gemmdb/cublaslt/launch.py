"""A prepared call of cuBLASLt for output code: one algorithm, fixed layouts, and fixed sizes or any number of rows.

Everything constant is prepared at the first call, so that a call reads a few addresses and enters the library. If the
library of this process cannot run the algorithm, torch's own function runs the GEMM.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_void_p, cast
from dataclasses import replace
from typing import Any

from gemmdb.cublaslt import library
from gemmdb.cublaslt.library import Algorithm
from gemmdb.cublaslt.matmul import Matmul
from gemmdb.cublaslt.shape import Matrix, Shape

log = logging.getLogger("gemmdb")
MAX_OPERATIONS = 64
"""The addresses of a bias and of scales that one call remembers. A program has a few; only one that moves them has
more."""
MAX_ROWS = 4096
"""The numbers of rows that one call prepares. For more, torch runs the GEMM."""
ITEM_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "int8": 1, "int32": 4, "fp8_e4m3": 1, "fp8_e5m2": 1}

Launch = Callable[..., Any]
"""launch(a, b, out, stream, workspace=None, *extras): tensors, whose storage the operands and the shape's `extras` are
in, and the number of a CUDA stream."""


class Refused(Exception):
    """This process cannot run an algorithm."""


def checked(shape: Shape, device: int, attributes: Mapping[str, int]) -> tuple[Matmul, Algorithm, int]:
    """Return a shape's descriptors on the current device, the algorithm with these attributes, and the bytes of
    workspace that it needs. Raises Refused if the library is not loaded or does not support it."""
    if library.loaded() is None:
        raise Refused("no cuBLASLt is loaded")
    try:
        matmul = Matmul(shape, device)
        algorithm, needed = matmul.supported(attributes)
    except library.Error as error:
        raise Refused(f"cuBLASLt {library.version()} does not support the algorithm here: {error}") from error
    return matmul, algorithm, needed


def prepare(
    torch_function: Launch, device: int, attributes: Mapping[str, int], fields: Sequence[Any],
    offsets: Sequence[int] = (), workspace_bytes: int = 0,
) -> Launch:  # fmt: skip
    """Return a call for output code. Nothing is loaded before the first call.

    `torch_function`: computes the same if the library cannot: torch.mm, or another that takes `out`. `device`: its
    number; it is the current one at each call. `fields`: a Shape, as `dataclasses.astuple` returns it. `offsets`: the
    elements from the start of each given tensor to A, B and the `extras`; empty if all are 0. `workspace_bytes`: the
    size of the workspace that each call gets.
    """
    return _Call(torch_function, device, attributes, _shape(fields), offsets, workspace_bytes).launch


def prepare_rows(
    torch_function: Launch, device: int, attributes: Mapping[str, int], fields: Sequence[Any],
    offsets: Sequence[int] = (), workspace_bytes: int = 0,
) -> Launch:  # fmt: skip
    """Like `prepare`, for any number of rows: the call takes it before its other arguments. Rows of A follow each
    other, so that nothing else depends on it."""
    shape = _shape(fields)
    calls: dict[int, Launch] = {}

    def launch(rows: int, *arguments: Any) -> None:
        call = calls.get(rows)
        if call is None:
            made = _Call(torch_function, device, attributes, replace(shape, m=rows), offsets, workspace_bytes)
            made.refused = len(calls) >= MAX_ROWS
            call = made.launch if made.refused else calls.setdefault(rows, made.launch)
        call(*arguments)

    return launch


def _shape(fields: Sequence[Any]) -> Shape:
    m, n, k, a, b, out, *others = fields
    return Shape(m, n, k, Matrix(*a), Matrix(*b), Matrix(*out), *others)


class _Call:
    """One call, prepared when it is first launched. Slots, and an address ready for each constant argument: the time of
    a launch is that of the host where GEMMs are small."""

    __slots__ = (
        "a_offset", "algorithm", "alive", "alpha", "attributes", "b_offset", "beta", "device", "extra_offsets",
        "function", "handle", "left", "matmul", "matrix_bias", "offsets", "operation", "operations", "out", "refused",
        "right", "shape", "size", "torch_function",
    )  # fmt: skip

    def __init__(
        self, torch_function: Launch, device: int, attributes: Mapping[str, int], shape: Shape,
        offsets: Sequence[int], size: int,
    ) -> None:  # fmt: skip
        dtypes = (shape.a.dtype, shape.b.dtype, *(extra.dtype for extra in shape.extras.values()))
        self.torch_function, self.device, self.attributes = torch_function, device, attributes
        self.shape, self.offsets, self.size = shape, tuple(offsets) or (0,) * len(dtypes), size
        self.a_offset, self.b_offset, *self.extra_offsets = (
            offset * ITEM_BYTES[dtype] for offset, dtype in zip(self.offsets, dtypes, strict=True)
        )
        self.function: Launch | None = None
        self.refused, self.matrix_bias = False, shape.matrix_bias
        self.operations: dict[tuple[int, ...], c_void_p] = {}
        self.alive: list[object] = []

    def launch(self, a: Any, b: Any, out: Any, stream: int, workspace: Any = None, *extras: Any) -> None:
        """Enqueue the GEMM on a stream."""
        function = self.function or self._prepared()
        if function is None:
            self._with_torch(a, b, out, extras)
            return
        operation, layout = self.operation, self.out
        address = added = out.data_ptr()
        if self.matrix_bias:
            added = extras[0].data_ptr() + self.extra_offsets[0]
        elif extras:
            places = tuple([one.data_ptr() + offset for one, offset in zip(extras, self.extra_offsets, strict=True)])
            operation = self.operations.get(places) or self._remember(places)
        status = function(
            self.handle, operation, self.alpha, b.data_ptr() + self.b_offset, self.left, a.data_ptr() + self.a_offset,
            self.right, self.beta, added, layout, address, layout, self.algorithm,
            None if workspace is None else workspace.data_ptr(), self.size, stream,
        )  # fmt: skip
        if status:
            self._refuse(f"cublasLtMatmul: cublasStatus {status}")
            self._with_torch(a, b, out, extras)

    def _prepared(self) -> Launch | None:
        """Prepare the call. Return the library's function, None if it does not run the algorithm. Threads that come
        here at once each prepare their own, because a lock could be held in a fork."""
        if self.refused:
            return None
        try:
            matmul, algorithm, needed = checked(self.shape, self.device, self.attributes)
        except Refused as error:
            self._refuse(str(error))
            return None
        if needed > self.size:
            self._refuse(f"cuBLASLt {library.version()} needs {needed} bytes of workspace, not {self.size}")
            return None
        loaded = library.loaded()
        assert loaded is not None
        self.matmul = matmul
        # An address does not keep what it is of. Another thread may have prepared the call, too.
        self.alive.append((matmul, algorithm))
        self.handle, self.operation = matmul.handle, matmul.operation
        self.left, self.right, self.out = matmul.left, matmul.right, matmul.out
        self.alpha, self.beta, self.algorithm = (
            cast(byref(one), c_void_p) for one in (matmul.alpha, matmul.beta, algorithm)
        )
        self.function = loaded.cublasLtMatmul  # Last, because it says that the others are there.
        return self.function

    def _refuse(self, reason: str) -> None:
        _warn(reason)
        self.refused, self.function = True, None

    def _remember(self, places: tuple[int, ...]) -> c_void_p:
        """Return a descriptor with the extras at these addresses. One that another thread may be using never changes;
        it lives until its last call has returned."""
        if len(self.operations) >= MAX_OPERATIONS:
            self.operations.clear()
        return self.operations.setdefault(places, self.matmul.operation_with(places))

    def _with_torch(self, a: Any, b: Any, out: Any, extras: Sequence[Any]) -> None:
        """Run the GEMM with torch's function, on the current stream."""
        shape, (a_offset, b_offset, *offsets) = self.shape, self.offsets
        batch = (shape.batch,) if out.dim() == 3 else ()
        call_torch(
            self.torch_function, shape, _view(a, shape.a, batch, (shape.m, shape.k), a_offset),
            _view(b, shape.b, batch, (shape.k, shape.n), b_offset),
            [
                tensor.as_strided(extra.sizes, extra.strides, tensor.storage_offset() + offset)
                for tensor, extra, offset in zip(extras, shape.extras.values(), offsets, strict=True)
            ],
            out,
        )  # fmt: skip


def call_torch(function: Launch, shape: Shape, a: Any, b: Any, extras: Sequence[Any], out: Any) -> None:
    """Run a shape's GEMM with torch's function for it, into `out`. `extras`: in the shape's order."""
    if not shape.scales:
        function(*extras, a, b, out=out)
        return
    *bias, scale_a, scale_b = extras
    function(
        a, b, scale_a, scale_b, bias=bias[0] if bias else None, out_dtype=out.dtype, use_fast_accum=shape.fast, out=out
    )


@functools.cache
def _warn(reason: str) -> None:
    """Cached, so each reason is reported once."""
    log.warning("gemmdb: ATen runs a GEMM that was compiled for cuBLASLt: %s", reason)


def _view(tensor: Any, matrix: Matrix, batch: tuple[int, ...], sizes: tuple[int, int], offset: int) -> Any:
    strides = (matrix.leading, 1) if matrix.by_rows else (1, matrix.leading)
    apart = (matrix.batch_stride,) if batch else ()
    return tensor.as_strided((*batch, *sizes), (*apart, *strides), tensor.storage_offset() + offset)
