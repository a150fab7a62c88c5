"""Rules of legality that several kernels share, each with its reason; `gemmdb.kernels.hardware` has the figures."""

from __future__ import annotations

import functools
from collections.abc import Callable

from gemmdb.kernels import hardware
from gemmdb.kernels.hardware import FIRST_FP8, HOPPER
from gemmdb.kernels.kernel import ConfigLike
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.key.operands import Operand
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected

STEPPED = ("row", "row-padded", "col", "col-padded")
"""Layout orders whose rows or columns follow each other at one distance."""
MAX_MATRICES = 65_535
"""The limit of the second and third dimension of a grid."""
FP8_MULTIPLE = 16
"""torch multiplies fp8 of K and N that are multiples of this."""
MAX_PROMOTED_K = 256
"""Without fast accumulation, the matrix unit sums at most this many products before they are added in fp32: 128 in
cuBLAS and CUTLASS, the depth of a tile in Triton's kernels."""
_CONVERTED = (90, 100)
"""Compute capabilities where Triton converts fp8 to fp16 in small tiles and sums in fp32. On others it uses fp8
instructions, and Ada's also keep few bits of a sum (SageAttention2, arXiv 2411.10958)."""
SizelessRule = Callable[[ConfigLike, Problem, Device], Rejected | None]
"""A rule that reads no size of the problem."""
_MAX_CLASSES, _MAX_CONFIGS = 64, 4096
"""The most classes of problems, and configs of each, that are remembered for a rule."""


def sizeless(rule: SizelessRule) -> SizelessRule:
    """The rule, with its results cached by config, op, family and device. A lookup checks twenty configs of one
    problem, and the next lookup the same configs at other sizes."""
    classes: dict[tuple[object, ...], dict[ConfigLike, Rejected | None]] = {}
    last: tuple[Problem | None, Device | None, dict[ConfigLike, Rejected | None]] = None, None, {}

    @functools.wraps(rule)
    def remembered(config: ConfigLike, problem: Problem, device: Device) -> Rejected | None:
        nonlocal last
        before, there, known = last
        if before is not problem or there is not device:
            key = problem.op, problem.family, device.key, tuple(device.figures.items())
            if key not in classes and len(classes) >= _MAX_CLASSES:
                classes.clear()
            known = classes.setdefault(key, {})
            last = problem, device, known
        try:
            return known[config]
        except KeyError:
            if len(known) >= _MAX_CONFIGS:
                known.clear()
            found = known[config] = rule(config, problem, device)
            return found

    return remembered


def operands(problem: Problem) -> tuple[tuple[Operand, tuple[int, int]], ...]:
    """A and B, each with its (rows, columns)."""
    return (problem.a, (problem.m, problem.k)), (problem.b, (problem.k, problem.n))


def in_full(problem: Problem) -> bool:
    """Whether fp32 is multiplied in full precision."""
    return problem.a.dtype == "fp32" and problem.numerics.fp32 == "ieee"


def without_matrix_unit(problem: Problem, device: Device) -> bool:
    """Whether ordinary instructions multiply: fp32 in full, and on Turing all but fp16 and int8."""
    turing = 0 < device.capability < hardware.FIRST_BF16
    return in_full(problem) or (turing and problem.a.dtype not in ("fp16", "int8"))


def by_rows_and_columns(problem: Problem) -> bool:
    """Whether K runs along memory in both operands. A single column without gaps counts as row-major."""
    column = problem.b.layout.order
    return problem.a.row_major and (column.startswith("col") or (problem.n, column) == (1, "row"))


def summed_in_full(device: Device, by_warp_groups: bool) -> bool:
    """Whether a Triton kernel that sums fp8 products in the matrix unit gets fp32 sums. Hopper's warp-group
    instructions keep about 14 bits (see `gemmdb.generators.measure.tolerance`)."""
    return device.capability in _CONVERTED and not by_warp_groups


def shallow(problem: Problem) -> bool:
    """Whether one step of a kernel multiplies the whole K. Such a GEMM takes the time of its loads and stores, and that
    of GEMMs with a larger K does not predict it."""
    # Most GEMMs are deep, so K is asked first.
    return 1 < problem.k <= hardware.SHALLOW_DEPTH and not (problem.spec.batched or problem.spec.grouped)


def reject_empty(problem: Problem) -> Rejected | None:
    """A GEMM with a size of zero has nothing to compute."""
    return Rejected("there is nothing to compute in a GEMM of size zero") if problem.empty else None


