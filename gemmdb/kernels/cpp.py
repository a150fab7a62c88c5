"""Inductor's C++ GEMM template for CPUs; `auto` blocking (zeros) is the template's own choice; other values count
register blocks."""

from __future__ import annotations

import math
from collections.abc import Collection

from gemmdb.kernels.kernel import ConfigLike, IntRange, Kernel
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected


def _rejection(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    values = {name: int(value) for name, value in config.params}
    threads = [values[f"threads_{size}"] for size in "mnk"]
    blocks = {size: values[f"blocks_{size}"] for size in "mnk"}
    if "n" in symbolic or "k" in symbolic:
        return Rejected("the C++ template packs its weight for fixed N and K")
    if "m" in symbolic and any((*threads, *blocks.values())):
        return Rejected("for a symbolic M the C++ template blocks at run time and ignores an explicit blocking")
    if any(threads) and math.prod(threads) != device.units:
        return Rejected(f"the factors {threads} do not multiply to the {device.units} threads of the device")
    for size, count in blocks.items():
        # A register block is at least one element wide, and the template clips larger counts, so this would repeat
        # another config.
        if count > getattr(problem, size):
            return Rejected(f"{count} register blocks along {size}={getattr(problem, size)}")
    return None


PACKED_GEMM = Kernel("cpp", "packed_gemm", ("mm", "addmm", "int_mm", "mixed_mm"), ("cpu",), 3, {
    "threads_m": IntRange(0, 4096), "threads_n": IntRange(0, 4096), "threads_k": IntRange(0, 4096),
    "blocks_m": IntRange(0, 2**20), "blocks_n": IntRange(0, 2**20), "blocks_k": IntRange(0, 2**20),
}, splits=("threads_k",), rejection=_rejection)  # fmt: skip
