"""Which configs of our own Triton kernels can run on which problem and GPU; each rule with its reason."""

from __future__ import annotations

from collections.abc import Collection

from gemmdb.kernels import hardware
from gemmdb.kernels.config import Config
from gemmdb.kernels.legality_fp8 import summed_in_full, unmultiplied
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES
from gemmdb.key.operands import Operand
from gemmdb.key.problem import Problem

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
    if problem.op == "scaled_mm" and (reason := unmultiplied(problem, device)):
        return reason
    for operand, (rows, columns) in _operands(problem):
        if operand.layout.order in ("broadcast", "strided"):
            return f"a {operand.layout.order} operand has no row start to step by"
        if rows * columns >= hardware.LARGEST_OFFSET:
            return "offsets within an operand are 32 bits wide"
    if config.kernel == "gemv":
        return _gemv(config, problem, symbolic)
    return _blocks(config, problem, device) or _OWN[config.kernel](config, problem)


def counts_arrivals(config: Config) -> bool:
    """Whether the programs of a tile count who finishes last, and so need counters that are zero before they start and
    room for partial sums."""
    return config.values.get("reduce") == "fixup" or (config.kernel == "narrow" and config.values["split_k"] != 1)


def warpgroup(problem: Problem, left: int, warps: int) -> bool:
    """Whether a tile with `left` rows of its left operand goes to Hopper's warp-group matrix instructions. They take
    fp32 as TF32 only: in full it is multiplied by ordinary instructions, and so is fp64."""
    return hardware.by_warp_groups(left, warps) and problem.a.dtype != "fp64" and not _in_full(problem)


def turned_bytes(problem: Problem, block: tuple[int, int, int], swap: int) -> int:
    """Shared memory, in bytes, that tiles [m, k] and [n, k] of tensor maps take beside the pipeline: what a tensor map
    loads is stored as it lies in memory, and ordinary instructions want their left operand as [m, k] and their right
    one as [k, n], so what lies the other way is copied. The matrix unit takes either."""
    if not _in_full(problem):
        return 0
    m, n, k = block
    tiles = ((problem.a, m), (problem.b, n))
    return sum(k * size * ITEM_SIZES[one.dtype] for one, size in tiles if _by_rows(one) == bool(swap))


def shared_bytes(config: Config, problem: Problem) -> int:
    """Shared memory that the kernel takes, in bytes, as far as it is the pipeline's: a lower bound.

    The warp-group instructions read the stage that a load would overwrite, so they keep one buffer more. Tensor maps
    have a barrier of 8 bytes for each stage that is ahead.
    """
    value = config.values
    m, n, k, stages = (int(value[name]) for name in ("block_m", "block_n", "block_k", "stages"))
    ahead = max(stages - 1, 1)
    buffers = stages if _grouped(config, problem) else ahead
    pipeline = hardware.stage_bytes((m, n, k), hardware.item_sizes(problem.a, problem.b)) * buffers
    if config.kernel != "persistent" and value.get("load") != "tma":
        return pipeline
    loop = pipeline + turned_bytes(problem, (m, n, k), int(value["swap"]))
    return 8 * ahead + max(loop, _epilogue_bytes(config, problem, buffers))


def _epilogue_bytes(config: Config, problem: Problem, buffers: int) -> int:
    """What is in shared memory while a persistent kernel stores a tile of 32-bit outputs, the next one already in the
    pipeline: 16 rows per warp change their layout at a time. 0 for other kernels.

    Operands of 8 and 32 bits are multiplied out of the buffers only when K runs along memory; else one of the buffers
    is a copy, which the loop alone needs. An activation that is copied goes to the matrix unit by way of registers.
    """
    value = config.values
    if config.kernel != "persistent" or value["swap"] or ITEM_SIZES[problem.out] != 4 or _in_full(problem):
        return 0
    m, n, k = (int(value[name]) for name in ("block_m", "block_n", "block_k"))
    wide = ITEM_SIZES[problem.a.dtype] == 2
    a_kept = buffers - (not wide and not _by_rows(problem.a))
    b_kept = buffers - (not wide and _by_rows(problem.b))
    a_size, b_size = hardware.item_sizes(problem.a, problem.b)
    kept = k * (a_kept * m * a_size + b_kept * n * b_size)
    return kept + 4 * n * min(m, 16 * int(value["warps"]))


def _grouped(config: Config, problem: Problem) -> bool:
    """`warpgroup` of a config that has tiles."""
    left = int(config.values["block_n" if config.values["swap"] else "block_m"])
    return warpgroup(problem, left, int(config.values["warps"]))


def _in_full(problem: Problem) -> bool:
    """Whether fp32 is multiplied as it is."""
    return problem.a.dtype == "fp32" and problem.numerics.fp32 == "ieee"


def _by_rows(operand: Operand) -> bool:
    return operand.layout.order.startswith("row")


def _operands(problem: Problem) -> tuple[tuple[Operand, tuple[int, int]], ...]:
    return (problem.a, (problem.m, problem.k)), (problem.b, (problem.k, problem.n))


def _blocks(config: Config, problem: Problem, device: Device) -> str | None:
    """What holds for every kernel that multiplies tiles on the matrix unit."""
    if problem.op in ("int_mm", "scaled_mm") and int(config.values["block_k"]) < hardware.LEAST_DEPTH:
        return f"the matrix unit takes {hardware.LEAST_DEPTH} {problem.a.dtype} of K at once"
    if problem.op != "mixed_mm" and config.values["dequant"] != "cast":
        return "there is nothing to dequantise"
    slow = problem.op == "scaled_mm" and not problem.numerics.fast
    if slow and not summed_in_full(device, _grouped(config, problem)):
        return "the sums stay in the matrix unit's accumulator, which is the fast accumulation"
    if shared_bytes(config, problem) > hardware.shared_bytes(device):
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
    if split > -(-problem.k // step):
        return f"K={problem.k} has fewer than {split} steps of {step}"
    if split * (problem.m + 256) * (problem.n + 256) >= hardware.LARGEST_OFFSET:
        return "offsets within the partial sums are 32 bits wide"
    return None


def _persistent(config: Config, problem: Problem) -> str | None:
    return _tma(problem)


def _tma(problem: Problem) -> str | None:
    for operand, _ in _operands(problem):
        if not hardware.vector_rows(operand):
            return "the tensor copy engine wants rows that start at multiples of 16 bytes"
    return None


def _gemv(config: Config, problem: Problem, symbolic: Collection[str]) -> str | None:
    if problem.m > hardware.GEMV_ROWS or "m" in symbolic:
        return f"the number of rows is fixed, and more than {hardware.GEMV_ROWS} do not fit into registers"
    column = problem.b.layout.order
    # A single column without gaps counts as row-major.
    if not problem.a.layout.order.startswith("row") or not (
        column.startswith("col") or (problem.n, column) == (1, "row")
    ):
        return "K has to run along memory in both operands"
    if problem.op != "mixed_mm" and config.values["dequant"] != "cast":
        return "there is nothing to dequantise"
    return None


_OWN = {"tile": _tile, "persistent": _persistent, "narrow": _split}
