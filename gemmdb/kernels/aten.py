"""ATen's kernels: the reference, also as default mode runs it with symbolic rows, the CPU's weight-only GEMM, and the
reference on padded operands."""

from __future__ import annotations

from collections.abc import Collection

from gemmdb.kernels import rules
from gemmdb.kernels.kernel import ConfigLike, Kernel, OneOf
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.key.ops import OPS
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected


def _int8pack(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    # Measured on torch 2.13, AVX-512: K = 8 gives garbage, 500 to 520 a segmentation fault, 496, 512 and 528 are right.
    if "k" in symbolic or problem.k % 16:
        return Rejected("ATen's CPU kernel reads K in vectors of 16 without a tail")
    return None


def _padded(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    if symbolic:
        return Rejected("how much is padded is fixed when the graph is compiled")
    if rejected := rules.reject_empty(problem):
        return rejected
    if problem.scalars == "beta0":
        return Rejected("the bias is added afterwards, multiplied by beta, and NaN times 0 is NaN")
    if any(operand.layout.order not in rules.STEPPED for operand in (problem.a, problem.b)):
        return Rejected("only operands with rows that follow each other are padded")
    view = config.values.get("output") == "view"
    if view and problem.spec.integer:
        return Rejected("Inductor pads no integers")
    if padded_sizes(problem, int(config.values["multiple"]), view) == (problem.m, problem.n, problem.k):
        return Rejected("there is nothing to pad")
    return None


def _dequantised(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    if rejected := rules.reject_empty(problem):
        return rejected
    if problem.int4 is not None and not problem.int4.inner:
        return Rejected("the program dequantises the weight itself")
    return None


def padded_sizes(problem: Problem, multiple: int, every: bool = False) -> tuple[int, int, int]:
    """M, N and K of the padded GEMM. A size is rounded up if it is the row length, in memory, of an operand or of the
    output; with `every`, as Inductor's own pass does, each size but 1."""
    sizes = (problem.m, problem.n, problem.k)
    if every:
        m, n, k = (size if size == 1 else -(-size // multiple) * multiple for size in sizes)
        return m, n, k
    whole = tuple(-(-size // multiple) * multiple for size in sizes)
    a_rows, b_rows = (operand.layout.order.startswith("row") for operand in (problem.a, problem.b))
    return (problem.m if a_rows else whole[0], whole[1], whole[2] if a_rows or not b_rows else problem.k)


def misaligned(problem: Problem) -> bool:
    """Whether some rows of an operand or of the output do not start at multiples of 16 bytes."""
    vector = VECTOR_BYTES // ITEM_SIZES[problem.a.dtype]
    return padded_sizes(problem, vector) != (problem.m, problem.n, problem.k)


def stored_apart(problem: Problem) -> bool:
    """Whether rows of the output do not start at multiples of 16 bytes. cuBLAS then has no fast kernel: N = 30522 takes
    2.6 times as long as N = 30528 (bf16, 2048 rows, K = 768, H200), and Inductor's default mode pads such GEMMs."""
    return problem.m > 1 and problem.n * ITEM_SIZES[problem.out] % VECTOR_BYTES != 0


DEFAULT = Kernel("aten", "default", tuple(OPS), ("cpu", "cuda"), 0)
"""What Inductor's default mode runs without gemmdb: the reference of every measurement."""
SYMBOLIC_ROWS = Kernel("aten", "symbolic_rows", ("mm", "addmm"), ("cpu",), 1, measured_only=True)
"""What default mode runs without gemmdb if the number of rows is symbolic, where that is another function: the
reference of a range. See `gemmdb.kernels.default_mode`."""
INT8PACK = Kernel("aten", "int8pack_mm", ("mixed_mm",), ("cpu",), 1, rejection=_int8pack)
"""The weight-only GEMM of ATen; bf16 activations, int8 weight, per-channel scale."""
DEQUANTISED = Kernel(
    "aten", "dequantised", ("mixed_mm",), ("cuda",), 1, rejection=_dequantised, emitted=True, int4=True
)
"""ATen's GEMM with an int4 weight that a kernel dequantised: for a weight that a program multiplies by
`_weight_int4pack_mm`. Where the program itself dequantises, that is the reference."""
PADDED = Kernel(
    "aten", "padded", ("mm", "addmm", "int_mm"), ("cuda",), 1, {"multiple": OneOf((4, 8, 16, 64))},
    {"output": OneOf(("view",))}, rejection=_padded, emitted=True,
)  # fmt: skip
"""ATen on operands padded with zeros to multiples of `multiple` elements. For rows that do not start at multiples of 16
bytes. With `output=view`, as Inductor's own pass pads: see `gemmdb.kernels.default_mode`."""
