"""The shared memory of our Triton kernels, as Triton compiles their pipelines. Tests compare it with compiled
kernels."""

from __future__ import annotations

from gemmdb.kernels import hardware, rules
from gemmdb.kernels.kernel import ConfigLike
from gemmdb.key.layout import ITEM_SIZES
from gemmdb.key.problem import Problem


def by_warp_groups(problem: Problem, left: int, warps: int) -> bool:
    """Whether a tile with `left` rows of its left operand goes to Hopper's warp-group matrix instructions. These take
    fp32 only as TF32: ordinary instructions multiply full fp32."""
    return hardware.by_warp_groups(left, warps) and not rules.in_full(problem)


def uses_warp_groups(config: ConfigLike, problem: Problem) -> bool:
    """`by_warp_groups` of a config that has tiles."""
    left = int(config.values["block_n" if config.values["swap"] else "block_m"])
    return by_warp_groups(problem, left, int(config.values["warps"]))


def transposed_bytes(problem: Problem, block: tuple[int, int, int], swap: int) -> int:
    """Shared memory, in bytes, that tiles [m, k] and [n, k] of tensor maps need besides the pipeline. A tensor map
    keeps the order of a tile in memory, but ordinary instructions need the left operand as [m, k] and the right one as
    [k, n], so a tile in the other order is copied. The matrix unit takes both orders."""
    if not rules.in_full(problem):
        return 0
    m, n, k = block
    tiles = ((problem.a, m), (problem.b, n))
    return sum(k * size * ITEM_SIZES[one.dtype] for one, size in tiles if one.row_major == bool(swap))


def tile_of(config: ConfigLike) -> tuple[int, int, int]:
    """The rows and columns of a config's tile, and its step along K."""
    values = config.values
    return int(values["block_m"]), int(values["block_n"]), int(values["block_k"])


def shared_bytes(config: ConfigLike, problem: Problem) -> int:
    """Shared memory of the kernel's pipeline, in bytes: a lower bound of what the kernel needs.

    The warp-group instructions read the stage that a load would overwrite, so they need one more buffer. Tensor maps
    have a barrier of 8 bytes for each stage loaded ahead.
    """
    value = config.values
    block, stages = tile_of(config), int(value["stages"])
    ahead = max(stages - 1, 1)
    buffers = stages if uses_warp_groups(config, problem) else ahead
    pipeline = hardware.stage_bytes(block, hardware.item_sizes(problem.a, problem.b)) * buffers
    if not config.spec.maps(config):
        return pipeline
    loop = pipeline + transposed_bytes(problem, block, int(value["swap"]))
    return 8 * ahead + max(loop, _epilogue_bytes(config, problem, buffers))


def _epilogue_bytes(config: ConfigLike, problem: Problem, buffers: int) -> int:
    """The shared memory in use while a persistent kernel stores a tile of 32-bit outputs and the pipeline already loads
    the next tile: 16 rows per warp change their layout at a time. 0 for other kernels.

    Operands of 8 and 32 bits are multiplied directly from the buffers only when K runs along memory. Otherwise one of
    the buffers is a copy, which only the loop needs. A copied activation goes to the matrix unit through registers.
    """
    value = config.values
    if "resident" not in value or value["swap"] or ITEM_SIZES[problem.out] != 4 or rules.in_full(problem):
        return 0
    m, n, k = tile_of(config)
    a_size, b_size = hardware.item_sizes(problem.a, problem.b)
    a_kept = buffers - (a_size != 2 and not problem.a.row_major)
    b_kept = buffers - (a_size != 2 and problem.b.row_major)
    return k * (a_kept * m * a_size + b_kept * n * b_size) + 4 * n * min(m, 16 * int(value["warps"]))
