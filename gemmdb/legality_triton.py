"""Which configs of our own Triton kernels can run on which problem and GPU; each rule with its reason."""

from __future__ import annotations

import math
from collections.abc import Collection

from gemmdb.config import Config
from gemmdb.device import Device
from gemmdb.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.operands import Operand
from gemmdb.problem import Problem

SHARED_BYTES = 227 * 1024
"""Shared memory of a block where the device does not say: Hopper's."""
GEMV_ROWS = 8
_LARGEST_OFFSET = 2**31
_WIDEST_BYTES = 512
"""Seen on an H200: block_k 512 at K=777 and K=2053 with an int8 weight whose rows begin anywhere, and at K=100 where
they begin at multiples of 4 bytes, wrong each time; 256 and less are right."""


def illegal(config: Config, problem: Problem, device: Device, symbolic: Collection[str] = ()) -> str | None:
    """Why a triton config cannot run, None when it can. `symbolic`: which of `m`, `n`, `k` are not fixed."""
    if problem.op not in config.spec.ops or device.kind not in config.spec.devices:
        return f"{config.name} does not solve {problem.op} on {device.kind}"
    if 0 in (problem.m, problem.n, problem.k):
        return "there is nothing to compute in a product of size zero"
    if problem.numerics.fp32 == "bf16":
        return "fp32 is multiplied in full or as TF32 here"
    for operand, (rows, columns) in _operands(problem):
        if operand.layout.order in ("broadcast", "strided"):
            return f"a {operand.layout.order} operand has no row start to step by"
        if rows * columns >= _LARGEST_OFFSET:
            return "offsets within an operand are 32 bits wide"
    if config.kernel == "gemv":
        return _gemv(config, problem, symbolic)
    return _blocks(config, problem, device) or _OWN[config.kernel](config, problem)


def warpgroup(problem: Problem, left: int, warps: int) -> bool:
    """Whether a tile with `left` rows of its left operand goes to Hopper's warp-group matrix instructions, which take
    64 rows and 4 warps at least."""
    return left >= 64 and warps % 4 == 0 and problem.a.dtype != "fp64"


def stage_bytes(problem: Problem, m: int, n: int, k: int) -> int:
    """Bytes of one pipeline stage: a tile of each operand."""
    return m * k * ITEM_SIZES[problem.a.dtype] + n * k * ITEM_SIZES[problem.b.dtype]


def shared_bytes(config: Config, problem: Problem) -> int:
    """Shared memory that the pipelined operand tiles take, in bytes: a lower bound of what the kernel takes.

    The warp-group instructions read the stage that a load would overwrite, so they keep one buffer more.
    """
    value = config.values
    m, n, k, stages = (int(value[name]) for name in ("block_m", "block_n", "block_k", "stages"))
    grouped = warpgroup(problem, n if value["swap"] else m, int(value["warps"]))
    # A persistent kernel has its next tile in the pipeline while 32-bit outputs of this one change their layout.
    aside = config.kernel == "persistent" and not value["swap"] and ITEM_SIZES[problem.out] == 4
    return stage_bytes(problem, m, n, k) * (stages if grouped else max(stages - 1, 1)) + (4 * m * n if aside else 0)


def _operands(problem: Problem) -> tuple[tuple[Operand, tuple[int, int]], ...]:
    return (problem.a, (problem.m, problem.k)), (problem.b, (problem.k, problem.n))


def _blocks(config: Config, problem: Problem, device: Device) -> str | None:
    """What holds for every kernel that multiplies tiles on the matrix unit."""
    if problem.op == "int_mm" and int(config.values["block_k"]) < 32:
        return "the matrix unit takes 32 int8 of K at once"
    if problem.op != "mixed_mm" and config.values["dequant"] != "cast":
        return "there is nothing to dequantise"
    if shared_bytes(config, problem) > int(device.figures.get("smem_bytes", SHARED_BYTES)):
        return "the pipeline's stages do not fit into shared memory"
    return None


def _tile(config: Config, problem: Problem) -> str | None:
    value = config.values
    if (value["split_k"] == 1) != (value["reduce"] == "none"):
        return "partial sums are reduced when K is split, and only then"
    if value["load"] == "tma":
        return _split(config, problem) or _tma(problem)
    ragged = problem.op == "mixed_mm" and problem.k % int(value["block_k"]) and problem.b.layout.align < 16
    if ragged and int(value["block_k"]) >= _WIDEST_BYTES:
        return f"triton 3.6 gets masked, unaligned loads of {value['block_k']} bytes of weight wrong"
    return _split(config, problem)


def _split(config: Config, problem: Problem) -> str | None:
    split, step = int(config.values["split_k"]), int(config.values["block_k"])
    if split > math.ceil(problem.k / step):
        return f"K={problem.k} has fewer than {split} steps of {step}"
    if split * (problem.m + 256) * (problem.n + 256) >= _LARGEST_OFFSET:
        return "offsets within the partial sums are 32 bits wide"
    return None


def _persistent(config: Config, problem: Problem) -> str | None:
    return _tma(problem)


def _tma(problem: Problem) -> str | None:
    for operand, _ in _operands(problem):
        if operand.layout.align * ITEM_SIZES[operand.dtype] < VECTOR_BYTES:
            return "the tensor copy engine wants rows that start at multiples of 16 bytes"
    return None


def _gemv(config: Config, problem: Problem, symbolic: Collection[str]) -> str | None:
    if problem.m > GEMV_ROWS or "m" in symbolic:
        return f"the number of rows is fixed, and more than {GEMV_ROWS} do not fit into registers"
    column = problem.b.layout.order
    # A single column without gaps counts as row-major.
    if not problem.a.layout.order.startswith("row") or not (
        column.startswith("col") or (problem.n, column) == (1, "row")
    ):
        return "K has to run along memory in both operands"
    if problem.op != "mixed_mm" and config.values["dequant"] != "cast":
        return "there is nothing to dequantise"
    if problem.numerics.fp32 != "ieee":
        return "the products are full fp32"
    return None


_OWN = {"tile": _tile, "persistent": _persistent, "narrow": _split}
