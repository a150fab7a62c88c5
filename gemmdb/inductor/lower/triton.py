"""Lower a GEMM with a config of our own Triton kernels, as the only choice. Inductor fuses its epilogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gemmdb.inductor.lower.adapter import ir_view, symbolic, templates
from gemmdb.inductor.match import extract
from gemmdb.inductor.match.calls import Call
from gemmdb.kernels import triton
from gemmdb.kernels.config import Config
from gemmdb.kernels.hardware import LARGEST_OFFSET
from gemmdb.kernels.triton import MAX_COUNTERS, counts_arrivals, tiles
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.key.problem import Problem, Query

ANYWHERE = "the tensor copy engine needs operands aligned to 16 bytes, which nothing here guarantees"


class Refused(Exception):
    """The kernel cannot take the operands from Inductor."""


@dataclass(frozen=True)
class Operands:
    """The operands of a GEMM in Inductor's IR. `a` [M, K] and `b` [K, N], or batches of them, have fixed layouts.
    `scale` multiplies the output: a vector over N, or one number; `rows`: a vector over M for an integer GEMM. `bias`
    is added, and broadcasts to [M, N]. `ranges`: the ranges of the symbolic sizes, as in a Query. `scales`: the scales
    of fp8 A and B, each one number, or [M, 1] and [1, N], of groups [M] and [groups, N]. `offsets`: the end of each
    group of a grouped_mm."""

    a: Any
    b: Any
    scale: Any = None
    bias: Any = None
    ranges: Mapping[str, extract.Range] = field(default_factory=dict)
    scales: tuple[Any, ...] = ()
    rows: Any = None
    offsets: Any = None

    @classmethod
    def of(cls, query: Query, call: Call, scale: Any = None, rows: Any = None) -> Operands:
        """Return the operands from an operator's arguments. Fixes the layouts of A and B, and of all grouped
        operands."""
        a, b, offsets, scales = templates.settled(call.a), templates.settled(call.b), None, call.scales
        if call.offsets is not None:
            offsets, scales = templates.settled(call.offsets), tuple(map(templates.settled, scales))
        return cls(a, b, scale, call.bias, query.ranges, scales, rows, offsets)

    @property
    def vectors(self) -> bool:
        """Whether vectors scale the output."""
        return self.scale is not None or self.rows is not None

    @property
    def sizes(self) -> tuple[Any, Any, Any]:
        """Return (M, N, K) as numbers. A symbolic size is an Inductor expression."""
        (*_, m, k), (*_, n) = self.a.get_size(), self.b.get_size()
        return m, n, k

    def epilogue(self, scalars: tuple[float, float]) -> templates.Epilogue:
        """Return the epilogue for (alpha, beta). A bias whose beta is zero is not read. Raises Refused for unknown
        scalars."""
        if not all(isinstance(value, int | float) for value in scalars):
            raise Refused("alpha and beta are not numbers")
        alpha, beta = scalars
        scales = self.scales if self.scale is None else (self.scale,)
        if self.rows is not None:
            scales = (templates.column(self.rows), *scales)
        integer = self.a.get_dtype() in (torch.int8, torch.uint8)
        return templates.Epilogue(scales, self.bias if beta != 0 else None, alpha, beta, integer)


def lower(config: Config, problem: Problem, operands: Operands, scalars: tuple[float, float] = (1.0, 1.0)) -> Any:
    """Lower the GEMM in Inductor's IR, with the dtype from `stored`. `scalars`: alpha and beta of an addmm.

    Sizes may be symbolic; then `problem` has their hints. Raises Refused, or Inductor's exception if it cannot generate
    the kernel.
    """
    found = _kernel(config, problem, operands)
    if problem.spec.grouped:
        return _grouped(problem, operands, found)
    dtype, epilogue = stored(problem, operands), operands.epilogue(scalars)
    if slices := summed_slices(config):
        m, n, _ = operands.sizes
        acc = torch.int32 if problem.spec.integer else torch.float32
        sums = templates.gemm(found, (operands.a, operands.b), (acc, (slices, m, n)))
        return templates.summed(sums, epilogue, dtype)
    return templates.gemm(found, *_arguments(found, problem, operands, scalars))


def choice(config: Config, problem: Problem, operands: Operands, scalars: tuple[float, float]) -> Any:
    """Return the kernel as one of Inductor's choices, which is no node of the graph yet. Takes the arguments of `lower`
    and raises what it raises; not for grouped GEMMs, nor for kernels whose partial sums a second one adds."""
    found = _kernel(config, problem, operands)
    return templates.choice(found, *_arguments(found, problem, operands, scalars))


def summed_slices(config: Config) -> int:
    """Return the number of partial sums that a second kernel adds; 0 if there is none."""
    split = int(config.values.get("split_k", 1))
    return split if split > 1 and not counts_arrivals(config) else 0


def _kernel(config: Config, problem: Problem, operands: Operands) -> templates.Kernel:
    """Return the kernel to generate. Raises Refused if it cannot take the operands."""
    check(problem, operands, symbolic=True)
    if config.spec.maps(config):
        check_maps(problem, operands)
    names = constants(config, problem, operands)
    if problem.spec.grouped:
        return template_kernel(config, names, problem)
    m, n, _ = operands.sizes
    batch, pair = tuple(operands.a.get_size()[:-2]), (operands.a, operands.b)
    if not symbolic.addressable((*batch, summed_slices(config) or 1, m, n), pair):
        unbounded = any(symbolic.from_data(size) for size in operands.sizes)
        raise Refused(f"offsets are 32 bits wide{', and data-dependent sizes have no bound' if unbounded else ''}")
    return template_kernel(config, names, problem, operands.ranges)


def _arguments(
    kernel: templates.Kernel, problem: Problem, operands: Operands, scalars: tuple[float, float]
) -> tuple[tuple[Any, ...], tuple[torch.dtype, tuple[Any, ...]], templates.Epilogue]:
    """Return what a template's kernel reads, the output's dtype and sizes, and its epilogue."""
    dtype, epilogue = stored(problem, operands), operands.epilogue(scalars)
    pair: tuple[Any, ...] = (operands.a, operands.b)
    m, n, _ = operands.sizes
    if kernel.constants.get("SCALED"):
        # The template takes the scale as one of its operands, and applies it.
        pair, epilogue = (*pair, templates.expanded(operands.scale, m, n)), replace(epilogue, scales=())
    if kernel.constants.get("SCALES"):
        # The template applies block scales within the sum.
        pair, epilogue = (*pair, *map(templates.settled, operands.scales)), replace(epilogue, scales=())
    return pair, (dtype, (*operands.a.get_size()[:-2], m, n)), epilogue


def _grouped(problem: Problem, operands: Operands, kernel: templates.Kernel) -> Any:
    """Lower a grouped GEMM. B's matrices may be more than 32 bits apart: each is addressed from its start."""
    check_offsets(problem, operands)
    m, n, _ = operands.sizes
    sizes = (m, n) if problem.ragged == "m" else (problem.groups, m, n)
    near = (operands.a,) if problem.ragged == "m" else (operands.a, operands.b)
    if not symbolic.addressable(sizes, near):
        raise Refused("offsets are 32 bits wide")
    tensors = operands.a, operands.b, operands.offsets, *operands.scales
    epilogue = templates.Epilogue() if problem.ragged == "m" else None
    return templates.gemm(kernel, tensors, (stored(problem, operands), sizes), epilogue)


