"""`gemv`: a few rows times a weight whose K runs along memory, without the matrix unit."""

from __future__ import annotations

from collections.abc import Collection

from gemmdb.kernels import hardware, rules
from gemmdb.kernels.kernel import ConfigLike, IntRange, Template
from gemmdb.kernels.triton import shared
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected

MAX_ROWS = 8
"""Rows of A that are kept in registers at most."""
MAX_UNROLLED = 768
"""Weights of a thread in an unrolled step, for each row and once more for the loads, at most. No kernel that was timed
has more than 256. It takes the compiler 14 s in fp32, and 38 s for twice as many."""
OTHER_REGISTERS = 40
"""Registers of a thread besides its sums and weights: addresses, indices, an activation in flight. The largest configs
that were timed without spilling have 232 registers with them."""


def names(config: ConfigLike, problem: Problem) -> dict[str, int | str]:
    """The constants of the template."""
    own = {"ROWS": sums(problem.m), "STAGES": config.values["stages"]}
    return shared.constants(config, problem) | own | {"SCALED": shared.scaled(problem)}


def sums(rows: int) -> int:
    """The rows of sums that are compiled for a number of rows of A: the next power of two."""
    return 1 << (rows - 1).bit_length()


def compiled(config: ConfigLike, problem: Problem) -> int:
    """The rows of sums: with more of them than were timed, a program has more registers and fewer neighbours."""
    return sums(problem.m)


def rejection(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    """Why a config cannot run, None when it can."""
    if rejected := shared.reject_problem(problem, device) or rules.reject_block_scales(problem):
        return rejected
    if problem.m > MAX_ROWS or "m" in symbolic:
        return Rejected(f"the number of rows is fixed, and more than {MAX_ROWS} do not fit into registers")
    value = {name: int(number) for name, number in config.params if name != "dequant"}
    warps, unroll = value["warps"], value["unroll"]
    # The 32-bit sums of all rows of a thread, and its weights of a step along K as fp32.
    step = (sums(problem.m) + 1) * -(-value["block_n"] * value["block_k"] // (hardware.WARP_THREADS * warps))
    if step + OTHER_REGISTERS > hardware.THREAD_REGISTERS:
        return Rejected(f"the sums of {problem.m} rows do not fit into the registers of {warps} warps")
    if step * unroll > MAX_UNROLLED:
        return Rejected(f"{unroll} unrolled steps of {problem.m} rows take the compiler long")
    if not rules.by_rows_and_columns(problem):
        return Rejected("K has to run along memory in both operands")
    return shared.reject_dequant(config, problem)


KERNEL = shared.kernel(
    ("mm", "addmm", "mixed_mm", "scaled_mm"), {
        "block_n": IntRange(1, 64, True), "block_k": IntRange(64, 4096, True), "unroll": IntRange(1, 8, True),
        "dequant": shared.DEQUANT, "warps": shared.WARPS, "stages": shared.STAGES,
    },
    rejection, Template(__name__, names, shared.column_grid), compiled=compiled,
)  # fmt: skip
