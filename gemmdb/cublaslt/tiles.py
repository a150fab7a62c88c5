"""The sizes of cuBLASLt's tiles."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path


@functools.cache
def tiles() -> Mapping[int, tuple[int, int]]:
    """The sides of each tile, along M and along N, by its identifier (cublasLtMatmulTile_t).

    `tiles.json` holds them as NVIDIA names them, rows first. cuBLASLt's matrices lie by columns, so the rows of its
    output are our columns.
    """
    listed = json.loads((Path(__file__).parent / "tiles.json").read_text())
    return {int(identifier): (columns, rows) for identifier, (rows, columns) in listed.items()}


@functools.cache
def identifiers() -> Mapping[tuple[int, int], int]:
    """The identifier of each tile by its sides, along M and along N."""
    return {sides: identifier for identifier, sides in tiles().items()}
