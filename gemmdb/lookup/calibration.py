"""What `bounds` adds to expected times, fitted to answers for problems held out of the measured table.

Written by `python -m benchmarks.offtable calibrate --write`; do not edit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

CAPABILITIES: Sequence[int] = [90]
"""Compute capabilities of the GPUs that it holds for."""

ORIGIN: Mapping[str, object] = {
    "level": 0.99,
    "outcomes": 28414,
    "answers": 9552,
    "file": "against-aten.jsonl.gz",
    "sha256": "ee56976144f9bbf0b361adfd071e1b178d64a31f10b1764d7c48c1b6121ebc6a",
    "own": "against-aten-own.jsonl.gz",
    "own_sha256": "d50547d5454abf5f7fbe3d1131c4953366cf051a52e1e6361fade7f45624b575",
}
"""What it was fitted to."""

NEAR: Mapping[str, float] = {
    "addmm": 0.074,
    "int_mm": 0.122,
    "mixed_mm": 0.066,
    "mm": 0.036,
    "scaled_mm": -0.152,
}
"""What every expected logarithm gets on top, by op."""

WEIGHTS: Sequence[float] = (
    0.271,
    0.575,
    0.024,
    0.07,
    0.104,
    0.102,
    0.051,
    0.206,
    0.273,
    0.048,
)
"""Of no_trees, spread, rows, sides, worst, slowest, unseen, once, library, gemv."""

MODEL: Mapping[str, float] = {
    "addmm": 0.19,
    "bmm": 0.357,
    "int_mm": 0.294,
    "mixed_mm": 0.24,
    "mm": 0.158,
    "scaled_mm": 0.36,
}
"""The margin of the cost model's first candidate, by op, as a logarithm."""
