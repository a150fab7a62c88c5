"""SumOrder: the order in which a kernel adds the products along K. Kernels with one order give every element of C the
same bits, whatever their tiles: the bits of a row do not depend on how many rows there are.

A program adds the steps along K one after the other in its accumulator, so BLOCK_K, stages, warps and tiles do not
count (tests/gpu/test_batch_invariance.py). What counts is how many products one instruction adds at once, and where K
is split.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmdb.kernels import hardware, rules
from gemmdb.kernels.kernel import ConfigLike
from gemmdb.kernels.triton import memory
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

WARP, WARP_GROUP = "warp", "warp_group"
"""Matrix instructions of one warp (mma.sync), and of a group of four (wgmma on Hopper, tcgen05 on Blackwell)."""
OPS, DTYPES = ("mm", "addmm"), ("bf16", "fp16")
"""The ops and operand dtypes whose order is known."""
_KERNELS = ("tile", "narrow", "persistent")


@dataclass(frozen=True, slots=True, order=True)
class SumOrder:
    """`unit`: which instructions multiply, WARP or WARP_GROUP."""

    unit: str

    @property
    def text(self) -> str:
        """What `explain` and `stats()` print."""
        return f"unit={self.unit}"


def possible(device: Device) -> tuple[SumOrder, ...]:
    """The orders that kernels have on a device; none without a matrix unit for 16-bit operands."""
    if device.capability < hardware.FIRST_BF16:
        return ()
    units = (WARP_GROUP, WARP) if hardware.has_warp_groups(device.capability) else (WARP,)
    return tuple(map(SumOrder, units))


def sum_order(config: ConfigLike, problem: Problem, device: Device) -> SumOrder | None:
    """The order of a config that is legal for a problem; None if it is unknown, if K is split, or if it depends on
    M."""
    if config.backend != "triton" or config.kernel not in _KERNELS or not known(problem):
        return None
    value = config.values
    if value.get("split_k", 1) != 1 or value.get("stagger"):  # A staggered program starts K where its number says.
        return None
    groups = hardware.has_warp_groups(device.capability) and memory.uses_warp_groups(config, problem)
    return SumOrder(WARP_GROUP if groups else WARP)


def known(problem: Problem) -> bool:
    """Whether the orders of kernels are known for a problem's op and dtypes."""
    return problem.op in OPS and problem.a.dtype == problem.b.dtype and problem.a.dtype in DTYPES and not (
        rules.in_full(problem) or problem.empty
    )  # fmt: skip
