"""Placeholder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

CAPABILITIES: Sequence[int] = [90]
NEAR: Mapping[str, float] = {"mm": 0.05, "addmm": 0.13, "int_mm": 0.08, "mixed_mm": 0.08, "scaled_mm": 0.1}
WEIGHTS: Sequence[float] = (0.17, 0.13, 0.06, 0.06, 0.16, 0.16, 0.07, 0.37, 0.21, 0.05, 0.1, 0.02)
MODEL: Mapping[str, float] = {"mm": 0.25, "addmm": 0.25, "int_mm": 0.25, "mixed_mm": 0.25}
