"""cuBLASLt's algorithms, chosen by their attributes instead of by cuBLAS's heuristic.

torch's matrix multiplications run the first choice of that heuristic. The algorithms are those of the library that
torch has loaded, so nothing is compiled, and where K is not split the results have the same bits as ATen's.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping

from gemmdb.kernels import rules
from gemmdb.kernels.kernel import ConfigLike, Domain, IntRange, Kernel, OneOf
from gemmdb.key.device import Device
from gemmdb.key.epilogue import LIGHT, Epilogue
from gemmdb.key.layout import contiguous
from gemmdb.key.ops import SCALE_BLOCK
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected

OPS = ("mm", "addmm", "bmm", "int_mm", "scaled_mm")
DTYPES = ("bf16", "fp16", "int8")
SCALES_AT_ONCE = 4
"""cuBLASLt reads the scales of 128 x 128 blocks along K by fours, and torch's releases differ in how they pad them."""
ACTIVATIONS = {"relu": LIGHT.text, "gelu_tanh": Epilogue("math").text}
"""The activations that cuBLASLt computes, each with its class of epilogues: ReLU, and the tanh form of GELU."""
PACKAGES = ("nvidia-cublas", "nvidia-cublas-cu12")
"""The packages that torch's wheels take the library from, by CUDA major version."""
MAX_SIDE = 2**31 - 1


def _rejection(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    if rejected := rules.reject_empty(problem):
        return rejected
    if symbolic and (rejected := _symbolic_rejection(problem, symbolic)):
        return rejected
    if rejected := _scaled_rejection(problem, device) if problem.scaled else _plain_rejection(problem):
        return rejected
    if problem.scalars != "unit":
        return Rejected("alpha and beta are not 1")
    bias = problem.bias
    if bias is not None and (bias.kind == "column" or bias.dtype != problem.out):
        return Rejected("cuBLASLt adds a matrix, or one number per column, of the output's dtype")
    if bias is not None and bias.align < contiguous(1, problem.n, bias.dtype).align:
        return Rejected("cuBLASLt's algorithms read a bias whose rows start at multiples of 16 bytes")
    if any(operand.layout.order not in rules.STEPPED for operand in (problem.a, problem.b)):
        return Rejected("cuBLASLt takes operands with rows or columns that follow each other")
    if problem.m * problem.n * problem.k == 0 or max(problem.m, problem.n, problem.k) > MAX_SIDE:
        return Rejected("cuBLASLt counts rows and columns with 31 bits")
    return None


def _symbolic_rejection(problem: Problem, symbolic: Collection[str]) -> Rejected | None:
    """A call is prepared for each number of rows that it sees, so nothing else may depend on that number."""
    if set(symbolic) != {"m"}:
        return Rejected("an algorithm is prepared for a fixed N and K")
    if problem.batch > 1 or problem.spec.batched or not problem.a.row_major:
        return Rejected("an algorithm is prepared for matrices at fixed distances")
    if problem.scales not in ("", "tensor"):
        return Rejected("an algorithm is prepared for a fixed number of scales")
    return None


def _plain_rejection(problem: Problem) -> Rejected | None:
    if problem.a.dtype not in DTYPES or problem.a.dtype != problem.b.dtype:
        return Rejected(f"cuBLASLt's algorithms are measured for operands of {', '.join(DTYPES)}")
    if problem.fusion == "scale":
        return Rejected("cuBLASLt does not scale its columns")
    if problem.out != ("int32" if problem.spec.integer else problem.a.dtype):
        return Rejected(f"the output of {problem.a.dtype} operands is not {problem.out}")
    return None


def _scaled_rejection(problem: Problem, device: Device) -> Rejected | None:
    """Which modes of scales there are for a GPU, the loaded library says."""
    if rejected := rules.reject_fp8(problem, device):
        return rejected
    if problem.scales != "block":
        return None
    if problem.numerics.fast:
        return Rejected("sums of blocks are always added in fp32")
    if problem.m % SCALES_AT_ONCE or -(-problem.k // SCALE_BLOCK) % SCALES_AT_ONCE:
        return Rejected(f"cuBLASLt reads block scales {SCALES_AT_ONCE} at a time")
    return None


def _activation_rejection(
    config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]
) -> Rejected | None:  # fmt: skip
    activation = activation_of(config)
    if problem.bias is not None and problem.bias.kind == "full":
        return Rejected("cuBLASLt computes no activation of a sum with a matrix")
    if problem.fusion != ACTIVATIONS[activation]:
        return Rejected(f"{activation} is an epilogue of the class {ACTIVATIONS[activation]}")
    return _rejection(config, problem, device, symbolic)


def activation_of(config: ConfigLike) -> str:
    """The activation that the kernel computes, one of ACTIVATIONS; empty for all other kernels."""
    return str(config.values.get("activation", ""))


def attributes(config: ConfigLike) -> dict[str, int]:
    """The attributes of a config's algorithm, by the names of `gemmdb.cublaslt.library.CONFIG`."""
    return {name: int(value) for name, value in config.values.items() if name in _ATTRIBUTES}


@functools.cache
def release() -> str:
    """The release of the cuBLAS package, `cublas13.1`: an algorithm's attributes mean the same within it. Empty if the
    package is not installed. It only reads metadata and loads no library."""
    from importlib import metadata  # Imported where it is used: it takes longer than all of gemmdb's own modules.

    for package in PACKAGES:
        try:
            major, minor, *_ = metadata.version(package).split(".")
        except (metadata.PackageNotFoundError, ValueError):
            continue
        return f"cublas{major}.{minor}"
    return ""


_ATTRIBUTES: Mapping[str, Domain] = {
    "algo": IntRange(0, 4096), "tile": IntRange(0, 65_535), "stages": IntRange(0, 65_535),
    "split_k": IntRange(1, 256), "reduction": OneOf((0, 2)), "swizzle": IntRange(0, 16),
    "custom": IntRange(0, 65_535), "inner": IntRange(0, 4096), "cluster": IntRange(0, 4096),
}  # fmt: skip
MATMUL = Kernel(
    "cublaslt", "matmul", OPS, ("cuda",), 1, _ATTRIBUTES, splits=("split_k",), rejection=_rejection, digest=release,
    library=True, extern=True,
)  # fmt: skip
"""`cublasLtMatmul` with one algorithm, named by the attributes of `gemmdb.cublaslt.library.CONFIG`, whose values are
the identifiers in NVIDIA's `cublasLt.h`. A split K has partial sums of the accumulator's dtype (`reduction` 2)."""
MATMUL_ACTIVATION = Kernel(
    "cublaslt", "matmul_activation", ("mm", "addmm"), ("cuda",), 1,
    {**_ATTRIBUTES, "activation": OneOf(tuple(ACTIVATIONS))}, splits=("split_k",), rejection=_activation_rejection,
    digest=release, emitted=True, library=True,
)  # fmt: skip
"""`cublasLtMatmul` that also computes the activation after the GEMM, on the accumulator, as fused epilogues of
templates do. The class of an epilogue covers others, so a Query names the activation. Only code that Inductor emits has
the whole epilogue to compare with."""
