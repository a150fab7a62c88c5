"""The verdicts that lookups use from a table, with their gains and roofline times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gemmdb.cost.roofline import limits
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES
from gemmdb.key.problem import L2_STATES, Problem
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Verdict

LAUNCH_US = 1.0
"""Launch latency: no kernel is faster."""
_FP32_PER_CLOCK = {"sm75": 128, "sm80": 128}
"""IEEE fp32 operations per SM and clock, outside the tensor cores; 256 on other NVIDIA GPUs."""


@dataclass(frozen=True, slots=True)
class Row:
    """One verdict: the result of a lookup of its problem. `floor_us`: roofline microseconds per call, at least the
    launch latency. `busy`: whether the pick or ATen was timed only on a busy machine."""

    verdict: Verdict
    floor_us: float
    busy: bool = False

    @property
    def gain(self) -> float:
        """Speedup of the pick over ATen."""
        return self.verdict.speedup

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the gain. For ATen itself it is 1."""
        ratio, spread = self.verdict.ratio, self.verdict.spread
        if self.verdict.pick == ATEN:
            return 1.0, 1.0
        return 1 / (ratio * (1 + spread)), 1 / (ratio * max(1 - spread, 0.01))


def rows(table: Table, wanted: Callable[[Verdict], bool] = lambda verdict: True) -> Iterator[Row]:
    """Yield the verdicts that lookups use from a table (those of the newest protocol and toolchain) and that are
    `wanted`, read in small batches. Of the others no times are read."""
    for problem, device in table.decided():
        for l2 in L2_STATES:
            verdict = table.verdict(problem, device, l2)
            if verdict is not None and not problem.empty and wanted(verdict):
                yield Row(verdict, floor_us(problem, device), table.disturbed(problem, device, verdict.pick))


def geometric(values: Iterable[float]) -> float:
    """Return the geometric mean of positive numbers, or 1 if there are none."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def peak(problem: Problem, device: Device) -> tuple[str, float]:
    """Return how the problem is computed, in words, and the device's TFLOP/s (or TOP/s) for it."""
    _, sixteen_bit = limits(device)
    size = ITEM_SIZES[problem.a.dtype]
    if problem.a.dtype != "fp32":
        return f"{8 * size}-bit", sixteen_bit * 2 / size
    if problem.numerics.fp32 == "ieee" and device.kind == "cuda" and (clock := device.figures.get("clock_mhz")):
        return "fp32", device.units * _FP32_PER_CLOCK.get(device.arch, 256) * clock / 1e6
    return "tf32" if device.kind == "cuda" and problem.numerics.fp32 != "ieee" else "fp32", sixteen_bit * 2 / size


def floor_us(problem: Problem, device: Device) -> float:
    """Return the microseconds for moving all bytes once or for doing all operations, whichever is longer; at least the
    launch latency. For groups with rows, count only as many matrices as the sparsest split reads."""
    gb_per_s, _ = limits(device)
    _, tflops = peak(problem, device)
    moved = float(problem.bytes)
    if problem.ragged == "m":
        moved -= problem.weight_bytes * (1 - problem.fewest_groups / max(problem.active_groups, 1))
    return max(moved / gb_per_s / 1e3, problem.flops / tflops / 1e6, LAUNCH_US)
