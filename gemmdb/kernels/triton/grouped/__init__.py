"""`grouped`: products of groups whose sizes the device reads, all in one launch; by pointers or by tensor maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from gemmdb.kernels import fp8, hardware, rules
from gemmdb.kernels.kernel import IntRange, Kernel, OneOf, Template
from gemmdb.kernels.triton import memory, shared, sources
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

if TYPE_CHECKING:
    from gemmdb.kernels.config import Config

MOST_GROUPS = 1023
"""torch multiplies at most so many groups, and a program holds the ends of all."""
MOST_SPLIT = 8
"""The most slices of K."""
MOST_PARTIAL_BYTES = 2**27
"""Partial sums of a split K that take more than that are not worth their room."""


def maps(config: Config) -> bool:
    """Whether it loads by tensor maps."""
    return config.values["load"] == "tma"


def names(config: Config, problem: Problem) -> dict[str, int | str]:
    """The constants of the template. SLOTS: the power of two that holds all groups and the rows beyond them. Of fp8
    operands also SCALES, and PROMOTE where the sums of each step are added in fp32."""
    return shared.even_constants(config, problem) | _scaling(config, problem) | {
        "TMA": maps(config), "RAGGED_K": problem.ragged == "k", "GROUPS": problem.groups,
        "SLOTS": 1 << problem.groups.bit_length(),
    }  # fmt: skip


def _scaling(config: Config, problem: Problem) -> dict[str, int | str]:
    if not problem.scaled:
        return {}  # Other kernels are rendered without a word of scales.
    found: dict[str, int | str] = {"SCALES": True}
    return found | {"PROMOTE": True} if _promotes(config, problem) else found


def _promotes(config: Config, problem: Problem) -> bool:
    """Whether the matrix unit's own accumulator, which keeps few bits of fp8 sums, may not hold them for long."""
    return problem.scaled and not problem.numerics.fast and memory.grouped(config, problem)


def grid(m: Any, n: Any, meta: Mapping[str, Any], cdiv: Callable[[Any, Any], Any]) -> tuple[Any, Any, Any]:
    """At most one program per slice of each tile that there may be; `resident` says how many run. Each group may end
    with a tile that is not full, and so may the rows beyond the last."""
    high, wide, groups = cdiv(m, meta["BLOCK_M"]), cdiv(n, meta["BLOCK_N"]), meta["GROUPS"]
    return (groups * high if meta["RAGGED_K"] else groups + high) * wide * meta.get("SPLIT_K", 1), 1, 1


def late(config: Config) -> int:
    """The most tiles of which K is split: no more than programs run at once on any GPU."""
    return int(config.values["resident"]) * hardware.MOST_UNITS


def reduction(config: Config) -> str:
    """How the partial sums of a split K are summed."""
    return "fixup" if "split_k" in config.values else "none"


def compiled(config: Config, problem: Problem) -> int:
    """Whether loads by pointers are masked along K. Groups of K always are, and tensor maps never."""
    return int(problem.ragged == "m" and not maps(config) and problem.k % int(config.values["block_k"]) != 0)


def illegal(config: Config, problem: Problem, device: Device, symbolic: Collection[str]) -> str | None:
    """Why a config cannot run, None when it can."""
    if reason := shared.illegal_tile(config, problem, device) or rules.unpadded(problem):
        return reason
    if problem.groups > MOST_GROUPS:
        return f"a program holds the ends of at most {MOST_GROUPS} groups"
    if _promotes(config, problem) and int(config.values["block_k"]) > fp8.PROMOTED:
        return f"the matrix unit sums at most {fp8.PROMOTED} products before they are added in fp32"
    if "split_k" in config.values and (reason := _unsplittable(config, problem, device)):
        return reason
    if config.values["flatten"]:
        if problem.ragged == "k":
            return "the groups of K have different lengths, and only loops of one length are flattened"
        if problem.fusion != "none":
            return "rows beyond the last group are not stored, but what is fused may need them"
    if not maps(config):
        return None
    return rules.unaligned_groups(problem) or rules.unmapped(problem)


def _unsplittable(config: Config, problem: Problem, device: Device) -> str | None:
    """Why K cannot be split, None when it can."""
    value = config.values
    split, *block = (int(value[name]) for name in ("split_k", "block_m", "block_n"))
    if problem.ragged == "k":
        return "the groups divide K already"
    if value["flatten"]:
        return "what a loop does at its end with a split K is not flattened"
    if -(-problem.k // int(value["block_k"])) < 4:
        return f"K={problem.k} has fewer than two steps of {value['block_k']} for a slice"
    if device.units > hardware.MOST_UNITS:
        return f"there is room for the partial sums of {hardware.MOST_UNITS} multiprocessors"
    if 4 * split * math.prod(block) * late(config) > MOST_PARTIAL_BYTES:
        return f"the partial sums may take more than {MOST_PARTIAL_BYTES >> 20} MiB"
    return None


KERNEL = Kernel(
    "triton", "grouped", ("grouped_mm",), ("cuda",), 1, {
        "block_m": IntRange(16, 256, True), "block_n": IntRange(16, 256, True), "block_k": IntRange(16, 512, True),
        "swap": shared.SWAP, "load": OneOf(("pointer", "tma")), "flatten": IntRange(0, 1), "resident": IntRange(1, 16),
        "warps": shared.WARPS, "stages": shared.STAGES,
    },
    optional={"split_k": IntRange(2, MOST_SPLIT)}, splits=("split_k",), illegal=illegal, maps=maps, compiled=compiled,
    template=Template(__name__, names, grid, reduction),
    digest=partial(sources.digest, __name__), equivalent=sources.EQUIVALENT,
)  # fmt: skip
"""docs/kernels.md says what each parameter does. `flatten`: the loads of a program's next tile are in flight while it
stores this one. Rows beyond the last group are then left as they are, as ATen leaves them."""
