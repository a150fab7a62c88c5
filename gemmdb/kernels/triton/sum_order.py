"""SumOrder: the order in which a kernel adds the products along K. Kernels with one order give every element of C the
same bits, whatever their tiles: the bits of a row do not depend on how many rows there are.

A program adds the steps along K one after the other in its accumulator, so BLOCK_K, stages, warps and tiles do not
count (tests/gpu/test_batch_invariance.py). What counts is how many products one instruction adds at once, and where K
is cut: slices are summed by several programs (`split_k`), or one after the other by one program (`slices` of `tile`).
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmdb.kernels import hardware
from gemmdb.kernels.kernel import ConfigLike
from gemmdb.kernels.triton import memory
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

WARP, WARP_GROUP = "warp", "warp_group"
"""Matrix instructions of one warp (mma.sync), and of a group of four (wgmma on Hopper, tcgen05 on Blackwell)."""
OPS, DTYPES = ("mm", "addmm"), ("bf16", "fp16")
"""The ops and operand dtypes whose order is known."""
_KERNELS = ("tile", "narrow", "persistent")
TCGEN05, TCGEN05_WARPS = 100, 8
"""The first compute capability with tcgen05, and the most warps of a program for which Triton uses it."""
SPLITS, STEP = (2, 4), 128
"""Into how many slices K may be cut, each a multiple of STEP elements, so that the usual BLOCK_K give the same ones."""


@dataclass(frozen=True, slots=True, order=True)
class SumOrder:
    """`unit`: which instructions multiply, WARP or WARP_GROUP. `slices`: the parts of K that are summed on their own
    before their sums are added one after the other; `depth`: elements of K in each part but the last, 0 for one
    part."""

    unit: str
    slices: int = 1
    depth: int = 0

    @property
    def text(self) -> str:
        """What `explain` and `stats()` print."""
        return f"unit={self.unit} slices={self.slices}"


def possible(problem: Problem, device: Device) -> tuple[SumOrder, ...]:
    """The orders that are considered for a problem on a device; none without a matrix unit for 16-bit operands. Where
    there are warp groups, only they cut K: they are as fast for few rows, and faster for many."""
    if device.capability < hardware.FIRST_BF16:
        return ()
    groups = hardware.has_warp_groups(device.capability)
    units = (WARP_GROUP, WARP) if groups else (WARP,)
    orders = [*map(SumOrder, units)]
    for split in SPLITS:
        if problem.k >= 2 * STEP * split:
            orders.append(_order(units[0], problem.k, -(-problem.k // (STEP * split)) * STEP))
    return tuple(orders)


def sum_order(config: ConfigLike, problem: Problem, device: Device) -> SumOrder | None:
    """The order of a config that is legal for a problem; None if it is unknown, or if it depends on M."""
    if config.backend != "triton" or config.kernel not in _KERNELS or not known(problem):
        return None
    value = config.values
    if value.get("stagger") or value.get("reduce") == "kernel":
        return None  # A staggered program begins where its number says; Inductor makes the second kernel.
    groups = _has_groups(config, device) and memory.uses_warp_groups(config, problem)
    split, step = int(value.get("slices") or value.get("split_k", 1)), int(value["block_k"])
    return _order(WARP_GROUP if groups else WARP, problem.k, -(-problem.k // (step * split)) * step)


def _has_groups(config: ConfigLike, device: Device) -> bool:
    """Whether the tiles of a config may go to the instructions of warp groups: Triton has no tcgen05 for more than
    TCGEN05_WARPS."""
    few = device.capability < TCGEN05 or int(config.values["warps"]) <= TCGEN05_WARPS
    return few and hardware.has_warp_groups(device.capability)


def _order(unit: str, k: int, depth: int) -> SumOrder:
    """The order in which slices of `depth` are added."""
    return SumOrder(unit) if depth >= k else SumOrder(unit, -(-k // depth), depth)


def known(problem: Problem) -> bool:
    """Whether the orders of kernels are known for a problem's op and dtypes."""
    same = problem.a.dtype == problem.b.dtype
    return problem.op in OPS and same and problem.a.dtype in DTYPES and not problem.empty
