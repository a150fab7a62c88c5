"""Our CUDA kernel for int4 weights with a scale for each group, `int4.cu`: what it is compiled for, and its rules.

Like `scaled_blocks`, it is built from CUTLASS's instructions. A compiled kernel serves every problem whose weight has
groups of the same size, and zero points or none: sizes and leading dimensions are arguments.
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

_ROWS = 8
"""The matrix unit takes multiples of this from shared memory."""
_LEAST_STAGES, _MOST_STAGES = 3, 24
_MAX_SUMS = {1: 136, 2: 136, 3: 64, 4: 48}
"""The most sums that a thread keeps in registers, by the warp groups that multiply."""


def macros(config: ConfigLike, problem: Problem) -> dict[str, int | str]:
    """The macros of a legal config, by name without GEMMDB_. Those of scales and bias are for `entry` alone."""
    own, value = problem.int4, config.values
    assert own is not None
    return {
        "INT4": 1, "TILE_M": int(value["tile_m"]), "TILE_N": int(value["tile_n"]), "TILE_K": int(value["tile_k"]),
        "GROUPS": int(value["groups"]), "SPLIT": int(value["split_k"]), "GROUP": own.size,
        "ZEROS": int(own.zeros != "none"), "FP16": int(problem.a.dtype == "fp16"),
        "SCALE": 1, "ROW_SCALE": 0, "BIAS": 0,
    }  # fmt: skip


def rejection(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    """Why a config cannot run, None when it can. `symbolic`: which of `m`, `n`, `k` are not fixed."""
    if rejected := _reject_sizeless(config, problem, device) or reject_sizes(problem, symbolic):
        return rejected
    split, step = int(config.values["split_k"]), int(config.values["tile_k"])
    if problem.k % step:
        return Rejected(f"the kernel takes whole steps of {step} along K")
    if split > problem.k // step:
        return Rejected(f"K={problem.k} has fewer than {split} steps of {step}")
    return None


@rules.sizeless
def _reject_sizeless(config: ConfigLike, problem: Problem, device: Device) -> Rejected | None:
    return reject_format(problem, device, ("none", problem.a.dtype)) or _reject_tile(config)


def reject_format(problem: Problem, device: Device, zeros: Collection[str]) -> Rejected | None:
    """Why a CUDA kernel for int4 weights that knows these kinds of zero points cannot read a problem's operands, at any
    sizes."""
    own = problem.int4
    if device.capability != hardware.HOPPER:
        return Rejected("the kernel is made of Hopper's instructions")
    if own is None or own.packing != LOW_FIRST or own.zeros not in zeros:
        return Rejected(f"the kernel reads weights packed {LOW_FIRST}, with zero points: {', '.join(zeros)}")
    if problem.a.dtype not in ("bf16", "fp16") or problem.out != problem.a.dtype or problem.scalars != "unit":
        return Rejected("the kernel stores the dtype of the activation, without alpha and beta")
    if problem.numerics.acc != "fp32":
        return Rejected("the sums are fp32")
    if not problem.a.row_major or not hardware.vector_rows(problem.a):
        return Rejected("K runs along memory in the activation, whose rows start at multiples of 16 bytes")
    return None


def reject_sizes(problem: Problem, symbolic: Collection[str]) -> Rejected | None:
    """Why such a kernel cannot run at these sizes. `symbolic`: which of `m`, `n`, `k` are not fixed."""
    if rejected := rules.reject_empty(problem):
        return rejected
    if "n" in symbolic or "k" in symbolic:
        return Rejected("whether rows start at multiples of 16 bytes depends on N and K")
    if problem.n * ITEM_SIZES[problem.out] % VECTOR_BYTES:
        return Rejected("the output is stored in vectors: its rows are multiples of 16 bytes")
    return None


def _reject_tile(config: ConfigLike) -> Rejected | None:
    value = config.values
    tokens, rows, step, groups, split = (
        int(value[name]) for name in ("tile_m", "tile_n", "tile_k", "groups", "split_k")
    )
    if tokens % _ROWS:
        return Rejected(f"tiles have multiples of {_ROWS} rows")
    waves, left = divmod(rows, hardware.GROUP_ROWS * groups)
    if left or waves not in (1, 2):
        return Rejected("each warp group multiplies 64 rows of the weight's tile, or twice 64")
    if waves * tokens // 2 > _MAX_SUMS[groups]:
        return Rejected("the sums of a tile do not fit into the registers of its warp groups")
    stage = 2 * tokens * step + rows * step // 2
    owners = next(many for many in range(split, 0, -1) if tokens // _ROWS % many == 0)
    out = 2 * rows * tokens // owners
    stages = min((hardware.SHARED_BYTES - 1024 - (out if split == 1 else 0)) // (stage + 16), _MOST_STAGES)
    if stages < _LEAST_STAGES:
        return Rejected(f"{_LEAST_STAGES} pipeline stages do not fit into shared memory")
    if split > 1 and 2 * split * out + out > stages * stage:
        return Rejected("the parts of a split do not fit into shared memory")
    return None
