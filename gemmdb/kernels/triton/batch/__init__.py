"""`batch`: one program per tile of a matrix of a batch and slice of its K."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from gemmdb.kernels import hardware, rules
from gemmdb.kernels.kernel import IntRange, Kernel, Template
from gemmdb.kernels.triton import shared, sources
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

if TYPE_CHECKING:
    from gemmdb.kernels.config import Config


def grid(m: Any, n: Any, meta: Mapping[str, Any], cdiv: Callable[[Any, Any], Any]) -> tuple[Any, Any, Any]:
    """The programs of one matrix; the third dimension counts the matrices."""
    return shared.tile_grid(m, n, meta, cdiv)


def reduction(config: Config) -> str:
    """How the partial sums of a split K are summed."""
    return "none" if config.values["split_k"] == 1 else "fixup"


def illegal(config: Config, problem: Problem, device: Device, symbolic: Collection[str]) -> str | None:
    """Why a config cannot run, None when it can."""
    if reason := shared.illegal_tile(config, problem, device) or shared.illegal_split(config, problem):
        return reason
    if symbolic:
        return "the kernel is generated for fixed sizes"
    return rules.unbatched(problem) or _far(config, problem)


def _far(config: Config, problem: Problem) -> str | None:
    if problem.batch * problem.m * problem.n >= hardware.LARGEST_OFFSET:
        return "offsets within the output are 32 bits wide"
    split = int(config.values["split_k"])
    if split > 1 and problem.batch * split * (problem.m + 256) * (problem.n + 256) >= hardware.LARGEST_OFFSET:
        return "offsets within the partial sums are 32 bits wide"
    return None


KERNEL = Kernel(
    "triton", "batch", ("bmm",), ("cuda",), 1, {
        "block_m": IntRange(16, 256, True), "block_n": IntRange(16, 256, True), "block_k": IntRange(16, 512, True),
        "group_m": IntRange(1, 16, True), "split_k": IntRange(1, 64), "swap": shared.SWAP,
        "warps": shared.WARPS, "stages": shared.STAGES,
    },
    splits=("split_k",), illegal=illegal, emitted=True,
    template=Template(__name__, shared.even_constants, grid, reduction), digest=partial(sources.digest, __name__),
    equivalent=sources.EQUIVALENT,
)  # fmt: skip
"""docs/kernels.md says what each parameter does. It is measured as emitted code: what follows a product of a batch is
fused by Inductor."""
