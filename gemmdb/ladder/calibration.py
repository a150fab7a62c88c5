"""The bounds of `certainty`, fitted to answers for problems that were held out of the measured table.

Written by `python -m benchmarks.offtable calibrate --write`; do not edit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

CAPABILITIES: Sequence[int] = [90]
"""Compute capabilities of the GPUs that it holds for."""

ORIGIN: Mapping[str, object] = {
    "level": 0.99,
    "outcomes": 28411,
    "answers": 9552,
    "file": "against-aten.jsonl.gz",
    "sha256": "f553c6c8c797cb7e3429b29b5e9e385a76d4c5031a3546c92297f07affbb0055",
}
"""What it was fitted to."""

NEAR: Mapping[str, float] = {
    "addmm": 0.081,
    "int_mm": 0.131,
    "mixed_mm": 0.075,
    "mm": 0.043,
    "scaled_mm": -0.119,
}
"""What every expected logarithm gets on top, by op."""

WEIGHTS: Sequence[float] = (
    0.257,
    0.502,
    0.025,
    0.065,
    0.105,
    0.095,
    0.053,
    0.219,
    0.274,
    0.049,
)
"""Of untreed, spread, rows, sides, worst, slowest, unseen, once, library, gemv."""

MODEL: Mapping[str, float] = {
    "addmm": 0.19,
    "int_mm": 0.294,
    "mixed_mm": 0.24,
    "mm": 0.158,
}
"""The margin of the cost model's first candidate, by op, as a logarithm."""
