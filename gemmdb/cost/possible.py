"""The least time that a problem can take. A table that claims less is wrong, whoever made it.

It is a bound and no estimate, from the figures of the registry alone: those in a table come from its maker. Every exact
lookup computes it, so it is arithmetic and imports no cost model.
"""

from __future__ import annotations

from typing import NamedTuple

from gemmdb.devices import registry
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES
from gemmdb.key.problem import Problem

MARGIN = 4.0
"""No time of a GPU of the registry is this many times shorter than its data sheet's rates allow. Of 440,060 rows that
were measured on an H200 and an H100, the closest took 1.17 times what the tensor cores need, and 0.79 times what the
memory needs (by a short estimate; 1.04 times if measured in full). Some GeForce double their listed rate for int8, and
for sums in fp16."""
UNKNOWN_MARGIN = 16.0
"""The same for other devices. Their rates are those of the first GPU of their arch, by the number of SMs, else those of
the FASTEST_UNIT."""
FASTEST_UNIT = 16e6
"""16-bit operations per microsecond: a little more than one SM of a B200 does. No thread of a CPU does as many."""
CALL_US = {"cuda": 0.1, "hip": 0.1, "cpu": 0.001}
"""The least microseconds of any call, by kind of device. The fastest of the 440,060 rows took 1.70."""


class Least(NamedTuple):
    """The least microseconds of a call, of a multiply-add of two bytes, and of a byte from DRAM (0 if unknown),
    with the margin."""

    call: float
    fma: float
    byte: float


def possible(us: float, problem: Problem, device: Device, l2: str) -> bool:
    """Whether a call can take `us` microseconds: at least `least_us`. Nearly all times of a table are so far above it
    that a sum which is never below it will do: each operand once, with the eight bytes of the largest dtype."""
    call, fma, byte = _known.get(device.key) or _least(device)
    m, n = problem.m, problem.n
    enough = 8 * problem.k * problem.batch * (fma * m * n + byte * (m + n))
    return us >= enough + call or us >= least_us(problem, device, l2)


def least_us(problem: Problem, device: Device, l2: str) -> float:
    """The least microseconds of one call on the device. `l2`: the state of the cache, one of `problem.L2_STATES`.

    Of the memory's traffic only what is surely read from DRAM counts: nothing with a hot cache, the operands with a
    cold one. The output may stay in the cache. Of groups, one may have all the work.
    """
    call, fma, byte = _known.get(device.key) or _least(device)
    batch, m, n, k = problem.batch, problem.m, problem.n, problem.k
    size = ITEM_SIZES[problem.a.dtype]
    us = max(call, fma * size * batch * m * n * k)
    if l2 == "hot" or not byte:
        return us
    a, b = problem.a.layout, problem.b.layout
    read = 0
    if b.order != "broadcast":
        read = k * n * size if problem.ragged else problem.weight_bytes
    if a.order != "broadcast":
        read += m * k * size * (1 if a.batch == "broadcast" else batch)
    return max(us, byte * read)


_known: dict[int, Least] = {}
"""By the keys of devices."""
_MAX_ENTRIES = 256


def _least(device: Device) -> Least:
    if len(_known) >= _MAX_ENTRIES:  # A hostile table may name many devices.
        _known.clear()
    found = _known[device.key] = _of(device)
    return found


def _of(device: Device) -> Least:
    call = CALL_US[device.kind]
    near = registry.find(device.sku) or registry.find(device.arch) if device.kind == "cuda" else None
    if near is None:
        return Least(call, 1 / (FASTEST_UNIT * device.units * UNKNOWN_MARGIN), 0.0)
    same = near.text == device.text
    share, margin = (1.0, MARGIN) if same else (device.units / near.units, UNKNOWN_MARGIN)
    tflops, gb_per_s = near.figures["tc_tflops"] * share, near.figures["copy_gb_per_s"] * share
    return Least(call, 1 / (tflops * 1e6 * margin), 1 / (gb_per_s * 1e3 * margin))
