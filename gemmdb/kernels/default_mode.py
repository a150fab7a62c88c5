"""What Inductor's default mode runs for a GEMM: ATen, on padded operands where its padding pass finds that faster.

The pass (`torch._inductor.fx_passes.pad_mm`) pads M, N and K to the next 16 bytes of elements, and its result is a view
of the padded output. It compares both forms with a benchmark of its own, except where it takes the GEMM for bound by
memory, so the form that a GEMM gets is known only at compile time. The reference of a verdict has to be the better of
both.
"""

from __future__ import annotations

from gemmdb.kernels.aten import PADDED, misaligned
from gemmdb.kernels.config import Config
from gemmdb.kernels.rules import shallow
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.key.problem import Problem

OPS = ("mm", "addmm", "bmm")
DTYPES = ("bf16", "fp16", "fp32")


def may_pad(problem: Problem) -> bool:
    """Whether default mode may run a GEMM of misaligned rows on padded operands.

    A GEMM does less than K multiplications for each element that it reads or writes. With a shallow K of 2-byte
    elements, the pass takes it for bound by memory on every GPU, unless K is the largest size.
    """
    if problem.op not in OPS or problem.a.dtype not in DTYPES:
        return False
    vector = VECTOR_BYTES // ITEM_SIZES[problem.a.dtype]
    if not (problem.m % vector or problem.n % vector or problem.k % vector) or not misaligned(problem):
        return False
    return not (shallow(problem) and ITEM_SIZES[problem.a.dtype] == 2 and problem.k <= max(problem.m, problem.n))


def padded_form(problem: Problem) -> Config | None:
    """Return the config whose code is that of default mode when it pads; None if no config is.

    Elementwise work after the GEMM reads the padded rows and stores dense ones, so with an epilogue the padding that
    copies its output is the same.
    """
    if problem.op not in PADDED.ops or not may_pad(problem):
        return None
    vector = VECTOR_BYTES // ITEM_SIZES[problem.a.dtype]
    if problem.fusion != "none" and vector == 8:
        return Config.of("aten", "padded", multiple=vector)
    return Config.of("aten", "padded", multiple=vector, output="view")


def returns_view(config: Config) -> bool:
    """Whether the output of a config is a view of padded rows."""
    return config.values.get("output") == "view"
