"""What is tried of `persistent`: an entry of `persistent.json` is (BLOCK_M, BLOCK_N, BLOCK_K, warps, stages, programs
per multiprocessor)."""

from __future__ import annotations

from collections.abc import Iterator

from gemmdb.kernels import hardware
from gemmdb.kernels.config import Config
from gemmdb.kernels.menus import tile
from gemmdb.kernels.menus.shared import BOTH, PLAIN, Menu, depth_of, dequant, read_shapes, up_to
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

_MENUS = read_shapes("persistent")
MIN_ROWS = 33
"""With fewer rows, tiles are too small for the tensor copy engine to pay off."""


def _usual(problem: Problem, device: Device) -> Iterator[Config]:
    if problem.m < MIN_ROWS:
        return
    entries = up_to(_MENUS.get(problem.op, _MENUS["mm"]), problem.m)
    for m, n, k, warps, stages, resident in entries:
        # The weight as left operand suits few rows. Only the first shape is tried both ways.
        both = (m, n, k) == entries[0][:3] and problem.m <= 512 and not problem.spec.dequantises
        for swap in BOTH if both else PLAIN:
            yield Config.of(
                "triton", "persistent", block_m=m, block_n=n, block_k=depth_of(problem, k), group_m=hardware.BAND_ROWS,
                swap=swap, dequant=dequant(problem), resident=resident, warps=warps, stages=stages,
            )  # fmt: skip


def _whole(problem: Problem, device: Device) -> Iterator[Config]:
    for one in tile.whole(problem, device):
        if problem.m >= MIN_ROWS and one.values["load"] == "tma" and one.values["split_k"] == 1:
            same = {name: value for name, value in one.params if name not in ("split_k", "reduce", "load")}
            for resident in (1, 2):
                # The epilogue needs some of the shared memory that `tile` can use for its pipeline alone.
                stages = max(int(one.values["stages"]) - 1, 1)
                yield Config.of("triton", "persistent", **{**same, "resident": resident, "stages": stages})


MENU = Menu(_usual, _whole)
