"""`narrow`: the skinny-M kernel, for up to 64 rows: B is streamed, and the programs of a tile sum their slices of K."""

from __future__ import annotations

from collections.abc import Collection

from gemmdb.kernels import hardware
from gemmdb.kernels.kernel import ConfigLike, IntRange, OneOf, Template
from gemmdb.kernels.triton import shared
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected


def names(config: ConfigLike, problem: Problem) -> dict[str, int | str]:
    """The constants of the template."""
    value = config.values
    own = {"SCALED": shared.scaled(problem), "STAGGER": value["stagger"] == 1, "MASK": value["rows"] == "mask"}
    return shared.even_constants(config, problem) | own


def rejection(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    """Why a config cannot run, None when it can."""
    return shared.reject_tile(config, problem, device) or shared.reject_split(config, problem)


KERNEL = shared.kernel(
    ("mm", "addmm", "int_mm", "mixed_mm", "scaled_mm"), {
        "block_m": IntRange(16, hardware.SKINNY_ROWS, True), "block_n": IntRange(16, 256, True),
        "block_k": IntRange(16, 1024, True), "split_k": IntRange(1, 64), "swap": shared.SWAP,
        "stagger": IntRange(0, 1), "rows": OneOf(("wrap", "mask")), "dequant": shared.DEQUANT,
        "warps": shared.WARPS, "stages": shared.STAGES,
    },
    rejection, Template(__name__, names, shared.tile_grid, shared.reduction), splits=("split_k",),
)  # fmt: skip
