"""Symbolic sizes on a GPU: the kernels and the sizes that tests of one compile for a range share."""

from __future__ import annotations

import pytest

from gemmdb.kernels.config import Config

Variant = tuple[str, dict[str, str | int]]
OPEN: list[Variant] = [
    ("tile", {}),
    ("tile", {"swap": 1}),
    ("tile", {"load": "tma"}),
    ("tile", {"split_k": 3, "reduce": "kernel"}),
    ("narrow", {}),
    ("persistent", {}),
]
BOUNDED: list[Variant] = [("tile", {"split_k": 3, "reduce": "fixup"}), ("narrow", {"split_k": 2})]
SIZES = (2, 15, 16, 17, 64, 129, 1000)


def cutlass_config() -> Config:
    """A config of our CUTLASS kernel; skips the test where it cannot be compiled."""
    from gemmdb.inductor.lower.adapter import cutlass

    if cutlass.compiler_rejection():
        pytest.skip(str(cutlass.compiler_rejection()))
    return Config.of(
        "cutlass", "gemm", tile_m=64, tile_n=128, tile_k=64, cluster_m=1, cluster_n=1, schedule="pingpong", split_k=1,
        swizzle=1, raster="auto", swap=1,
    )  # fmt: skip
