"""Which configs of our CUTLASS kernel can run on which problem and GPU; each rule with its reason."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from gemmdb.kernels import hardware, rules
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.key.problem import Problem

if TYPE_CHECKING:
    from gemmdb.kernels.config import Config

EPILOGUE_BYTES = 16 * 1024
"""The shared memory that stores are staged through, roughly: a quarter of a tile of 128 x 128."""
_MOST_SUMS = 128
"""The most sums of a tile that one thread keeps in registers."""
_FLOATS = ("bf16", "fp16")


def illegal(config: Config, problem: Problem, device: Device, symbolic: Collection[str]) -> str | None:
    """Why a cutlass config cannot run, None when it can. `symbolic`: which of `m`, `n`, `k` are not fixed."""
    return _unfit(config, problem, device) or rules.empty(problem) or _sizes(config, problem, symbolic)


@rules.sizeless
def _unfit(config: Config, problem: Problem, device: Device) -> str | None:
    if device.capability != hardware.HOPPER:
        return "the kernel is made of Hopper's instructions"
    if problem.scalars != "unit":
        return "the epilogue has no alpha and beta"
    return _dtypes(problem) or _operands(problem) or _tile(config, problem, device)


def warp_groups(config: Config) -> int:
    """How many warp groups share a tile."""
    return 2 if config.values["schedule"] == "cooperative" else 1


def _dtypes(problem: Problem) -> str | None:
    op = problem.spec
    if not op.integer and problem.a.dtype not in _FLOATS:
        return "the kernel is rendered for 16-bit floats"
    if op.integer and problem.fusion == "none":
        return None if problem.out == "int32" else "an int32 product without a scale stays int32"
    outputs = (*_FLOATS, "fp32") if op.integer else (problem.a.dtype,) if op.dequantises else _FLOATS
    if problem.out not in outputs:
        return f"no epilogue is rendered for {problem.out}"
    if problem.numerics.acc not in ("fp32", "int32"):
        return "the sums are fp32 or int32"
    return None


def _operands(problem: Problem) -> str | None:
    for operand in (problem.a, problem.b):
        if operand.layout.order not in rules.STEPPED:
            return f"a {operand.layout.order} operand has no row start to step by"
        if not hardware.vector_rows(operand):
            return "the tensor copy engine wants rows that start at multiples of 16 bytes"
    bias = problem.bias
    if bias is not None and bias.kind != "column" and bias.align * ITEM_SIZES[bias.dtype] < VECTOR_BYTES:
        return "the bias is read in vectors of 16 bytes"
    column = problem.b.layout.order.startswith("col")
    if problem.spec.integer and not (column and problem.a.row_major):
        return "the matrix unit takes int8 only with K along memory in both operands"
    if problem.spec.dequantises and not column:
        return "the weight is converted in registers, which are filled with K along memory"
    return None


def _tile(config: Config, problem: Problem, device: Device) -> str | None:
    value = config.values
    m, n, k = (int(value[name]) for name in ("tile_m", "tile_n", "tile_k"))
    rows, columns = (n, m) if value["swap"] else (m, n)
    if problem.spec.dequantises and not value["swap"]:
        return "the operand that is converted in registers comes first"
    groups, least = warp_groups(config), hardware.GROUP_ROWS
    if rows not in (least, 2 * least, 4 * least) or rows < groups * least:
        return f"a warp group of the matrix unit takes {least} rows; two of them share a cooperative tile"
    if rows * columns // (hardware.WARP_THREADS * hardware.GROUP_WARPS * groups) > _MOST_SUMS:
        return "the sums of a tile do not fit into the registers of its warp groups"
    if problem.spec.integer and k < 64:
        return "a swizzled row of int8 is at least 64 bytes"
    stage = hardware.stage_bytes((m, n, k), hardware.item_sizes(problem.a, problem.b))
    if 2 * stage + EPILOGUE_BYTES > hardware.shared_bytes(device):
        return "two pipeline stages do not fit into shared memory"
    if value["split_k"] != 1 and value["schedule"] != "cooperative":
        return "stream-K and split-K are there for the cooperative schedule only"
    return None


def _sizes(config: Config, problem: Problem, symbolic: Collection[str]) -> str | None:
    if "n" in symbolic or "k" in symbolic:
        return "whether rows start at multiples of 16 bytes depends on N and K"
    if problem.n * ITEM_SIZES[problem.out] % VECTOR_BYTES:
        return "the output is stored by the tensor copy engine: its rows are multiples of 16 bytes"
    value = config.values
    split = int(value["split_k"])
    if split > -(-problem.k // int(value["tile_k"])):
        return f"K={problem.k} has fewer than {split} steps of {value['tile_k']}"
    return None
