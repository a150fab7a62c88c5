"""`groupwise`: a weight of bytes whose groups have scales, dequantised in registers, is the left operand of the matrix
unit."""

from __future__ import annotations

from collections.abc import Collection

from gemmdb.kernels import hardware
from gemmdb.kernels.kernel import ConfigLike, IntRange, Template
from gemmdb.kernels.triton import TL, memory, shared
from gemmdb.key.device import Device
from gemmdb.key.int4 import IN_WORDS, ZERO_BYTES
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected

_ROWS = 16
"""Rows of the left operand that a warp multiplies at once."""
GROUPS_STAGES = 5
"""The fewest stages where two warp groups multiply: fewer were never run on a GPU with the wait of the kernel."""


def names(config: ConfigLike, problem: Problem) -> dict[str, int | str]:
    """The constants of the template."""
    own, value = problem.int4, config.values
    assert own is not None
    return {
        "BLOCK_M": value["block_m"], "BLOCK_N": value["block_n"], "BLOCK_K": value["block_k"],
        "SPLIT_K": value["split_k"], "A_DTYPE": f"tl.{TL[problem.a.dtype]}", "GROUP": own.size,
        "B_SIGNED": problem.b.dtype == "int8", "BITS": value["dequant"] == "bits",
        "FP32_SCALE": own.scale == "fp32", "LATE": int(value["block_k"]) <= own.size,
        "GIVEN": own.zeros != "none", "IN_WORDS": own.zeros == IN_WORDS, "ZERO": ZERO_BYTES[problem.b.dtype],
        "ROWS": _ROWS * int(value["warps"]), "EVEN_K": problem.k % int(value["block_k"]) == 0,
    }  # fmt: skip


def rejection(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    """Why a config cannot run, None when it can."""
    if rejected := shared.reject_problem(problem, device):
        return rejected
    own = problem.int4
    if own is None or own.bits != 8:
        return Rejected("it takes numbers of eight bits")
    if not problem.a.row_major:
        return Rejected("K has to run along memory in the activations")
    found = _reject_tile(config, problem, device) or shared.reject_split(config, problem)
    return found or shared.reject_slow_compile(config, problem, device)


def _reject_tile(config: ConfigLike, problem: Problem, device: Device) -> Rejected | None:
    own, block = problem.int4, memory.tile_of(config)
    assert own is not None
    warps, stages = int(config.values["warps"]), int(config.values["stages"])
    if block[2] <= own.size and own.zeros != "none" and block[1] < _ROWS * warps:
        return Rejected(f"{warps} warps multiply {_ROWS * warps} columns at once")
    if warps > hardware.GROUP_WARPS and hardware.by_warp_groups(block[1], warps) and stages < GROUPS_STAGES:
        return Rejected(f"two warp groups need a pipeline of {GROUPS_STAGES} stages")
    if shared_bytes(block, warps, stages, device) > hardware.shared_bytes(device):
        return Rejected("the pipeline's stages do not fit into shared memory")
    return None


def shared_bytes(block: tuple[int, int, int], warps: int, stages: int, device: Device) -> int:
    """Shared memory of the pipeline, in bytes. `block`: rows, columns and depth of a tile. Warp-group instructions read
    the activations of a stage while the next one is loaded."""
    m, n, k = block
    ahead = max(stages - 1, 1)
    late = hardware.by_warp_groups(n, warps) and hardware.has_warp_groups(device.capability)
    return 2 * m * k * (ahead + late) + n * k * ahead


KERNEL = shared.kernel(
    ("mixed_mm",), {
        "block_m": IntRange(8, 256, True), "block_n": IntRange(16, 256, True), "block_k": IntRange(32, 512, True),
        "split_k": IntRange(1, 64), "dequant": shared.DEQUANT,
        "warps": IntRange(1, 8, True), "stages": shared.STAGES,
    },
    rejection, Template(__name__, names, shared.tile_grid, shared.reduction), splits=("split_k",), int4=True,
)  # fmt: skip
