"""Hopper's algorithm: the values of its attributes that ran without error, and the sizes of its tiles.

cuBLASLt does not defend itself against attributes that its own heuristic never names: for some, cuBLAS 13.1 divides by
zero, which ends the process. So a process asks for an algorithm only if it is one of these, or if the heuristic names
it for the same GEMM.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path

ALGORITHM, STAGES = 66, 35
"""Its number, and its only pipeline: as many stages of 64 elements of K as fit."""
CUSTOM = range(8)
"""Values of `custom`. The low bit and the two above it choose different things, whose names NVIDIA does not publish."""
CLUSTERS: Mapping[int, tuple[int, int]] = {
    2: (1, 1), 3: (2, 1), 4: (4, 1), 5: (1, 2), 6: (2, 2), 7: (4, 2), 8: (1, 4), 9: (2, 4)
}  # fmt: skip
"""Tiles along N and along M that share their operands, by cublasLtClusterShape_t."""
RELEASES, CAPABILITY = (1301,), 90
"""The releases of the library in which they ran, as 1301 for 13.1, and the GPUs' compute capability."""
MAX_SPLIT = 16
"""The largest split of K."""
PARTIAL_SUMS = 2
"""The reduction of a split K: CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE."""


def known(attributes: Mapping[str, int]) -> bool:
    """Whether the attributes are among those that ran without error on GPUs of that CAPABILITY with one of RELEASES."""
    split = attributes["split_k"]
    return (
        attributes["algo"] == ALGORITHM
        and attributes["stages"] == STAGES
        and attributes["cluster"] in CLUSTERS
        and attributes["custom"] in CUSTOM
        and ran(attributes["tile"], attributes["custom"], attributes["cluster"])
        and 1 <= split <= MAX_SPLIT
        and attributes["reduction"] == (PARTIAL_SUMS if split > 1 else 0)
        and attributes["swizzle"] == attributes["inner"] == 0
    )


def ran(tile: int, custom: int, cluster: int) -> bool:
    """Whether a tile ran in a way. `custom`, `cluster`: one of CUSTOM and of CLUSTERS."""
    return bool(_ways().get(tile, 0) >> way(custom, cluster) & 1)


def way(custom: int, cluster: int) -> int:
    """The bit of a way to run a tile in `tiles.json`."""
    return custom * len(CLUSTERS) + list(CLUSTERS).index(cluster)


@functools.cache
def tiles() -> Mapping[int, tuple[int, int]]:
    """The sides of each tile that ran, along M and along N, by its identifier (cublasLtMatmulTile_t).

    `tiles.json` holds those of the timings in benchmarks/results as NVIDIA names them, rows first, each with a bit for
    every way in which it ran. cuBLASLt's matrices lie by columns, so the rows of its output are our columns.
    """
    return {identifier: (columns, rows) for identifier, (rows, columns, _) in _listed().items()}


def reads_once(attributes: Mapping[str, int], m: int) -> bool:
    """Whether the tiles of M rows surely read each column of the weight together: one tile has all rows, or a cluster
    has all tiles along M. Others do so while they run in step, which they may not if the last tile has fewer rows: with
    a weight of 4096 x 14336, tiles of 96 x 64 take an H200 39 us for 192 rows, and 63 for 144."""
    sides, (_, along_m) = tiles().get(attributes["tile"]), CLUSTERS.get(attributes["cluster"], (1, 1))
    return sides is not None and math.ceil(m / sides[0]) <= along_m


@functools.cache
def _ways() -> Mapping[int, int]:
    """The bits of the ways in which each tile ran."""
    return {identifier: ways for identifier, (_, _, ways) in _listed().items()}


@functools.cache
def _listed() -> Mapping[int, tuple[int, int, int]]:
    listed = json.loads((Path(__file__).parent / "tiles.json").read_text())
    return {int(identifier): tuple(values) for identifier, values in listed.items()}


@functools.cache
def identifiers() -> Mapping[tuple[int, int], int]:
    """The identifier of each tile by its sides, along M and along N."""
    return {sides: identifier for identifier, sides in tiles().items()}
