"""Our CUDA kernel for few rows and an int4 weight with a scale for each group, `int4_stream.cu`: what it is compiled
for, and its rules.

It is compiled, shipped and called as CUTLASS's kernels are, though it needs none of its headers. A compiled kernel
serves every problem whose weight has groups of the same size and the same kind of zero points: sizes and leading
dimensions are arguments.
"""

from __future__ import annotations

from collections.abc import Collection

from gemmdb.kernels import hardware, rules
from gemmdb.kernels.cutlass.int4 import reject_format, reject_sizes
from gemmdb.kernels.kernel import ConfigLike
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected

STEP, STAGES = 128, 3
"""Numbers along K of a step, and the stages of each warp, as in the source."""
MOST_ROWS = {8: 8, 16: 32}
"""The most rows that are measured with each tile along M. More tiles take longer than their formula says: two up to a
third longer than one."""


def resident_warps(tokens: int, rows: int) -> int:
    """The warps of a multiprocessor that the kernel's registers are for, as in the source. `tokens`: of a tile; `rows`:
    of the weight, for each warp."""
    return 8 if rows == 64 else 16 if tokens == 8 else 12


def macros(config: ConfigLike, problem: Problem) -> dict[str, int | str]:
    """The macros of a legal config, by name without GEMMDB_. Those of scales and bias are for `entry` alone."""
    own, value = problem.int4, config.values
    assert own is not None
    return {
        "INT4_STREAM": 1, "TILE_M": int(value["tile_m"]), "TILE_N": int(value["tile_n"]), "ROWS": int(value["rows"]),
        "WARPS": int(value["warps"]), "SPLIT": int(value["split_k"]), "GROUP": own.size,
        "ZEROS": 0 if own.zeros == "none" else 1 if own.zeros == problem.a.dtype else 2,
        "FP16": int(problem.a.dtype == "fp16"), "SCALE": 1, "ROW_SCALE": 0, "BIAS": 0,
    }  # fmt: skip


def rejection(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    """Why a config cannot run, None when it can. `symbolic`: which of `m`, `n`, `k` are not fixed."""
    if rejected := _reject_sizeless(config, problem, device) or reject_sizes(problem, symbolic):
        return rejected
    tokens, split = int(config.values["tile_m"]), int(config.values["split_k"])
    if problem.m > MOST_ROWS[tokens]:
        return Rejected(f"tiles of {tokens} rows are for up to {MOST_ROWS[tokens]}: each reads the weight again")
    if split > -(-problem.k // STEP):
        return Rejected(f"K={problem.k} has fewer than {split} steps of {STEP}")
    return None


@rules.sizeless
def _reject_sizeless(config: ConfigLike, problem: Problem, device: Device) -> Rejected | None:
    return reject_format(problem, device, ("none", problem.a.dtype, "uint8")) or _reject_tile(config)


def _reject_tile(config: ConfigLike) -> Rejected | None:
    tokens, columns, rows, warps = (int(config.values[name]) for name in ("tile_m", "tile_n", "rows", "warps"))
    across, left = divmod(columns, rows)
    if left or not across or warps % across:
        return Rejected("the warps of a tile have whole parts of it, and share out K equally")
    if warps * STAGES * (rows * STEP // 2 + 2 * tokens * STEP) > hardware.SHARED_BYTES:
        return Rejected(f"{STAGES} stages of each warp do not fit into shared memory")
    return None
