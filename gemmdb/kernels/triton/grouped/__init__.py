"""`grouped`: GEMMs of groups whose sizes the device reads, all in one launch; by pointers or by tensor maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from gemmdb.kernels import hardware, rules, triton
from gemmdb.kernels.kernel import ConfigLike, IntRange, OneOf, Template
from gemmdb.kernels.triton import memory, shared
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected

MAX_GROUPS = 1023
"""torch multiplies at most so many groups, and a program holds the ends of all."""
MAX_SPLIT = 8
"""The most slices of K."""
MAX_PARTIAL_BYTES = 2**27
"""Partial sums of a split K that take more than that are not worth their room."""


def names(config: ConfigLike, problem: Problem) -> dict[str, int | str]:
    """The constants of the template. SLOTS: the power of two that holds all groups and the rows beyond them. Of fp8
    operands also SCALES, and PROMOTE where the sums of each step are added in fp32."""
    return shared.even_constants(config, problem) | _scaling(config, problem) | {
        "TMA": shared.loads_by_tma(config), "RAGGED_K": problem.ragged == "k", "GROUPS": problem.groups,
        "SLOTS": 1 << problem.groups.bit_length(),
    }  # fmt: skip


def _scaling(config: ConfigLike, problem: Problem) -> dict[str, int | str]:
    if not problem.scaled:
        return {}  # Other kernels are rendered without a word of scales.
    found: dict[str, int | str] = {"SCALES": True}
    return found | {"PROMOTE": True} if _promotes(config, problem) else found


def _promotes(config: ConfigLike, problem: Problem) -> bool:
    """Whether the matrix unit's own accumulator, which keeps few bits of fp8 sums, may not hold them for long."""
    return problem.scaled and not problem.numerics.fast and memory.uses_warp_groups(config, problem)


def grid(m: Any, n: Any, meta: Mapping[str, Any], cdiv: Callable[[Any, Any], Any]) -> tuple[Any, Any, Any]:
    """At most one program per slice of each tile that there may be; `resident` says how many run. Each group may end
    with a tile that is not full, and so may the rows beyond the last."""
    high, wide, groups = cdiv(m, meta["BLOCK_M"]), cdiv(n, meta["BLOCK_N"]), meta["GROUPS"]
    return (groups * high if meta["RAGGED_K"] else groups + high) * wide * meta.get("SPLIT_K", 1), 1, 1


def reduction(config: ConfigLike) -> str:
    """How the partial sums of a split K are summed."""
    return "fixup" if "split_k" in config.values else "none"


def compiled(config: ConfigLike, problem: Problem) -> int:
    """Whether loads by pointers are masked along K. Groups of K always are, and tensor maps never."""
    return int(
        problem.ragged == "m" and not shared.loads_by_tma(config) and problem.k % int(config.values["block_k"]) != 0
    )


def rejection(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    """Why a config cannot run, None when it can."""
    if rejected := shared.reject_tile(config, problem, device) or rules.reject_padded_output(problem):
        return rejected
    if problem.groups > MAX_GROUPS:
        return Rejected(f"a program holds the ends of at most {MAX_GROUPS} groups")
    if _promotes(config, problem) and int(config.values["block_k"]) > rules.MAX_PROMOTED_K:
        return Rejected(f"the matrix unit sums at most {rules.MAX_PROMOTED_K} products before they are added in fp32")
    if "split_k" in config.values and (rejected := _reject_split(config, problem, device)):
        return rejected
    if config.values["flatten"]:
        if problem.ragged == "k":
            return Rejected("flattened loops need groups of one length")
        if problem.fusion != "none":
            return Rejected("rows beyond the last group are not stored, but what is fused may need them")
    if not shared.loads_by_tma(config):
        return None
    return rules.reject_unaligned_groups(problem) or rules.reject_unaligned_rows(problem)


def _reject_split(config: ConfigLike, problem: Problem, device: Device) -> Rejected | None:
    """Why K cannot be split, None when it can."""
    value = config.values
    split, *block = (int(value[name]) for name in ("split_k", "block_m", "block_n"))
    if problem.ragged == "k":
        return Rejected("the groups divide K already")
    if value["flatten"]:
        return Rejected("flattened loops cannot split K")
    if -(-problem.k // int(value["block_k"])) < 4:
        return Rejected(f"K={problem.k} has fewer than two steps of {value['block_k']} for a slice")
    if device.units > hardware.MAX_UNITS:
        return Rejected(f"there is room for the partial sums of {hardware.MAX_UNITS} multiprocessors")
    if 4 * split * math.prod(block) * triton.tiles(config, problem) > MAX_PARTIAL_BYTES:
        return Rejected(f"the partial sums may take more than {MAX_PARTIAL_BYTES >> 20} MiB")
    return None


KERNEL = shared.kernel(
    ("grouped_mm",), {
        "block_m": IntRange(16, 256, True), "block_n": IntRange(16, 256, True), "block_k": IntRange(16, 512, True),
        "swap": shared.SWAP, "load": OneOf(("pointer", "tma")), "flatten": IntRange(0, 1), "resident": IntRange(1, 16),
        "warps": shared.WARPS, "stages": shared.STAGES,
    },
    rejection, Template(__name__, names, grid, reduction), optional={"split_k": IntRange(2, MAX_SPLIT)},
    splits=("split_k",), maps=shared.loads_by_tma, compiled=compiled,
)  # fmt: skip
"""Parameters: docs/contributing/kernels.md. `flatten`: the loads of a program's next tile are in flight while it
stores this one. Rows beyond the last group are then left as they are, as ATen leaves them."""
