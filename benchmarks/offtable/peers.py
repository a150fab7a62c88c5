"""Heuristics without a table: nvMatmulHeuristics, and the configs that Inductor tries by default.

Both name a tile, a split of K, stages and warps, and none of our kernels. Each such tile counts as the nearest config
that was timed on the problem, among the kernels of its kind (`nearest`). The distance is reported too. Both libraries
are imported if they are installed, and are no part of gemmdb:

    pip install nvidia-matmul-heuristics            # proprietary; needs no GPU
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gemmdb.cost.work import tile_of
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem

Kind = tuple[str, ...]
TRITON: Kind = ("tile", "inductor_mm", "persistent", "inductor_persistent_tma")
CUTLASS: Kind = ("gemm",)
PLAIN: Kind = ("tile", "inductor_mm")
"""The kernels that a tile of a kind may stand for."""
WEIGHTS = (1.0, 1.0, 1.0, 1.0, 0.5, 0.25)
"""How much a doubling of rows, columns, depth, split of K, or warps counts, and how much one more stage."""
MOST = 4
LARGEST_GPU = "H200_SXM"
PRECISIONS = {"bf16": "TST", "fp16": "HSH", "int8": "BII"}
"""In nvMatmulHeuristics' letters. It does not know GEMMs with an int8 weight, so they are looked up with the dtype
of their activations."""
PRODUCTS = "torch._inductor.template_heuristics.triton", "torch._inductor.heuristics.template.triton"
"""The module of Inductor's lists in torch 2.11 to 2.13, and in later ones."""


@dataclass(frozen=True)
class Wanted:
    """A tile that a heuristic names. `warps` or `stages` is 0 if it does not say."""

    m: int
    n: int
    k: int
    split: int
    warps: int
    stages: int


@dataclass
class Scored:
    """The scores of a heuristic's tiles on one problem, in its order: shares of the best time, and the distances of the
    timed tiles from the named ones."""

    shares: list[float] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)

    def row(self, aten: float) -> dict[str, Any]:
        """JSON-ready: the first alone; the best of the first four and ATen, or of all and ATen."""
        if not self.shares:
            return {}
        return {
            "first": self.shares[0], "four": max(aten, *self.shares[:MOST]), "all": max(aten, *self.shares),
            "distance": self.distances[0], "exact": sum(d == 0 for d in self.distances), "tiles": len(self.shares),
        }  # fmt: skip


def scores(problem: Problem, shares: Mapping[Config, float]) -> dict[str, Any]:
    """The scores of each installed heuristic on a problem. `shares`: of the best time, by timed config."""
    aten = next(share for config, share in shares.items() if config.backend == "aten")
    asked: list[tuple[str, Kind, Callable[[Problem], Sequence[Wanted]]]] = [
        ("nvMatmulHeuristics TRITON", TRITON, functools.partial(nvidia, "TRITON")),
        ("nvMatmulHeuristics CUTLASS3", CUTLASS, functools.partial(nvidia, "CUTLASS3")),
        ("Inductor's default list", PLAIN, inductor),
    ]
    rows = {name: nearest(wanted(problem), shares, kind).row(aten) for name, kind, wanted in asked}
    return {name: row for name, row in rows.items() if row}


def nearest(wanted: Iterable[Wanted], shares: Mapping[Config, float], kind: Kind) -> Scored:
    """The shares of the timed configs that are nearest to the tiles. Each config counts once. Empty if no config of the
    kind was timed."""
    timed = [(config, share) for config, share in shares.items() if config.kernel in kind]
    found, taken = Scored(), set()
    for one in wanted:
        if not timed:
            break
        distance, config, share = min(
            ((_distance(one, config), config, share) for config, share in timed), key=lambda t: (t[0], t[1].text)
        )
        if config not in taken:
            taken.add(config)
            found.shares.append(share)
            found.distances.append(distance)
    return found


def _distance(one: Wanted, config: Config) -> float:
    tile = tile_of(config)
    assert tile is not None
    rows, columns = (tile.n, tile.m) if tile.swap else (tile.m, tile.n)
    logs = [abs(math.log2(a / b)) for a, b in ((one.m, rows), (one.n, columns), (one.k, tile.k))]
    logs.append(abs(math.log2(one.split / max(tile.split, 1))))
    logs.append(abs(math.log2(one.warps / tile.warps)) if one.warps else 0.0)
    # CUTLASS takes as many stages as fit, and our rows do not store the number.
    stages = abs(one.stages - tile.stages) if one.stages and config.backend == "triton" else 0
    return sum(weight * value for weight, value in zip(WEIGHTS, (*logs, stages), strict=True))


def nvidia(target: str, problem: Problem) -> list[Wanted]:
    """The first tiles of nvMatmulHeuristics for an H200; empty if it is not installed or gives none."""
    library = _library("nvMatmulHeuristics")
    if library is None or problem.a.dtype not in PRECISIONS:
        return []
    asked = _nvidia(target)
    trans_a, trans_b = (x.layout.order.startswith("col") for x in (problem.a, problem.b))
    layout = library.boolsToNvMatmulHeuristicsLayout(trans_a, trans_b)
    described = asked.makeNvMatmulHeuristicsProblem(problem.m, problem.n, problem.k, layout)
    found = asked.get(described, MOST, PRECISIONS[problem.a.dtype])
    return [_tile(one["kernel"]) for one in sorted(found, key=lambda one: one["runtime"])]


def _tile(kernel: Any) -> Wanted:
    warps = (kernel.cta_tile_m // kernel.warp_tile_m) * (kernel.cta_tile_n // kernel.warp_tile_n)
    # Triton has no more than these warps and stages.
    return Wanted(
        kernel.cta_tile_m, kernel.cta_tile_n, kernel.cta_tile_k, max(kernel.split_k, 1), min(warps, 8),
        min(kernel.stages, 6),
    )  # fmt: skip


@functools.cache
def _nvidia(target: str) -> Any:
    library = _library("nvMatmulHeuristics")
    assert library is not None
    return library.NvMatmulHeuristicsInterfaceEx(
        backend=library.NvMatmulHeuristicsTarget[target],
        flags=library.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=library.NvMatmulHeuristicsNvidiaGpu[LARGEST_GPU],
    )


def inductor(problem: Problem) -> list[Wanted]:
    """The configs of Inductor's Triton template that its default search tries for a problem, cut to its sizes. Empty
    without torch, and for int8 weights, which Inductor casts before the GEMM."""
    if problem.op == "mixed_mm":
        return []
    found = _inductor(problem.op == "int_mm")
    sizes = (problem.m, problem.n, problem.k)
    least = (32, 32, 32) if problem.op == "int_mm" else (16, 16, 16)
    cut = (
        (
            *(min(block, max(_power(size), low)) for block, size, low in zip(one[:3], sizes, least, strict=True)),
            *one[3:],
        )
        for one in found
    )
    return [Wanted(m, n, k, 1, warps, stages) for m, n, k, stages, warps in dict.fromkeys(cut)]


@functools.cache
def _inductor(integers: bool) -> list[tuple[int, int, int, int, int]]:
    module = next(filter(None, map(_library, PRODUCTS)), None)
    if module is None:
        return []
    lists = module.CUDAConfigHeuristic()
    found = lists.int8_mm_configs if integers else lists.mm_configs
    return [(one.block_m, one.block_n, one.block_k, one.num_stages, one.num_warps) for one in found]


def _power(size: int) -> int:
    """The least power of two that is at least `size`."""
    return 1 << max(size - 1, 0).bit_length()


@functools.cache
def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
