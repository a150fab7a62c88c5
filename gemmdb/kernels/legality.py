"""Which config may run on which problem at all, each rule stated once with its reason beside it."""

from __future__ import annotations

import math
from collections.abc import Collection

from gemmdb.kernels.config import Config
from gemmdb.kernels.cutlass import legality as cutlass
from gemmdb.kernels.inductor import legality as inductor
from gemmdb.kernels.triton import legality as triton
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem


def illegal(config: Config, problem: Problem, device: Device, symbolic: Collection[str] = ()) -> str | None:
    """Why `config` cannot run on `problem`, None when it can. `symbolic`: which of `m`, `n`, `k` are not fixed when the
    kernel is compiled."""
    rule = _RULES.get((config.backend, config.kernel))
    if config.backend == "triton" and rule is None:
        return triton.illegal(config, problem, device, symbolic)
    return rule(config, problem, device, symbolic) if rule else None


def _int8pack(config: Config, problem: Problem, device: Device, symbolic: Collection[str]) -> str | None:
    # Measured on torch 2.13, AVX-512: K = 8 gives garbage, 500 to 520 a segmentation fault, 496, 512 and 528 are right.
    if "k" in symbolic or problem.k % 16:
        return "ATen's CPU kernel reads K in vectors of 16 without a tail"
    return None


def _packed_gemm(config: Config, problem: Problem, device: Device, symbolic: Collection[str]) -> str | None:
    values = {name: int(value) for name, value in config.params}
    threads = [values[f"threads_{size}"] for size in "mnk"]
    blocks = {size: values[f"blocks_{size}"] for size in "mnk"}
    if "n" in symbolic or "k" in symbolic:
        return "the C++ template packs its weight for fixed N and K"
    if "m" in symbolic and any((*threads, *blocks.values())):
        return "for a symbolic M the C++ template blocks at run time, so an explicit blocking would be ignored"
    if any(threads) and math.prod(threads) != device.units:
        return f"the factors {threads} do not multiply to the {device.units} threads of the device"
    for size, count in blocks.items():
        # A register block is at least one element wide, and the template clips what is larger: an alias of another.
        if count > getattr(problem, size):
            return f"{count} register blocks along {size}={getattr(problem, size)}"
    return None


_RULES = {
    ("aten", "int8pack_mm"): _int8pack,
    ("aten", "padded"): inductor.padded,
    ("cpp", "packed_gemm"): _packed_gemm,
    ("cutlass", "gemm"): cutlass.illegal,
    ("triton", "inductor_bmm"): inductor.template,
    ("triton", "inductor_mm"): inductor.template,
    ("triton", "inductor_persistent_tma"): inductor.template,
    ("triton", "inductor_scaled_tma"): inductor.template,
}
