"""`tile`: one program per tile of C and slice of K, for every shape; by pointers or by tensor maps."""

from __future__ import annotations

from collections.abc import Collection

from gemmdb.kernels import hardware, rules
from gemmdb.kernels.kernel import ConfigLike, IntRange, OneOf, Template
from gemmdb.kernels.triton import shared
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected

_MAX_UNALIGNED_BYTES = 512
"""Seen on an H200: block_k 512 gave wrong results at K=777 and K=2053 with an int8 weight whose rows begin anywhere,
and at K=100 with rows that begin at multiples of 4 bytes. 256 and less are right."""
_MAX_SLICED_SUMS = 64
"""Sums of a thread whose slices are added up in registers, which hold as many sums of the slice."""


def names(config: ConfigLike, problem: Problem) -> dict[str, int | str]:
    """The constants of the template."""
    own = {"TMA": shared.loads_by_tma(config), "FIXUP": config.values["reduce"] == "fixup"}
    return shared.even_constants(config, problem) | own


def reduction(config: ConfigLike) -> str:
    """How the partial sums of a split K are summed."""
    return str(config.values["reduce"])


def rejection(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    """Why a config cannot run, None when it can."""
    return (
        shared.reject_tile(config, problem, device)
        or (_reject_slices(config, problem) if "slices" in config.values else None)
        or _reject_reduction(config, problem)
    )


def _reject_slices(config: ConfigLike, problem: Problem) -> Rejected | None:
    slices, step = int(config.values["slices"]), int(config.values["block_k"])
    if slices == 1:
        return None
    if config.values["split_k"] != 1:
        return Rejected("slices and split_k exclude each other")
    if slices > -(-problem.k // step):
        return Rejected(f"K={problem.k} has fewer than {slices} steps of {step}")
    m, n, warps = (int(config.values[name]) for name in ("block_m", "block_n", "warps"))
    if m * n > _MAX_SLICED_SUMS * hardware.WARP_THREADS * warps:
        return Rejected(f"a thread has registers for {_MAX_SLICED_SUMS} sums and as many of a slice")
    return None


def _reject_reduction(config: ConfigLike, problem: Problem) -> Rejected | None:
    value = config.values
    if (value["split_k"] == 1) != (value["reduce"] == "none"):
        return Rejected("reduce belongs to a split K, and a split K needs it")
    if shared.loads_by_tma(config):
        return shared.reject_split(config, problem) or rules.reject_unaligned_rows(problem)
    ragged = problem.spec.dequantises and problem.k % int(value["block_k"]) and problem.b.layout.align < 16
    if ragged and int(value["block_k"]) >= _MAX_UNALIGNED_BYTES:
        return Rejected(f"triton 3.6 gets masked, unaligned loads of {value['block_k']} bytes of weight wrong")
    return shared.reject_split(config, problem)


KERNEL = shared.kernel(
    ("mm", "addmm", "int_mm", "mixed_mm"), {
        "block_m": IntRange(16, 256, True), "block_n": IntRange(16, 256, True), "block_k": IntRange(16, 1024, True),
        "group_m": IntRange(1, 16, True), "split_k": IntRange(1, 64), "reduce": OneOf(("none", "kernel", "fixup")),
        "swap": shared.SWAP, "load": OneOf(("pointer", "tma")), "dequant": shared.DEQUANT,
        "warps": shared.WARPS, "stages": shared.STAGES,
    },
    rejection, Template(__name__, names, shared.tile_grid, reduction), splits=("split_k",), maps=shared.loads_by_tma,
    optional={"slices": IntRange(2, hardware.MAX_SPLITS)},
)  # fmt: skip
"""Parameters: docs/contributing/kernels.md. `reduce`: how the partial sums of a split K are summed, by a second
kernel or by the last program of each tile. `slices`: one program sums that many slices of K, each on its own, and then
adds the sums in the order of `reduce=fixup`."""
