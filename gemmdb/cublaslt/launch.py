"""A prepared call of cuBLASLt for output code: one algorithm, fixed sizes, fixed layouts.

Everything constant is prepared at the first call, so that a call reads a few addresses and enters the library. If the
library of this process cannot run the algorithm, torch's own function computes the same product.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_void_p
from typing import Any

from gemmdb.cublaslt import library
from gemmdb.cublaslt.library import Algorithm
from gemmdb.cublaslt.matmul import Matmul, Matrix, Shape

log = logging.getLogger("gemmdb")
MAX_WORKSPACE = 32 << 20
"""Bytes. cuBLAS's own workspace has as many on Hopper."""
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
        algorithm = matmul.algorithm(attributes)
        needed = int(matmul.check(algorithm).workspace)
    except library.Error as error:
        raise Refused(f"cuBLASLt {library.version()} does not support the algorithm here: {error}") from error
    return matmul, algorithm, needed


def prepare(
    torch_function: Launch, device: int, attributes: Mapping[str, int], fields: Sequence[Any],
    offsets: tuple[int, int, int] = (0, 0, 0), workspace_bytes: int = 0,
) -> Launch:  # fmt: skip
    """Return a call for output code. Nothing is loaded before the first call.

    `torch_function`: computes the product if the library cannot: torch.mm, or another that takes `out`. `device`: its
    number; it is the current one at each call. `fields`: a Shape, as `dataclasses.astuple` returns it. `offsets`: the
    elements from the start of each given tensor to A, B and the bias. `workspace_bytes`: the size of the workspace that
    each call gets.
    """
    shape = _shape(*fields)
    with_torch = functools.partial(_with_torch, torch_function, shape, offsets)
    run: Launch | None = None

    def launch(a: Any, b: Any, out: Any, stream: int, workspace: Any = None, bias: Any = None) -> None:
        nonlocal run
        # Threads that come here at once each prepare their own; a lock could be held in a fork.
        if run is None:
            try:
                run = _direct(shape, device, attributes, offsets, workspace_bytes)
            except Refused as error:
                _warn(str(error))
                run = with_torch
        status = run(a, b, out, stream, workspace, bias)
        if status:
            _warn(f"cublasLtMatmul: cublasStatus {status}")
            run = with_torch
            run(a, b, out, stream, workspace, bias)

    return launch


def _shape(m: int, n: int, k: int, a: Sequence[Any], b: Sequence[Any], out: Sequence[Any], *others: Any) -> Shape:
    return Shape(m, n, k, Matrix(*a), Matrix(*b), Matrix(*out), *others)


@functools.cache
def _warn(reason: str) -> None:
    """Cached, so each reason is reported once."""
    log.warning("gemmdb: ATen computes a product that was compiled for cuBLASLt: %s", reason)


def _direct(
    shape: Shape, device: int, attributes: Mapping[str, int], offsets: tuple[int, int, int], size: int
) -> Launch:
    """Return the call of the library. It returns the status. Raises Refused."""
    matmul, algorithm, needed = checked(shape, device, attributes)
    if needed > size:
        raise Refused(f"cuBLASLt {library.version()} needs {needed} bytes of workspace, not {size}")
    loaded = library.loaded()
    assert loaded is not None
    function, handle = loaded.cublasLtMatmul, matmul.handle
    left, right, layout, chosen = matmul.left, matmul.right, matmul.out, byref(algorithm)
    alpha, beta = byref(matmul.alpha), byref(matmul.beta)
    a_offset, b_offset, bias_offset = _bytes(shape, offsets)
    plain = matmul.operation
    biased: dict[int, c_void_p] = {}

    def run(a: Any, b: Any, out: Any, stream: int, workspace: Any, bias: Any) -> int:
        operation = plain
        if bias is not None:
            address = bias.data_ptr() + bias_offset
            operation = biased.get(address) or _remember(biased, matmul, address)
        address = out.data_ptr()
        status: int = function(
            handle, operation, alpha, b.data_ptr() + b_offset, left, a.data_ptr() + a_offset, right, beta, address,
            layout, address, layout, chosen, None if workspace is None else workspace.data_ptr(), size, stream,
        )  # fmt: skip
        return status

    return run


def _bytes(shape: Shape, offsets: tuple[int, int, int]) -> tuple[int, int, int]:
    a, b, bias = offsets
    return (
        a * ITEM_BYTES[shape.a.dtype], b * ITEM_BYTES[shape.b.dtype], bias * ITEM_BYTES.get(shape.bias, 0)
    )  # fmt: skip


def _remember(biased: dict[int, c_void_p], matmul: Matmul, address: int) -> c_void_p:
    """Return a descriptor with the bias at this address. One that another thread may be using never changes; it lives
    until its last call has returned."""
    if len(biased) >= MAX_BIASES:
        biased.clear()
    return biased.setdefault(address, matmul.operation_with(address))


def _with_torch(
    function: Launch, shape: Shape, offsets: tuple[int, int, int], a: Any, b: Any, out: Any, stream: int,
    workspace: Any, bias: Any,
) -> int:  # fmt: skip
    """Compute the product with torch's function, on the current stream. Returns 0, the status of success."""
    a_offset, b_offset, bias_offset = offsets
    batch = (shape.batch,) if out.dim() == 3 else ()
    operands = [
        _view(a, shape.a, batch, (shape.m, shape.k), a_offset),
        _view(b, shape.b, batch, (shape.k, shape.n), b_offset),
    ]
    if bias is not None:
        operands.insert(0, bias.as_strided((shape.n,), (1,), bias.storage_offset() + bias_offset))
    function(*operands, out=out)
    return 0


def _view(tensor: Any, matrix: Matrix, batch: tuple[int, ...], sizes: tuple[int, int], offset: int) -> Any:
    strides = (matrix.leading, 1) if matrix.by_rows else (1, matrix.leading)
    apart = (matrix.batch_stride,) if batch else ()
    return tensor.as_strided((*batch, *sizes), (*apart, *strides), tensor.storage_offset() + offset)
