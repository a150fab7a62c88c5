"""`int4`: an int4 weight, dequantised in registers, is the left operand of the matrix unit."""

from __future__ import annotations

from collections.abc import Collection

from gemmdb.kernels import hardware
from gemmdb.kernels.kernel import ConfigLike, IntRange, OneOf, Template
from gemmdb.kernels.triton import TL, memory, shared
from gemmdb.key.device import Device
from gemmdb.key.int4 import ADDED, MXFP4, PACKED, PLAIN, Int4Format
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected

MAX_REGISTERS = 200
"""Registers of a thread for its sums and for the weights that it dequantises at once, two in each. Most configs
with 192 keep all in registers on Hopper, or all but a few (24 bytes); with 256 they write kilobytes to memory."""
_ROWS, _COLUMNS = 16, 8
"""Rows of the left operand, and columns of the right one, that a warp multiplies at once."""
_COLUMNS_OF_WARP = 64
"""Columns of which a warp has all the words that it reads, eight columns in each: its lanes have eight words."""


def names(config: ConfigLike, problem: Problem) -> dict[str, int | str]:
    """The constants of the template."""
    own = problem.int4
    assert own is not None
    value = config.values
    # Not a constant of its own for other configs: their kernels stay what they were when they were measured.
    in_order: dict[str, int | str] = {"IN_ORDER": True} if "order" in value else {}
    return in_order | {
        "BLOCK_M": value["block_m"], "BLOCK_N": value["block_n"], "BLOCK_K": value["block_k"],
        "SPLIT_K": value["split_k"], "A_DTYPE": f"tl.{TL[problem.a.dtype]}", "GROUP": own.size, "LANE": own.inner // 2,
        "HIGH_FIRST": own.packing == "high-first", "ADDED": own.packing in ADDED,
        "APART": own.packing == PLAIN, "GIVEN": given(problem),
        "IN_WORDS": own.zeros_in_words, "FP4": own.packing == MXFP4,
        **along_n(own),
        "GROUPED": grouped(memory.tile_of(config), int(value["warps"])), "LATE": value["scaled"] == "sums",
        "ROWS": _ROWS * int(value["warps"]), "EVEN_K": problem.k % int(value["block_k"]) == 0,
    }  # fmt: skip


def along_n(own: Int4Format) -> dict[str, int | str]:
    """The constants of a weight whose memory may run along N."""
    packing = PACKED.get(own.packing)
    return {
        "ALONG_N": own.along_n, "OF_COLUMNS": packing is not None and packing.packed == "n",
        "PLUS": packing.plus if packing is not None else 0,
    }  # fmt: skip


def grouped(block: tuple[int, int, int], warps: int) -> bool:
    """Whether Hopper multiplies a tile `block` (rows, columns, depth) with the matrix instructions of whole warp
    groups."""
    return block[0] >= 2 * _COLUMNS and hardware.by_warp_groups(block[1], warps)


def given(problem: Problem) -> bool:
    """Whether an int4 weight has its zero points in a tensor of their own."""
    own = problem.int4
    return own is not None and own.zeros != "none" and own.packing not in ADDED


def rejection(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    """Why a config cannot run, None when it can."""
    if rejected := shared.reject_problem(problem, device):
        return rejected
    if problem.int4 is not None and problem.int4.bits != 4:
        return Rejected("it takes numbers of four bits")
    if not problem.a.row_major:
        return Rejected("K has to run along memory in the activations")
    found = _reject_tile(config, problem, device) or shared.reject_split(config, problem)
    return found or shared.reject_slow_compile(config, problem, device)


def _reject_tile(config: ConfigLike, problem: Problem, device: Device) -> Rejected | None:
    own = problem.int4
    assert own is not None
    m, n, k = memory.tile_of(config)
    if "order" in config.values and (own.inner or along_n(own)["OF_COLUMNS"]):
        return Rejected(f"the words of {own.packing} have the order of the matrix unit's lanes")
    warps, scaled, stages = int(config.values["warps"]), str(config.values["scaled"]), int(config.values["stages"])
    if k < max(16 * own.inner, 32):
        return Rejected(f"a lane of {own.packing} has words for {16 * own.inner} of K")
    if scaled == "sums" and k > own.size:
        return Rejected(f"a sum over {k} of K has several scales")
    if scaled == "sums" and n < _ROWS * warps:
        return Rejected(f"{warps} warps multiply {_ROWS * warps} columns at once")
    if along_n(own)["OF_COLUMNS"] and (scaled != "sums" or n < _COLUMNS_OF_WARP * warps):
        return Rejected(f"{warps} warps take words of {_COLUMNS_OF_WARP * warps} columns at once, and scale the sums")
    if n * (m + k // 2) > MAX_REGISTERS * hardware.WARP_THREADS * warps:
        return Rejected(f"the sums and weights of a tile do not fit into {MAX_REGISTERS} registers of each thread")
    if shared_bytes((m, n, k), (warps, scaled), stages, problem, device) > hardware.shared_bytes(device):
        return Rejected("the pipeline's stages do not fit into shared memory")
    return None


def shared_bytes(
    block: tuple[int, int, int], launch: tuple[int, str], stages: int, problem: Problem, device: Device
) -> int:
    """Shared memory of the pipeline, in bytes. `block`: rows, columns and depth of a tile. `launch`: warps, and what is
    scaled. Warp-group instructions read the activations of a stage while the next one is loaded. Scales of weights that
    have their zero points beside them are loaded ahead like the weight."""
    (m, n, k), own = block, problem.int4
    assert own is not None
    ahead = max(stages - 1, 1)
    late = grouped(block, launch[0]) and hardware.has_warp_groups(device.capability)
    scales = 4 * n * max(k // own.size, 1) if own.inner and launch[1] == "weights" else 0
    return 2 * m * k * (ahead + late) + (n * k // 2 + scales) * ahead


KERNEL = shared.kernel(
    ("mixed_mm",), {
        "block_m": IntRange(8, 256, True), "block_n": IntRange(16, 256, True), "block_k": IntRange(32, 1024, True),
        "split_k": IntRange(1, 64), "scaled": OneOf(("weights", "sums")), "warps": IntRange(1, 8, True),
        "stages": shared.STAGES,
    },
    rejection, Template(__name__, names, shared.tile_grid, shared.reduction), splits=("split_k",), int4=True,
    optional={"order": OneOf(("memory",))},
)  # fmt: skip
