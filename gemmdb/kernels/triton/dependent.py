"""Programmatic dependent launch of our Triton kernels: a kernel begins while the one before it in its stream still
runs, and waits for it before it reads or writes memory."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from gemmdb.kernels import hardware
from gemmdb.kernels.kernel import ConfigLike, OneOf
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected

PARAMS = {"pdl": OneOf((1, 2))}
"""1: the kernel begins early and waits. 2: before it waits, each program also asks for the beginning of its own slice
of the weight, into L2. Without the parameter the kernel begins when the one before it has ended."""
WAIT, LAUNCH = "tl.extra.cuda.gdc_wait()", "tl.extra.cuda.gdc_launch_dependents()"
"""The statements that wait for the kernel before, and that let the next one begin. The next one does not begin before
the wait: its programs would crowd on the few multiprocessors that are free by then."""
AHEAD_BYTES = 16 * 1024
"""Bytes of the weight that a program asks for before it waits: about what all multiprocessors together receive during
one trip to memory. More would delay the first tile of a kernel that need not wait."""


def early(config: ConfigLike) -> bool:
    """Whether a config begins before the kernel in front of it has ended."""
    return "pdl" in config.values


def ways(config: ConfigLike) -> list[Any]:
    """A config in each way of beginning early; none if its kernel cannot."""
    if config.spec.optional != PARAMS or early(config):
        return []
    of: Any = type(config)
    return [of.of(config.backend, config.kernel, **config.values, pdl=way) for way in PARAMS["pdl"].values]


def constants(config: ConfigLike, problem: Problem) -> dict[str, int | str]:
    """The constants of a template beside its own: PIECES pieces of each column of the weight, of PIECE elements and
    PIECE_BYTES bytes, are asked for, one piece by each thread or several."""
    if config.values.get("pdl") != 2:
        return {}
    columns, size = int(config.values["block_n"]), ITEM_SIZES[problem.b.dtype]
    threads = hardware.WARP_THREADS * int(config.values["warps"])
    each = max(AHEAD_BYTES // columns, VECTOR_BYTES)
    while each > problem.k * size:
        each //= 2
    pieces = max(min(threads // columns, each // VECTOR_BYTES), 1)
    return {"PIECES": pieces, "PIECE": each // pieces // size, "PIECE_BYTES": each // pieces}


def rejection(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    """Why a config with this parameter cannot run, None when it can or lacks it."""
    if not early(config):
        return None
    if device.capability < hardware.HOPPER:
        return Rejected(f"{device.arch} has no programmatic dependent launch, which needs compute capability 9.0")
    if config.spec.maps(config):
        return Rejected("tensor maps are built in memory that the kernel before may still read")
    if config.values["pdl"] == 1:
        return None
    if problem.b.row_major:
        return Rejected("a weight is asked for in advance where its K runs along memory")
    if "k" in symbolic or problem.k * ITEM_SIZES[problem.b.dtype] < VECTOR_BYTES:
        return Rejected(f"a weight is asked for in pieces of {VECTOR_BYTES} bytes or more of a fixed K")
    return None