def reject_strides(problem: Problem) -> Rejected | None:
    """A kernel steps from row to row of each operand, with offsets of 32 bits."""
    for operand, (rows, columns) in operands(problem):
        if operand.layout.order not in STEPPED:
            return Rejected(f"a {operand.layout.order} operand has no row start to step by")
        if problem.batch * rows * columns >= hardware.LARGEST_OFFSET:
            return Rejected("offsets within an operand are 32 bits wide")
    return None


def reject_batch(problem: Problem) -> Rejected | None:
    """A dimension of the grid counts the matrices of a batch, and Inductor lowers some batches differently."""
    if problem.batch > MAX_MATRICES:
        return Rejected(f"the grid has room for {MAX_MATRICES} matrices")
    if problem.batch == 1:
        return Rejected("Inductor turns a batch of one into a plain GEMM on a GPU")
    return Rejected("Inductor multiplies elements where K is 1") if problem.k == 1 else None


def reject_fp8(problem: Problem, device: Device) -> Rejected | None:
    """Why torch has no kernel for fp8 operands on an NVIDIA GPU: what `at::_scaled_mm` checks
    (aten/src/ATen/native/cuda/ScaledBlas.cpp), and of groups `at::_scaled_grouped_mm` (GroupedBlas.cpp). Inductor has
    the same requirements for what it compiles. None for other dtypes."""
    if not problem.scaled:
        return None
    if device.capability < FIRST_FP8:
        return Rejected(f"{device.arch} cannot multiply fp8, which needs compute capability 8.9")
    if problem.spec.grouped and device.capability != HOPPER:
        return Rejected("torch's kernel for groups of fp8 runs only on Hopper")
    if problem.a.dtype == problem.b.dtype == "fp8_e5m2":
        return Rejected("cuBLAS cannot multiply two e5m2 operands")
    if problem.scales == "block" and device.capability != HOPPER:
        return Rejected("cuBLAS supports block scales only on Hopper")
    if problem.k % FP8_MULTIPLE or problem.n % FP8_MULTIPLE:
        return Rejected(f"torch needs K and N to be multiples of {FP8_MULTIPLE}")
    if any(operand.layout.align < VECTOR_BYTES for operand in (problem.a, problem.b)):
        return Rejected("cuBLAS needs fp8 rows that start at multiples of 16 bytes")
    if problem.bias is not None and (problem.out == "fp32" or problem.bias.dtype != problem.out):
        return Rejected(f"a bias of {problem.bias.dtype} is not added to {problem.out}")
    return None


def reject_block_scales(problem: Problem) -> Rejected | None:
    """Why a kernel that scales its sums at the end cannot run."""
    return Rejected("block scales are applied within the sum") if problem.scales == "block" else None


def reject_uncapturable(problem: Problem, device: Device) -> Rejected | None:
    """Where torch has no kernel for groups, it reads their sizes back and multiplies one after the other: no graph can
    be captured of that (aten/src/ATen/native/cuda/GroupedBlas.cpp). Groups of fp8 have another operator."""
    if not problem.spec.grouped or device.kind != "cuda" or problem.scaled:
        return None
    if problem.a.dtype != "bf16" or device.capability // 10 not in (9, 10):
        return Rejected(
            "torch reads the sizes of such groups back, so it can be neither captured nor compiled into a graph"
        )
    return None


def reject_unaligned_groups(problem: Problem) -> Rejected | None:
    """A tensor copy of a group needs the groups one below the other in memory."""
    beside = problem.a.row_major or not problem.b.row_major if problem.ragged == "k" else not problem.a.row_major
    if beside:
        return Rejected("a group begins anywhere in a row of memory, and a tensor copy at multiples of 16 bytes")
    return None


def reject_padded_output(problem: Problem) -> Rejected | None:
    """torch pads the output rows of a grouped_mm to multiples of 16 bytes; our lowerings store them without gaps."""
    if problem.spec.grouped and problem.n * ITEM_SIZES[problem.out] % VECTOR_BYTES:
        return Rejected("torch pads the rows of its output to multiples of 16 bytes")
    return None


def reject_unaligned_rows(problem: Problem) -> Rejected | None:
    """Tensor maps need aligned rows."""
    if all(hardware.vector_rows(operand) for operand in (problem.a, problem.b)):
        return None
    return Rejected("the tensor copy engine wants rows that start at multiples of 16 bytes")
