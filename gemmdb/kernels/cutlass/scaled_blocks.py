"""Our CUDA kernel for fp8 operands with block scales, `scaled_blocks.cu`: what it is compiled for, and its rules.

It is built from CUTLASS's instructions, but not from its collective builders. Like those of `gemm`, a compiled kernel
serves every problem: sizes, leading dimensions and the steps between scales are arguments.
"""

from __future__ import annotations

from collections.abc import Collection

from gemmdb.kernels import hardware, rules
from gemmdb.kernels.kernel import ConfigLike
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.key.ops import SCALE_BLOCK
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected

_FP8 = "fp8_e4m3"
_LEAST_STAGES = 3
_MAX_COLUMNS = {64: 160, 128: 160, 192: 128, 256: 128}
"""The most columns of the right tile for so many rows of the left one: a thread keeps the sums in registers."""


def macros(config: ConfigLike) -> dict[str, int | str]:
    """The macros of a legal config, by name without GEMMDB_. Those of scales and bias are for `entry` alone."""
    rows, columns, shared = _tile(config)
    return {
        "SCALED_BLOCKS": 1, "TILE_ROWS": rows, "TILE_COLUMNS": columns, "SWAP": int(config.values["swap"]),
        "SHARED": shared, "SPLIT": int(config.values["split_k"]), "SCALE": 1, "ROW_SCALE": 1, "BIAS": 0,
    }  # fmt: skip


def rejection(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    """Why a config cannot run, None when it can. `symbolic`: which of `m`, `n`, `k` are not fixed."""
    if rejected := _reject_sizeless(config, problem, device) or rules.reject_empty(problem):
        return rejected
    if "n" in symbolic or "k" in symbolic:
        return Rejected("whether rows start at multiples of 16 bytes depends on N and K")
    if problem.n * ITEM_SIZES[problem.out] % VECTOR_BYTES:
        return Rejected("the output is stored by the tensor copy engine: its rows are multiples of 16 bytes")
    split = int(config.values["split_k"])
    if split > -(-problem.k // SCALE_BLOCK):
        return Rejected(f"K={problem.k} has fewer than {split} blocks of {SCALE_BLOCK}")
    return None


@rules.sizeless
def _reject_sizeless(config: ConfigLike, problem: Problem, device: Device) -> Rejected | None:
    if device.capability != hardware.HOPPER:
        return Rejected("the kernel is made of Hopper's instructions")
    if problem.scales != "block":
        return Rejected("the kernel applies block scales")
    if (problem.a.dtype, problem.b.dtype, problem.out) != (_FP8, _FP8, "bf16") or problem.bias is not None:
        return Rejected("the kernel multiplies e4m3 and stores bf16, without a bias")
    if not rules.by_rows_and_columns(problem):
        return Rejected("K has to run along memory in both operands")
    return rules.reject_unaligned_rows(problem) or _reject_tile(config)


def _reject_tile(config: ConfigLike) -> Rejected | None:
    rows, columns, shared = _tile(config)
    split = int(config.values["split_k"])
    if columns > _MAX_COLUMNS.get(rows, 0):
        return Rejected("a warp group takes 64 rows of the left operand, and the sums have to fit in registers")
    if shared < 0 or (shared and split > 1):
        return Rejected("a cluster shares one operand's loads, or splits K")
    if (config.values["swap"] and rows > SCALE_BLOCK) or (split > 1 and rows == 2 * SCALE_BLOCK):
        return Rejected("a weight's tile has one block of scales, and only tiles of up to 192 rows split K")
    partials = 4 * (split - 1) * rows * columns
    stage = hardware.stage_bytes((rows, columns, SCALE_BLOCK), (1, 1))
    if partials + 2 * rows * columns + _LEAST_STAGES * (stage + 1024) > hardware.SHARED_BYTES:
        return Rejected(f"{_LEAST_STAGES} pipeline stages do not fit into shared memory")
    return None


def _tile(config: ConfigLike) -> tuple[int, int, int]:
    """(rows, columns, GEMMDB_SHARED) of a config; the last is negative where clusters extend along both dimensions."""
    value = config.values
    sides = [(int(value[f"tile_{side}"]), int(value[f"cluster_{side}"])) for side in ("m", "n")]
    (rows, down), (columns, along) = sides[::-1] if value["swap"] else sides
    shared = {(1, 1): 0, (2, 1): 1, (1, 2): 2}.get((down, along), -1)
    return rows, columns, shared
