"""What Inductor's default mode runs for a GEMM: ATen, on padded operands where its padding pass finds that faster; on a
CPU the weight-only kernel where its pattern finds an int8 weight, and oneDNN instead of MKL where M is symbolic.

The padding pass (`torch._inductor.fx_passes.pad_mm`) pads M, N and K to the next 16 bytes of elements, and its result
is a view of the padded output. It compares both forms with a benchmark of its own, except where it takes the GEMM for
bound by memory, so the form that a GEMM gets is known only at compile time. The reference of a verdict has to be the
better of both.
"""

from __future__ import annotations

from collections.abc import Collection

from gemmdb.kernels.aten import PADDED, SYMBOLIC_ROWS, misaligned
from gemmdb.kernels.config import Config
from gemmdb.kernels.rules import shallow
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES, Layout
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


def packs_int8(problem: Problem, symbolic: Collection[str] = ()) -> bool:
    """Whether default mode on a CPU runs a GEMM with an int8 weight as `_weight_int8pack_mm`, and that is safe.
    `symbolic`: the names of its symbolic sizes.

    Its pattern (`torch._inductor.fx_passes.quantization`, the same in torch 2.11 to 2.14, with and without freezing)
    wants bf16 activations and a bf16 scale after the GEMM. It does not look at layouts, but the kernel fails or crashes
    on transposed activations, on a weight that is not a dense [N, K], and on rows of either that do not start at
    multiples of 16 bytes. So K has to be fixed: with K = 8, the kernel ends the process.
    """
    if "k" in symbolic:
        return False
    a, b = problem.a, problem.b
    if problem.op != "mixed_mm" or problem.int4 is not None or problem.fusion != "scale" or problem.empty:
        return False
    rows = a.layout.order in ("row", "row-padded") and a.layout.align * ITEM_SIZES[a.dtype] == VECTOR_BYTES
    return (a.dtype, b.dtype) == ("bf16", "int8") and rows and b.layout == Layout("col", VECTOR_BYTES)


def symbolic_form(problem: Problem) -> Config | None:
    """Return the config whose time is that of default mode for this problem as one size of a symbolic M; None where it
    runs the same function as for a fixed M.

    On a CPU, Inductor packs a constant fp32 weight for MKL if M is fixed, else for oneDNN
    (`torch._inductor.fx_passes.mkldnn_fusion`, the same in torch 2.11 to 2.15). A symbolic M is at least 2.
    """
    differs = problem.op in SYMBOLIC_ROWS.ops and problem.constant and problem.a.dtype == "fp32" and problem.m > 1
    return Config.of("aten", "symbolic_rows") if differs and problem.numerics.fp32 == "ieee" else None


def returns_view(config: Config) -> bool:
    """Whether the output of a config is a view of padded rows."""
    return config.values.get("output") == "view"
