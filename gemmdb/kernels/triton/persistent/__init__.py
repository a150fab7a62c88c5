"""`persistent`: as many programs as run at once, each of which goes on to the next tile; by tensor maps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from gemmdb.kernels import rules
from gemmdb.kernels.kernel import ConfigLike, IntRange, Template, always
from gemmdb.kernels.triton import shared
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected


def grid(m: Any, n: Any, meta: Mapping[str, Any], cdiv: Callable[[Any, Any], Any]) -> tuple[Any, Any, Any]:
    """At most one program per output tile; `resident` says how many run."""
    return cdiv(m, meta["BLOCK_M"]) * cdiv(n, meta["BLOCK_N"]), 1, 1


def rejection(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    """Why a config cannot run, None when it can."""
    return shared.reject_tile(config, problem, device) or rules.reject_unaligned_rows(problem)


KERNEL = shared.kernel(
    ("mm", "addmm", "int_mm", "mixed_mm"), {
        "block_m": IntRange(16, 256, True), "block_n": IntRange(16, 256, True), "block_k": IntRange(16, 512, True),
        "group_m": IntRange(1, 16, True), "swap": shared.SWAP, "dequant": shared.DEQUANT, "resident": IntRange(1, 8),
        "warps": shared.WARPS, "stages": shared.STAGES,
    },
    rejection, Template(__name__, shared.tile_constants, grid), maps=always,
)  # fmt: skip
