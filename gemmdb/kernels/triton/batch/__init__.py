"""`batch`: one program per tile of a matrix of a batch and slice of its K."""

from __future__ import annotations

from collections.abc import Collection

from gemmdb.kernels import hardware, rules
from gemmdb.kernels.kernel import ConfigLike, IntRange, Template
from gemmdb.kernels.triton import shared
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected


def rejection(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    """Why a config cannot run, None when it can."""
    if rejected := shared.reject_tile(config, problem, device) or shared.reject_split(config, problem):
        return rejected
    if symbolic:
        return Rejected("the kernel is generated for fixed sizes")
    return rules.reject_batch(problem) or _reject_offsets(config, problem)


def _reject_offsets(config: ConfigLike, problem: Problem) -> Rejected | None:
    if problem.batch * problem.m * problem.n >= hardware.LARGEST_OFFSET:
        return Rejected("offsets within the output are 32 bits wide")
    split = int(config.values["split_k"])
    if split > 1 and problem.batch * split * (problem.m + 256) * (problem.n + 256) >= hardware.LARGEST_OFFSET:
        return Rejected("offsets within the partial sums are 32 bits wide")
    return None


KERNEL = shared.kernel(
    ("bmm",), {
        "block_m": IntRange(16, 256, True), "block_n": IntRange(16, 256, True), "block_k": IntRange(16, 512, True),
        "group_m": IntRange(1, 16, True), "split_k": IntRange(1, 64), "swap": shared.SWAP,
        "warps": shared.WARPS, "stages": shared.STAGES,
    },
    rejection, Template(__name__, shared.even_constants, shared.tile_grid, shared.reduction), splits=("split_k",),
    emitted=True,
)  # fmt: skip
"""Parameters: docs/contributing/kernels.md. It is measured as emitted code: what follows a batched GEMM is
fused by Inductor."""
