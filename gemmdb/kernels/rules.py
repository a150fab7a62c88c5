"""Legality rules that several kernels share, each with its reason; `gemmdb.kernels.hardware` has the figures."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from gemmdb.kernels import hardware
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.key.operands import Operand
from gemmdb.key.problem import Problem

if TYPE_CHECKING:
    from gemmdb.kernels.config import Config

STEPPED = ("row", "row-padded", "col", "col-padded")
"""Layout orders whose rows or columns follow each other at one distance."""


MOST_MATRICES = 65_535
"""The limit of the second and third dimension of a grid."""
Sizeless = Callable[["Config", Problem, Device], "str | None"]
"""A rule that reads no size of the problem."""
_CLASSES, _CONFIGS = 64, 4096
"""The most classes of problems, and configs of each, that are remembered for a rule."""


def sizeless(rule: Sizeless) -> Sizeless:
    """The rule, with its answers remembered by config, op, family and device. A lookup asks about twenty configs of one
    problem, and the next lookup about the same configs at other sizes."""
    classes: dict[tuple[object, ...], dict[Config, str | None]] = {}
    last: tuple[Problem | None, Device | None, dict[Config, str | None]] = None, None, {}

    @functools.wraps(rule)
    def remembered(config: Config, problem: Problem, device: Device) -> str | None:
        nonlocal last
        before, there, known = last
        if before is not problem or there is not device:
            key = problem.op, problem.family, device.key, tuple(device.figures.items())
            if key not in classes and len(classes) >= _CLASSES:
                classes.clear()
            known = classes.setdefault(key, {})
            last = problem, device, known
        try:
            return known[config]
        except KeyError:
            if len(known) >= _CONFIGS:
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


def unsolved(config: Config, problem: Problem, device: Device) -> str | None:
    """The kernel is registered for some ops and device kinds only."""
    if problem.op not in config.spec.ops or device.kind not in config.spec.devices:
        return f"{config.name} does not solve {problem.op} on {device.kind}"
    return None


def unsigned(problem: Problem, device: Device) -> str | None:
    """torch multiplies uint8 by int8 on CPUs alone."""
    if problem.a.dtype == "uint8" and problem.spec.integer and device.kind != "cpu":
        return f"torch cannot multiply uint8 by int8 on {device.kind}"
    return None


def unpacked(config: Config, problem: Problem) -> str | None:
    """An int4 weight has kernels of its own, and whole groups; ATen stands for what the program runs."""
    if problem.int4 is None and not config.spec.int4:
        return None
    if problem.int4 is not None and (reason := problem.int4.rejection(problem.n, problem.k)):
        return str(reason)
    if (config.backend, config.kernel) == ("aten", "default") or config.spec.int4 == (problem.int4 is not None):
        return None
    return f"{config.name} {'takes no weight but int4' if config.spec.int4 else 'takes no int4 weight'}"


def empty(problem: Problem) -> str | None:
    """A product with a size of zero has nothing to compute."""
    return "there is nothing to compute in a product of size zero" if problem.empty else None


def unstepped(problem: Problem) -> str | None:
    """A kernel steps from row to row of each operand, with offsets of 32 bits."""
    for operand, (rows, columns) in operands(problem):
        if operand.layout.order not in STEPPED:
            return f"a {operand.layout.order} operand has no row start to step by"
        if problem.batch * rows * columns >= hardware.LARGEST_OFFSET:
            return "offsets within an operand are 32 bits wide"
    return None


def unbatched(problem: Problem) -> str | None:
    """A dimension of the grid counts the matrices of a batch, and Inductor makes other products of some batches."""
    if problem.batch > MOST_MATRICES:
        return f"the grid has room for {MOST_MATRICES} matrices"
    if problem.batch == 1:
        return "Inductor makes a product of two matrices of a batch of one on a GPU"
    return "Inductor multiplies elements where K is 1" if problem.k == 1 else None


def by_rows_and_columns(problem: Problem) -> bool:
    """Whether K runs along memory in both operands. A single column without gaps counts as row-major."""
    column = problem.b.layout.order
    return problem.a.row_major and (column.startswith("col") or (problem.n, column) == (1, "row"))


def uncaptured(problem: Problem, device: Device) -> str | None:
    """Where torch has no kernel for groups, it reads their sizes back and multiplies one after the other: no graph can
    be captured of that (aten/src/ATen/native/cuda/GroupedBlas.cpp)."""
    if not problem.spec.grouped or device.kind != "cuda":
        return None
    if problem.scaled:
        return None  # It has another operator, without such a way.
    if problem.a.dtype != "bf16" or device.capability // 10 not in (9, 10):
        return "torch reads the sizes of such groups back, so it can be neither captured nor compiled into a graph"
    return None


def unaligned_groups(problem: Problem) -> str | None:
    """A tensor copy of a group needs the groups one below the other in memory."""
    beside = problem.a.row_major or not problem.b.row_major if problem.ragged == "k" else not problem.a.row_major
    if beside:
        return "a group begins anywhere in a row of memory, and a tensor copy at multiples of 16 bytes"
    return None


def unpadded(problem: Problem) -> str | None:
    """torch pads the rows of a product of groups to multiples of 16 bytes; our lowerings store them without gaps."""
    if problem.spec.grouped and problem.n * ITEM_SIZES[problem.out] % VECTOR_BYTES:
        return "torch pads the rows of its output to multiples of 16 bytes"
    return None


def unmapped(problem: Problem) -> str | None:
    """Tensor maps need aligned rows."""
    for operand, _ in operands(problem):
        if not hardware.vector_rows(operand):
            return "the tensor copy engine wants rows that start at multiples of 16 bytes"
    return None
