"""Our CUDA kernel for few rows and an int4 weight with a scale for each group, `int4_stream.cu`: what it is compiled
for, and its rules.

It needs none of CUTLASS's headers, but is compiled, shipped and called as its kernels are. A compiled kernel serves
every problem whose weight has groups of the same size and the same kind of zero points: sizes and leading dimensions
are arguments.
"""

from __future__ import annotations

from collections.abc import Collection

from gemmdb.kernels import hardware, rules
from gemmdb.kernels.kernel import ConfigLike
from gemmdb.key.device import Device
from gemmdb.key.int4 import LOW_FIRST
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected

STEP, STAGES = 128, 3
"""Numbers along K of a step, and the stages of each warp, as in the source."""


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
    if rejected := _reject_sizeless(config, problem, device) or rules.reject_empty(problem):
        return rejected
    if "n" in symbolic or "k" in symbolic:
        return Rejected("whether rows start at multiples of 16 bytes depends on N and K")
    if problem.n * ITEM_SIZES[problem.out] % VECTOR_BYTES:
        return Rejected("rows of the output start at multiples of 16 bytes")
    split = int(config.values["split_k"])
    if split > -(-problem.k // STEP):
        return Rejected(f"K={problem.k} has fewer than {split} steps of {STEP}")
    return None


@rules.sizeless
def _reject_sizeless(config: ConfigLike, problem: Problem, device: Device) -> Rejected | None:
    own, dtype = problem.int4, problem.a.dtype
    if device.capability != hardware.HOPPER:
        return Rejected("the kernel is compiled for Hopper, and uses its clusters")
    if own is None or own.packing != LOW_FIRST or own.zeros not in ("none", dtype, "uint8"):
        return Rejected(f"the kernel reads {LOW_FIRST} weights, with zero points of the activation's dtype or uint8")
    if dtype not in ("bf16", "fp16") or problem.out != dtype or problem.scalars != "unit":
        return Rejected("the kernel stores the dtype of the activation, without alpha and beta")
    if problem.numerics.acc != "fp32":
        return Rejected("the sums are fp32")
    if not problem.a.row_major or not hardware.vector_rows(problem.a):
        return Rejected("K runs along memory in the activation, whose rows start at multiples of 16 bytes")
    return _reject_tile(config)


def _reject_tile(config: ConfigLike) -> Rejected | None:
    tokens, columns, rows, warps = (int(config.values[name]) for name in ("tile_m", "tile_n", "rows", "warps"))
    across, left = divmod(columns, rows)
    if left or not across or warps % across:
        return Rejected("the warps of a tile have whole parts of it, and share out K equally")
    if warps * STAGES * (rows * STEP // 2 + 2 * tokens * STEP) > hardware.SHARED_BYTES:
        return Rejected(f"{STAGES} stages of each warp do not fit into shared memory")
    return None
