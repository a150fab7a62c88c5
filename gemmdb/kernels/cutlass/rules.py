"""Which configs of `cutlass:gemm` can run on which problem and GPU, each rule with its reason; and its tiles."""

from __future__ import annotations

from collections.abc import Collection

from gemmdb.kernels import hardware, rules
from gemmdb.kernels.kernel import ConfigLike
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected

EPILOGUE_BYTES = 16 * 1024
"""The shared memory that stores are staged through, roughly: a quarter of a tile of 128 x 128."""
_MAX_SUMS = 128
"""The most sums of a tile that one thread keeps in registers."""
_FLOATS = ("bf16", "fp16")
_BANDS = ((8, 6), (4, 3), (2, 2))
"""(tiles of a band, the least tiles along the shorter side that CUTLASS makes such a band for)."""


def rejection(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    """Why a cutlass config cannot run, None when it can. `symbolic`: which of `m`, `n`, `k` are not fixed."""
    return (
        _reject_sizeless(config, problem, device)
        or rules.reject_empty(problem)
        or _reject_sizes(config, problem, symbolic)
    )


@rules.sizeless
def _reject_sizeless(config: ConfigLike, problem: Problem, device: Device) -> Rejected | None:
    if device.capability != hardware.HOPPER:
        return Rejected("the kernel is made of Hopper's instructions")
    if problem.scalars != "unit":
        return Rejected("the epilogue has no alpha and beta")
    return _reject_dtypes(problem) or _reject_operands(problem) or _reject_tile(config, problem, device)


def warp_groups(config: ConfigLike) -> int:
    """How many warp groups share a tile."""
    return 2 if config.values["schedule"] == "cooperative" else 1


def scheduled(tiles: tuple[int, int], cluster: tuple[int, int], swizzle: int) -> tuple[int, int]:
    """The tiles along M and N that CUTLASS's persistent schedulers compute for an output of `tiles`: whole clusters, in
    whole bands of at most `swizzle` clusters, also beyond the output. With swizzle=8 and cluster=(2, 1), 8 x 64 tiles
    become 16 x 64.

    On an H200, the time of a kernel with swizzle=8 over that with 1 is in the median what these numbers say, over 4,000
    pairs: 1.4 where they say 1.3, 2.3 where they say 2.0.
    """
    rows, columns = (_whole(count, size) for count, size in zip(tiles, cluster, strict=True))
    band = next((band for band, least in _BANDS if band <= swizzle and least <= min(rows, columns)), 1)
    return _whole(rows, band * cluster[0]), _whole(columns, band * cluster[1])


def _whole(count: int, of: int) -> int:
    return -(-count // of) * of


def _reject_dtypes(problem: Problem) -> Rejected | None:
    op = problem.spec
    if not op.integer and problem.a.dtype not in _FLOATS:
        return Rejected("the kernel is rendered for 16-bit floats")
    if op.integer and problem.fusion == "none":
        return None if problem.out == "int32" else Rejected("an int32 output without a scale stays int32")
    outputs = (*_FLOATS, "fp32") if op.integer else (problem.a.dtype,) if op.dequantises else _FLOATS
    if problem.out not in outputs:
        return Rejected(f"no epilogue is rendered for {problem.out}")
    if problem.numerics.acc not in ("fp32", "int32"):
        return Rejected("the sums are fp32 or int32")
    return None


def _reject_operands(problem: Problem) -> Rejected | None:
    for operand in (problem.a, problem.b):
        if operand.layout.order not in rules.STEPPED:
            return Rejected(f"a {operand.layout.order} operand has no row start to step by")
        if not hardware.vector_rows(operand):
            return Rejected("the tensor copy engine wants rows that start at multiples of 16 bytes")
    bias = problem.bias
    if bias is not None and bias.kind != "column" and bias.align * ITEM_SIZES[bias.dtype] < VECTOR_BYTES:
        return Rejected("the bias is read in vectors of 16 bytes")
    column = problem.b.layout.order.startswith("col")
    if problem.spec.integer and not (column and problem.a.row_major):
        return Rejected("the matrix unit takes int8 only with K along memory in both operands")
    if problem.spec.dequantises and not column:
        return Rejected("the weight is converted in registers, which are filled with K along memory")
    return None


def _reject_tile(config: ConfigLike, problem: Problem, device: Device) -> Rejected | None:
    value = config.values
    m, n, k = (int(value[name]) for name in ("tile_m", "tile_n", "tile_k"))
    rows, columns = (n, m) if value["swap"] else (m, n)
    if problem.spec.dequantises and not value["swap"]:
        return Rejected("the operand that is converted in registers comes first")
    groups, least = warp_groups(config), hardware.GROUP_ROWS
    if rows not in (least, 2 * least, 4 * least) or rows < groups * least:
        return Rejected(f"a warp group of the matrix unit takes {least} rows; two of them share a cooperative tile")
    if rows * columns // (hardware.WARP_THREADS * hardware.GROUP_WARPS * groups) > _MAX_SUMS:
        return Rejected("the sums of a tile do not fit into the registers of its warp groups")
    if problem.spec.integer and k < 64:
        return Rejected("a swizzled row of int8 is at least 64 bytes")
    stage = hardware.stage_bytes((m, n, k), hardware.item_sizes(problem.a, problem.b))
    if 2 * stage + EPILOGUE_BYTES > hardware.shared_bytes(device):
        return Rejected("two pipeline stages do not fit into shared memory")
    if value["split_k"] != 1 and value["schedule"] != "cooperative":
        return Rejected("stream-K and split-K are there for the cooperative schedule only")
    return None


def _reject_sizes(config: ConfigLike, problem: Problem, symbolic: Collection[str]) -> Rejected | None:
    if "n" in symbolic or "k" in symbolic:
        return Rejected("whether rows start at multiples of 16 bytes depends on N and K")
    if problem.n * ITEM_SIZES[problem.out] % VECTOR_BYTES:
        return Rejected("the output is stored by the tensor copy engine: its rows are multiples of 16 bytes")
    value = config.values
    split = int(value["split_k"])
    if split > -(-problem.k // int(value["tile_k"])):
        return Rejected(f"K={problem.k} has fewer than {split} steps of {value['tile_k']}")
    return None