def stored(problem: Problem, operands: Operands) -> torch.dtype:
    """Return the dtype that a kernel stores: A's; for a bare int_mm int32; for a scaled int_mm and for fp8 the
    problem's output dtype."""
    if problem.spec.integer and not operands.vectors:
        return torch.int32
    scaled = problem.spec.integer or problem.scaled
    return extract.TORCH[problem.out] if scaled else operands.a.get_dtype()


def constants(config: Config, problem: Problem, operands: Operands) -> dict[str, Any]:
    """Return the constants that the template reads by name. A constant for a symbolic size must hold for all values of
    that size."""
    found: dict[str, Any] = dict(triton.names(config, problem))
    m, n, k = operands.sizes
    steps = {"EVEN_K": (k, config.values["block_k"]), "M_EVEN": (m, 16), "N_EVEN": (n, 16)}
    for name, (size, step) in steps.items():
        if symbolic.number(size) is None and found.get(name):
            found[name] = symbolic.divides(int(step), size)
    # Inductor reads the accumulator's dtype here for fused work.
    found["ACC_TYPE"] = "tl.int32" if problem.spec.integer else "tl.float32"
    if "resident" in config.values:
        found["PROGRAMS"] = int(config.values["resident"]) * templates.multiprocessors(operands.a)
    return found


