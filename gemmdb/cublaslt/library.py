"""The cuBLASLt that this process has loaded, and the functions of its C API that gemmdb calls.

Structures and constants are those of `cublasLt.h` (cuBLAS 12 and 13): opaque structures of fixed size, and enumerations
that NVIDIA only extends. https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

NAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
"""Sonames by major version. torch's CUDA builds link to one of them."""
DTYPES = {"fp32": 0, "fp64": 1, "fp16": 2, "int8": 3, "int32": 10, "bf16": 14, "fp8_e4m3": 28, "fp8_e5m2": 29}
"""cudaDataType of each dtype."""
COMPUTE = {"fp32": 68, "int32": 72}
"""cublasComputeType of each accumulator dtype: CUBLAS_COMPUTE_32F and CUBLAS_COMPUTE_32I."""
DESCRIPTION = {
    "transa": 3, "transb": 4, "epilogue": 7, "bias_pointer": 8, "a_scale_pointer": 17, "b_scale_pointer": 18,
    "fast_accum": 25, "bias_type": 26, "a_scale_mode": 31, "b_scale_mode": 32,
}  # fmt: skip
"""cublasLtMatmulDescAttributes_t."""
SCALE_MODES = {"scalar": 0, "outer_vector": 3, "vector_128": 4, "block_128x128": 5}
"""cublasLtMatmulMatrixScale_t. Those after the first came with cuBLAS 12.9."""
LAYOUT = {"rows": 2, "columns": 3, "ld": 4, "batch": 5, "batch_stride": 6}
"""cublasLtMatrixLayoutAttribute_t."""
PREFERENCE = {"workspace": 1, "align_a": 5, "align_b": 6, "align_c": 7, "align_d": 8}
"""cublasLtMatmulPreferenceAttributes_t."""
CONFIG: dict[str, tuple[int, Any]] = {
    "algo": (0, c_int32), "tile": (1, c_uint32), "split_k": (2, c_int32), "reduction": (3, c_uint32),
    "swizzle": (4, c_uint32), "custom": (5, c_uint32), "stages": (6, c_uint32), "inner": (7, ctypes.c_uint16),
    "cluster": (8, ctypes.c_uint16),
}  # fmt: skip
"""cublasLtMatmulAlgoConfigAttributes_t with the C type of each value: together, they name an algorithm."""
EPILOGUES = {"": (1, 4), "relu": (2, 6), "gelu_tanh": (32, 36)}
"""cublasLtEpilogue_t of each activation, without and with a bias before it. cuBLASLt's GELU is the tanh form."""


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = [("data", c_uint64 * 8)]


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", Algorithm), ("workspace", c_size_t), ("state", c_int32), ("waves", c_float),
        ("reserved", c_int32 * 4),
    ]  # fmt: skip


class Error(Exception):
    """cuBLASLt returned a status other than success. `status`: a cublasStatus_t."""

    def __init__(self, function: str, status: int) -> None:
        super().__init__(f"{function}: cublasStatus {status}")
        self.status = status


def loaded() -> ctypes.CDLL | None:
    """The cuBLASLt in this process, None before torch has loaded it. Never loads another copy."""
    if not _found:
        for name in NAMES:
            try:
                _found.append(_declared(ctypes.CDLL(name, mode=ctypes.RTLD_LOCAL | _NOLOAD)))
                break
            except OSError:
                continue
    return _found[0] if _found else None


_found: list[ctypes.CDLL] = []
"""The library, once it is loaded: it may be asked for before."""
_NOLOAD = 4
"""RTLD_NOLOAD of glibc."""
_HANDLE_ARGUMENTS: dict[str, Sequence[Any]] = {
    "cublasLtCreate": (c_void_p,),
    "cublasLtMatmulDescCreate": (c_void_p, c_int, c_int),
    "cublasLtMatmulDescDestroy": (c_void_p,),
    "cublasLtMatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatrixLayoutCreate": (c_void_p, c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutDestroy": (c_void_p,),
    "cublasLtMatrixLayoutSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulPreferenceCreate": (c_void_p,),
    "cublasLtMatmulPreferenceDestroy": (c_void_p,),
    "cublasLtMatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulAlgoGetHeuristic": (*(c_void_p,) * 7, c_int, c_void_p, c_void_p),
    "cublasLtMatmulAlgoInit": (c_void_p, *(c_int,) * 6, c_int, c_void_p),
    "cublasLtMatmulAlgoCheck": (*(c_void_p,) * 8,),
    "cublasLtMatmulAlgoConfigSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulAlgoConfigGetAttribute": (c_void_p, c_int, c_void_p, c_size_t, c_void_p),
    "cublasLtMatmul": (*(c_void_p,) * 14, c_size_t, c_void_p),
}


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, arguments in _HANDLE_ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_int
    library.cublasLtGetVersion.restype = c_size_t
    return library


def call(name: str, *arguments: Any) -> None:
    """Call a function of the loaded cuBLASLt. Raises Error unless it succeeds."""
    library = loaded()
    assert library is not None
    status = getattr(library, name)(*arguments)
    if status:
        raise Error(name, status)


def version() -> int:
    """cublasLtGetVersion: 130100 for 13.1.0; 0 if no cuBLASLt is loaded."""
    library = loaded()
    return 0 if library is None else int(library.cublasLtGetVersion())


@functools.cache
def capability(device: int) -> int:
    """The compute capability of a GPU that torch uses, 90 for sm90; 0 if no driver is loaded."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_LOCAL | _NOLOAD)
    except OSError:
        return 0
    major, minor = c_int(), c_int()
    failed = driver.cuDeviceGetAttribute(byref(major), _MAJOR, device)
    failed = failed or driver.cuDeviceGetAttribute(byref(minor), _MINOR, device)
    return 0 if failed else 10 * major.value + minor.value


_MAJOR, _MINOR = 75, 76
"""CUdevice_attribute."""


@functools.cache
def handle(device: int) -> c_void_p:
    """A handle for the current device, whose number is `device`."""
    made = c_void_p()
    call("cublasLtCreate", byref(made))
    return made
