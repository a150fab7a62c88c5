"""`scaled_blocks`: fp8 operands with block scales, 1 x 128 of A and 128 x 128 of B, applied within the sum."""

from __future__ import annotations

from collections.abc import Collection

from gemmdb.kernels import hardware, rules
from gemmdb.kernels.kernel import ConfigLike, IntRange, OneOf, Template
from gemmdb.kernels.triton import shared
from gemmdb.key.device import Device
from gemmdb.key.ops import SCALE_BLOCK
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected


def names(config: ConfigLike, problem: Problem) -> dict[str, int | str]:
    """The constants of the template, which takes the scales as operands."""
    return shared.tile_constants(config, problem) | {"SCALES": True}


def rejection(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    """Why a config cannot run, None when it can."""
    if rejected := shared.reject_problem(problem, device):
        return rejected
    if problem.scales != "block":
        return Rejected("the kernel applies block scales")
    if symbolic:
        return Rejected("the kernel is generated for fixed sizes")
    depth = SCALE_BLOCK * int(config.values.get("blocks", 1))
    if problem.k % depth:  # Triton 3.6 does not compile the masked loads of fp8 that a partial block would need.
        return Rejected(f"K has to be a multiple of {depth}")
    if rejected := shared.reject_slow_compile(config, problem, device):
        return rejected
    block = int(config.values["block_m"]), int(config.values["block_n"]), depth
    stage = hardware.stage_bytes(block, hardware.item_sizes(problem.a, problem.b))
    if stage * int(config.values["stages"]) > hardware.shared_bytes(device):
        return Rejected("the pipeline's stages do not fit into shared memory")
    if not rules.by_rows_and_columns(problem):
        return Rejected("K has to run along memory in both operands")
    return shared.reject_split(config, problem)


KERNEL = shared.kernel(
    ("scaled_mm",), {
        "block_m": IntRange(16, 128, True), "block_n": IntRange(16, SCALE_BLOCK, True),
        "block_k": OneOf((SCALE_BLOCK,)), "group_m": IntRange(1, 16, True), "split_k": IntRange(1, 64),
        "swap": shared.SWAP, "warps": shared.WARPS, "stages": shared.STAGES,
    },
    rejection, Template(__name__, names, shared.tile_grid, shared.reduction), splits=("split_k",),
    optional={"blocks": IntRange(1, 4, True)},
)  # fmt: skip
"""docs/contributing/kernels.md says what each parameter does. A step along K is a block of scales, or `blocks`."""
