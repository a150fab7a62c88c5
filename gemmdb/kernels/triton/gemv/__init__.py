"""`gemv`: a few rows times a weight whose K runs along memory, without the matrix unit."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from gemmdb.kernels import hardware, rules
from gemmdb.kernels.kernel import ConfigLike, IntRange, Kernel, Template
from gemmdb.kernels.triton import dependent, shared, sources
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected


def names(config: ConfigLike, problem: Problem) -> dict[str, int | str]:
    """The constants of the template."""
    own = {"ROWS": hardware.gemv_sums(problem.m), "STAGES": config.values["stages"]}
    own |= dependent.constants(config, problem)
    return shared.constants(config, problem) | own | {"SCALED": shared.scaled(problem)}


def compiled(config: ConfigLike, problem: Problem) -> int:
    """The rows of sums: with more of them than were timed, a program has more registers and fewer neighbours."""
    return hardware.gemv_sums(problem.m)


def rejection(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    """Why a config cannot run, None when it can."""
    if rejected := shared.reject_problem(problem, device) or rules.reject_block_scales(problem):
        return rejected
    if problem.m > hardware.GEMV_ROWS or "m" in symbolic:
        return Rejected(f"the number of rows is fixed, and more than {hardware.GEMV_ROWS} do not fit into registers")
    value = config.values
    block, warps = (int(value["block_n"]), int(value["block_k"])), int(value["warps"])
    if hardware.gemv_registers(problem.m, block, warps) > hardware.THREAD_REGISTERS:
        return Rejected(f"the sums of {problem.m} rows do not fit into the registers of {warps} warps")
    if hardware.gemv_step(problem.m, block, warps) * int(value["unroll"]) > hardware.GEMV_UNROLLED:
        return Rejected(f"{value['unroll']} unrolled steps of {problem.m} rows take the compiler long")
    if not rules.by_rows_and_columns(problem):
        return Rejected("K has to run along memory in both operands")
    return shared.reject_dequant(config, problem) or dependent.rejection(config, problem, device, symbolic)


KERNEL = Kernel(
    "triton", "gemv", ("mm", "addmm", "mixed_mm", "scaled_mm"), ("cuda",), 1, {
        "block_n": IntRange(1, 64, True), "block_k": IntRange(64, 4096, True), "unroll": IntRange(1, 8, True),
        "dequant": shared.DEQUANT, "warps": shared.WARPS, "stages": shared.STAGES,
    },
    optional=dependent.PARAMS, rejection=rejection, compiled=compiled,
    template=Template(__name__, names, shared.column_grid), digest=partial(sources.digest, __name__),
    equivalent=sources.EQUIVALENT,
)  # fmt: skip
