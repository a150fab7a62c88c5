"""Comparison: the result of `compare()`, and advice on a slowdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemmdb.kernels.config import ATEN
from gemmdb.table.stats import Gain

MIN_SLOWDOWN = 1.01
"""Minimum ratio to default mode at which `compare` looks for the slow GEMMs. Smaller ratios are noise."""


@dataclass(frozen=True)
class Comparison:
    """`default_us`, `gemmdb_us`: median microseconds per call, timed alternately. `error`: `difference` of the outputs.
    `repeated`: that of two calls of default mode, where it is known; an `error` of this size is not gemmdb's.
    `configs`: the lowered configs, by problem text. `slower`: by problem text, the microseconds that the model gains
    when that GEMM runs ATen; empty unless gemmdb is slower. `together_us`: the gain when all GEMMs run ATen, 0 if
    gemmdb is not slower or its kernels are not the cause. `products`: those of `stats()`, with the `spread` of
    the expected time (0: unknown) instead of the evidence.
    `interval`: the interval of the speedup. `load`: how many cores other processes kept busy during the timing, None if
    unknown; `disturbed`: the load was too high, or the times of default mode were noisy. `stopped`: the use of the
    machine by other programs for which nothing was timed (then the times are NaN and there is no interval), else empty.
    """

    default_us: float
    gemmdb_us: float
    error: float
    configs: dict[str, str]
    slower: dict[str, float]
    together_us: float = 0.0
    products: tuple[dict[str, Any], ...] = ()
    interval: tuple[float, float] | None = None
    load: float | None = None
    disturbed: bool = False
    repeated: float = 0.0
    stopped: str = ""

    @property
    def speedup(self) -> float:
        """Speedup of gemmdb over Inductor's default mode."""
        return self.default_us / self.gemmdb_us

    @property
    def kernels(self) -> int:
        """Number of distinct GEMMs that do not run ATen."""
        return sum(config != ATEN.text for config in self.configs.values())

    @property
    def verdict(self) -> str:
        """`same kernels` where ATen runs all GEMMs, `cannot tell` if the machine was busy, `no difference` where the
        interval of the gain contains 1 or nearly does, `faster`, or `slower`."""
        if not self.kernels:
            return "same kernels"
        if self.disturbed or self.stopped:
            return "cannot tell"
        found = Gain(self.speedup, *(self.interval or (self.speedup, self.speedup))).verdict
        return "no difference" if found == "slower" and self.speedup * MIN_SLOWDOWN > 1 else found

    def advice(self) -> str:
        """Advice on a slowdown, one line per GEMM in `slower`, or else the known cause."""
        found = [
            f"{gain:.1f} us lost to {self.configs[text]} on {text}: measure it again (gemmdb build) or deny the kernel"
            for text, gain in sorted(self.slower.items(), key=lambda item: -item[1])
        ]
        if found or self.verdict != "slower":
            return "\n".join(found)
        if not self.together_us:
            return "the kernels are not the cause: with ATen for every GEMM it is just as slow"
        kernels = [text for text, config in self.configs.items() if config != ATEN.text]
        return "\n".join(
            (
                f"{self.together_us:.1f} us lost to {len(kernels)} kernels together; none of them alone loses 1%:",
                *(f"  {self.configs[text]} on {text}" for text in kernels),
            )
        )
