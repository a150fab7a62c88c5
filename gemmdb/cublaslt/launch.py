"""A prepared call of cuBLASLt for output code: one algorithm, fixed sizes, fixed layouts.

Everything constant is prepared at the first call, so that a call reads a few addresses and enters the library. If the
library of this process cannot run the algorithm, torch's own function computes the same product.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_void_p, cast
from typing import Any

from gemmdb.cublaslt import library
from gemmdb.cublaslt.library import Algorithm
from gemmdb.cublaslt.matmul import Matmul, Matrix, Shape

log = logging.getLogger("gemmdb")
MAX_BIASES = 64
"""The addresses of a bias that one call remembers. A program has a few; only one that moves its bias has more."""
ITEM_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "int8": 1, "int32": 4}

Launch = Callable[..., Any]
"""launch(a, b, out, stream, workspace=None, bias=None): tensors, whose storage the operands are in, and the number of a
CUDA stream."""


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
    offsets: tuple[int, int, int] = (0, 0, 0), workspace_bytes: int = 0,
) -> Launch:  # fmt: skip
    """Return a call for output code. Nothing is loaded before the first call.

    `torch_function`: computes the same if the library cannot: torch.mm, or another that takes `out`. `device`: its
    number; it is the current one at each call. `fields`: a Shape, as `dataclasses.astuple` returns it. `offsets`: the
    elements from the start of each given tensor to A, B and the bias. `workspace_bytes`: the size of the workspace that
    each call gets.
    """
    m, n, k, a, b, out, *others = fields
    shape = Shape(m, n, k, Matrix(*a), Matrix(*b), Matrix(*out), *others)
    return _Call(torch_function, device, attributes, shape, offsets, workspace_bytes).launch


class _Call:
    """One call, prepared when it is first launched. Slots, and an address ready for each constant argument: the time of
    a launch is that of the host where GEMMs are small."""

    __slots__ = (
        "a_offset", "algorithm", "alive", "alpha", "attributes", "b_offset", "beta", "bias_offset", "biased", "device",
        "function", "handle", "left", "matmul", "offsets", "operation", "out", "refused", "right", "shape", "size",
        "torch_function",
    )  # fmt: skip

    def __init__(
        self, torch_function: Launch, device: int, attributes: Mapping[str, int], shape: Shape,
        offsets: tuple[int, int, int], size: int,
    ) -> None:  # fmt: skip
        self.torch_function, self.device, self.attributes = torch_function, device, attributes
        self.shape, self.offsets, self.size = shape, offsets, size
        items = (shape.a.dtype, shape.b.dtype, shape.bias or shape.out.dtype)
        self.a_offset, self.b_offset, self.bias_offset = (
            offset * ITEM_BYTES[item] for offset, item in zip(offsets, items, strict=True)
        )
        self.function: Launch | None = None
        self.refused = False
        self.biased: dict[int, c_void_p] = {}
        self.alive: list[object] = []

    def launch(self, a: Any, b: Any, out: Any, stream: int, workspace: Any = None, bias: Any = None) -> None:
        """Enqueue the product on a stream."""
        function = self.function or self._prepared()
        if function is None:
            self._with_torch(a, b, out, bias)
            return
        operation = self.operation
        if bias is not None:
            place = bias.data_ptr() + self.bias_offset
            operation = self.biased.get(place) or self._remember(place)
        address, layout = out.data_ptr(), self.out
        status = function(
            self.handle, operation, self.alpha, b.data_ptr() + self.b_offset, self.left, a.data_ptr() + self.a_offset,
            self.right, self.beta, address, layout, address, layout, self.algorithm,
            None if workspace is None else workspace.data_ptr(), self.size, stream,
        )  # fmt: skip
        if status:
            self._refuse(f"cublasLtMatmul: cublasStatus {status}")
            self._with_torch(a, b, out, bias)

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

    def _remember(self, bias: int) -> c_void_p:
        """Return a descriptor with the bias at this address. One that another thread may be using never changes; it
        lives until its last call has returned."""
        if len(self.biased) >= MAX_BIASES:
            self.biased.clear()
        return self.biased.setdefault(bias, self.matmul.operation_with(bias))

    def _with_torch(self, a: Any, b: Any, out: Any, bias: Any) -> None:
        """Compute the product with torch's function, on the current stream."""
        shape, (a_offset, b_offset, bias_offset) = self.shape, self.offsets
        batch = (shape.batch,) if out.dim() == 3 else ()
        operands = [
            _view(a, shape.a, batch, (shape.m, shape.k), a_offset),
            _view(b, shape.b, batch, (shape.k, shape.n), b_offset),
        ]
        if bias is not None:
            operands.insert(0, bias.as_strided((shape.n,), (1,), bias.storage_offset() + bias_offset))
        self.torch_function(*operands, out=out)


@functools.cache
def _warn(reason: str) -> None:
    """Cached, so each reason is reported once."""
    log.warning("gemmdb: ATen computes a product that was compiled for cuBLASLt: %s", reason)


def _view(tensor: Any, matrix: Matrix, batch: tuple[int, ...], sizes: tuple[int, int], offset: int) -> Any:
    strides = (matrix.leading, 1) if matrix.by_rows else (1, matrix.leading)
    apart = (matrix.batch_stride,) if batch else ()
    return tensor.as_strided((*batch, *sizes), (*apart, *strides), tensor.storage_offset() + offset)
