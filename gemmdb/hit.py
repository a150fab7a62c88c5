"""Hit: the result of a lookup, with its evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.kernel import Value

Range = tuple[int, int | None]
"""The smallest and the largest value of a symbolic size; None means unbounded."""
LARGEST = 65536
"""Assumed upper end of an open range. `mark_dynamic` gives [2, inf), and no benchmark goes far above this size."""
Branches = tuple[tuple[int | None, Config], ...]
"""Configs that split a range of M: the largest M that each one serves, in order; None means unbounded."""

ATEN_BETWEEN = "aten_between"
"""Evidence of a Hit for a range of M: the first and the last M of each part that ATen serves between two sizes."""
RUNGS = ("exact", "near", "epilogue", "sku", "model")


def gain(ratio: float) -> float:
    """Return the gain over ATen of a config that takes `ratio` times as long as ATen: 0.25 for a ratio of 0.8."""
    return 1 / ratio - 1


def timed_sizes(evidence: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the sizes of a range whose times the evidence has: `m`, `n` and `k` (only those that differ from the
    hint's), and the `expected_us`, `speedup` and perhaps `spread` of what serves them."""
    return [one for one in evidence.get("sizes", ()) if "expected_us" in one]


@dataclass(frozen=True)
class Hit:
    """A lookup result. `config`: the config to run, or ATen if the gain is below the policy's minimum; `evidence` then
    contains the verdict. `expected_us`: latency of one call in microseconds; `speedup`: over ATen, 1.0 for ATen.
    `table`: path of the table it came from. `evidence`: JSON-ready facts: rows, runs, ties, distance, expected loss,
    protocol, toolchain. `branches`: for a symbolic M, the largest M of each config; `config` is then the one at the
    hint."""

    rung: str
    config: Config
    expected_us: float
    speedup: float
    table: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    branches: Branches = ()

    @property
    def backend(self) -> str:
        """`aten`, `triton`, `cutlass` or `cpp`."""
        return self.config.backend

    @property
    def kernel(self) -> str:
        """The kernel's name in its backend."""
        return self.config.kernel

    @property
    def params(self) -> Mapping[str, Value]:
        """The kernel's parameters by name."""
        return self.config.values

    def kernels(self, ranges: Mapping[str, Range]) -> Iterator[tuple[Config, Range | None]]:
        """Yield each config with the range of M it serves; None means all sizes. `ranges`: the query's ranges."""
        if not self.branches:
            yield self.config, None
            return
        low, high = ranges["m"]
        for limit, config in self.branches:
            yield config, (low, limit or high)
            low = (limit or 0) + 1

    def at(self, m: int) -> Config:
        """Return the config that serves M rows."""
        return next((config for limit, config in self.branches if limit is None or m <= limit), self.config)

    def with_aten(self) -> Hit:
        """Return the hit with ATen in place of its kernels, and ATen's time."""
        evidence = {name: fact for name, fact in self.evidence.items() if name not in ("kernels", "sizes")}
        sizes = [
            {**one, "expected_us": one["expected_us"] * one["speedup"], "speedup": 1.0, "spread": 0.0}
            for one in timed_sizes(self.evidence)
        ]
        evidence |= {"sizes": sizes} if sizes else {}
        us = self.expected_us * self.speedup
        return replace(self, config=ATEN, expected_us=us, speedup=1.0, branches=(), evidence=evidence)

    def as_dict(self) -> dict[str, Any]:
        """Return the dict that `gemmdb lookup --json` prints."""
        return {
            "rung": self.rung,
            "backend": self.backend,
            "kernel": self.kernel,
            "params": dict(self.params),
            "expected_us": self.expected_us,
            "speedup_vs_aten": self.speedup,
            "table": self.table,
            "evidence": dict(self.evidence),
        }

    def _repr_html_(self) -> str:
        """Render the hit as an HTML table for notebooks."""
        from html import escape  # Only notebooks need it.

        facts = {
            "rung": self.rung, "config": self.config.text, "expected": f"{self.expected_us:.2f} us",
            "over ATen": f"{self.speedup:.2f}x", "table": self.table,
        }  # fmt: skip
        rows = "".join(f"<tr><th>{name}</th><td>{escape(value)}</td></tr>" for name, value in facts.items())
        return f"<table>{rows}</table>"