def largest(problem: Problem, ranges: Mapping[str, extract.Range]) -> Problem:
    """Return `problem` at the upper bounds of M and N. Raises Refused without bounds, because the workspace has a fixed
    size."""
    m, n = (ranges.get(name, (0, getattr(problem, name)))[1] for name in ("m", "n"))
    if m is None or n is None:
        raise Refused("the workspace has a fixed size, and the GEMM's size has no bound")
    return problem.resized(m, n, problem.k) if ranges else problem


def template_kernel(
    config: Config, names: Mapping[str, Any], problem: Problem, ranges: Mapping[str, extract.Range] | None = None
) -> templates.Kernel:
    """Return the kernel with these constants, and with space for the partial sums if it counts arrivals: those of the
    largest size that it runs at, which is the hint if Inductor runs it there to learn how to launch it. Raises Refused
    if there are too many."""
    value, partials = config.values, 0
    if counts_arrivals(config):
        count = tiles(config, largest(problem, ranges or {}))
        if templates.runs_at_hint():
            count = max(count, tiles(config, problem))
        partials = count * int(value["split_k"]) * int(value["block_m"]) * int(value["block_n"])
        if count > MAX_COUNTERS or partials >= LARGEST_OFFSET:
            raise Refused("the workspace is too small for the largest sizes")
    return templates.Kernel(config.kernel, names, int(value["warps"]), int(value["stages"]), partials)


def check(problem: Problem, operands: Operands, symbolic: bool = False) -> None:
    """Raise Refused unless the operands have the problem's sizes, dtypes and memory orders, offsets fit 32 bits, and
    constants are 16-byte aligned, as Inductor assumes. `symbolic`: sizes may be symbols, and the problem has their
    hints; the caller then checks their offsets."""
    nodes = (operands.a, operands.b, operands.scale, operands.rows, operands.bias, *operands.scales)
    if any(ir_view.misplaced(node) for node in nodes if node is not None):
        raise Refused("a constant is not aligned to 16 bytes")
    first, second, _ = problem.shapes
    wanted = ((operands.a, problem.a, first), (operands.b, problem.b, second))
    for node, operand, sizes in wanted:
        fixed = ir_view.literal(node)
        found = ir_view.hinted(node) if symbolic else fixed
        if found is None:
            raise Refused("symbolic sizes or strides")
        if found[0] != sizes or extract.dtype_name(node.get_dtype()) != operand.dtype:
            raise Refused(f"an operand is {node.get_dtype()} {found[0]}, not {operand.dtype} {sizes}")
        if not _lies_in_order(*found, operand.layout.order):
            # A kernel for the other order would read other elements, or memory of something else.
            raise Refused("the memory order of an operand changed during lowering")
        steps = [] if fixed is None else list(zip(*fixed, strict=True))
        if problem.spec.grouped:
            steps = steps[-2:]  # Each matrix is addressed from its start.
        if sum((size - 1) * stride for size, stride in steps) >= LARGEST_OFFSET:
            raise Refused("offsets within an operand are 32 bits wide")


def _lies_in_order(sizes: Sequence[int], strides: Sequence[int], order: str) -> bool:
    """Whether the dimension with unit stride is that of a layout's order. Any is that of a strided matrix, and of a
    single row or column."""
    along = {"row": -1, "col": -2}.get(order.partition("-")[0])
    return along is None or sizes[along] == 1 or strides[along] == 1


def check_offsets(problem: Problem, operands: Operands) -> None:
    """Raise Refused unless the offsets of a grouped_mm are a contiguous vector of 32-bit integers, one per group."""
    offsets = operands.offsets
    if ir_view.literal(offsets) != ((problem.groups,), (1,)) or offsets.get_dtype() != torch.int32:
        raise Refused("the offsets are not a contiguous vector of 32-bit integers")


def check_maps(problem: Problem, operands: Operands) -> None:
    """Raise Refused unless tensor maps of the operands are valid at every run. The problem only has the alignment at
    compile time."""
    if rejected := templates.tensor_map_rejection():
        raise Refused(rejected.reason)
    for node, operand in ((operands.a, problem.a), (operands.b, problem.b)):
        if ir_view.anywhere(node):
            raise Refused(ANYWHERE)
        apart = node.get_stride()[-2 if operand.row_major else -1]
        if not symbolic.divides(VECTOR_BYTES // ITEM_SIZES[operand.dtype], apart):
            raise Refused("the row stride of an operand is symbolic")
