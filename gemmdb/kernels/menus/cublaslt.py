"""The cuBLASLt algorithms that are tried on Hopper: those that a fitted ranking expects to be the fastest.

On Hopper, one algorithm (number 66) runs nearly every GEMM. It has tiles of hundreds of sizes, each with several ways
to run, clusters and splits of K: about 9,000 combinations for each problem. cuBLASLt's own heuristic names eight.
`cublaslt.json` has the tiles that were within 2% of the best on some explored problem, and the coefficients of the
ranking; `python -m gemmdb.generators.fit.cublaslt` writes it. Raw timings: benchmarks/results/h100/cublaslt.
"""

from __future__ import annotations

import functools
import heapq
import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from operator import mul
from pathlib import Path
from typing import NamedTuple

from gemmdb.cublaslt.tiles import ALGORITHM, CLUSTERS, PARTIAL_SUMS, STAGES
from gemmdb.kernels.config import Config
from gemmdb.kernels.hardware import HOPPER
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

USUAL_CLUSTER = 2
"""With this one, tiles are compared first."""
OPTIONS = (0, 2, 4, 6)
"""The ways to run a tile, beside the lowest bit of `custom`, which says which operand is the instruction's left one."""
SPLITS = (2, 3, 4, 6, 8)
DTYPES = ("bf16", "fp16")
CONFIGS, PER_TILE, TILES = 16, 3, 14
"""How many configs are tried, how many of them with one tile, and how many tiles are ranked with all their options."""
OPERATIONS, BYTES, CACHE_BYTES, STEP_US = 7.5e6, 3.0e6, 5.5e6, 0.05
"""Rough rates of a Hopper GPU: multiply-adds of one multiprocessor per microsecond, bytes per microsecond from memory
and from L2, and microseconds of a step along K. The fit corrects them."""
DEPTH = 64


class Tile(NamedTuple):
    """A tile of the output. `columns` run along N, `rows` along M. `swap`: the weight is the instruction's left
    operand."""

    identifier: int
    columns: int
    rows: int
    swap: int


class Way(NamedTuple):
    """How a tile runs: bits of `custom` beside the lowest, the identifier of its cluster, the split of K."""

    option: int
    cluster: int
    split: int


@dataclass(frozen=True)
class Ranking:
    """The fitted ranking: a quadratic polynomial of `features` that estimates the logarithm of a time relative to the
    best of the problem. `constant`, and for each feature its weight and those of its products with itself and the
    features after it."""

    tiles: tuple[Tile, ...]
    constant: float
    weights: tuple[tuple[float, tuple[float, ...]], ...]

    @classmethod
    @functools.cache
    def read(cls) -> Ranking:
        """The shipped ranking."""
        document = json.loads(Path(__file__).with_name("cublaslt.json").read_text())
        weights = [(first, tuple(products)) for first, *products in document["weights"]]
        return cls(tuple(Tile(*tile) for tile in document["tiles"]), document["constant"], tuple(weights))

    def loss(self, values: tuple[float, ...]) -> float:
        """The estimate for the features of a candidate."""
        total = self.constant
        for place, (first, products) in enumerate(self.weights):
            total += values[place] * (first + sum(map(mul, products, values[place:])))
        return total

    def of(self, last: tuple[float, ...]) -> Ranking:
        """The same ranking for candidates with these last features: a polynomial of the others. It is a third as long
        for the features of a problem, and a compile ranks hundreds of candidates for each of its GEMMs."""
        count = len(self.weights) - len(last)
        constant = Ranking(self.tiles, self.constant, self.weights[count:]).loss(last)
        rest = tuple(
            (first + sum(map(mul, products[count - place :], last)), products[: count - place])
            for place, (first, products) in enumerate(self.weights[:count])
        )
        return Ranking(self.tiles, constant, rest)


def configs(problem: Problem, device: Device) -> list[Config]:
    """The configs to try, the most promising first. Empty where nothing was explored: off Hopper, and for int8."""
    if device.capability != HOPPER or problem.a.dtype not in DTYPES:
        return []
    found: list[Config] = []
    per_tile: Counter[int] = Counter()
    for _, tile, way in sorted(_ranked(problem, device.units)):
        config = _config(tile, way)
        if per_tile[tile.identifier] < PER_TILE and config.rejection(problem, device) is None:
            per_tile[tile.identifier] += 1
            found.append(config)
            if len(found) == CONFIGS:
                break
    return found


def _ranked(problem: Problem, units: int) -> Iterator[tuple[float, Tile, Way]]:
    """The candidates with their estimates: all ways to run the tiles that are the best in some way of their own."""
    ranking = Ranking.read().of(_features_of(problem))

    def loss(tile: Tile, way: Way) -> float:
        return ranking.loss(_features_within(problem, tile, way, units))

    starts = {
        (tile, split): loss(tile, Way(0, USUAL_CLUSTER, split))
        for tile in ranking.tiles
        if tile.rows < 2 * max(problem.m, DEPTH // 4) and tile.columns < 2 * problem.n
        for split in (1, *_splits(problem, tile, units))
    }
    for tile, split in heapq.nsmallest(TILES, starts, key=starts.__getitem__):
        for option in OPTIONS:
            for cluster in CLUSTERS:
                way = Way(option, cluster, split)
                yield loss(tile, way), tile, way


def _splits(problem: Problem, tile: Tile, units: int) -> Iterator[int]:
    """The splits of K that still leave every multiprocessor one tile at most, with four steps each or more."""
    tiles = problem.batch * math.ceil(problem.m / tile.rows) * math.ceil(problem.n / tile.columns)
    for split in SPLITS:
        if tiles * split <= units and problem.k >= 4 * DEPTH * split:
            yield split


def _config(tile: Tile, way: Way) -> Config:
    return Config.of(
        "cublaslt", "matmul", algo=ALGORITHM, tile=tile.identifier, stages=STAGES, split_k=way.split,
        reduction=PARTIAL_SUMS if way.split > 1 else 0, swizzle=0, custom=way.option + tile.swap, inner=0,
        cluster=way.cluster,
    )  # fmt: skip


def features(problem: Problem, tile: Tile, way: Way, units: int) -> tuple[float, ...]:
    """What decides how fast a candidate is, mostly as logarithms of base 2. `units`: multiprocessors of the GPU."""
    return _features_within(problem, tile, way, units) + _features_of(problem)


def _features_of(problem: Problem) -> tuple[float, ...]:
    """The last features, equal for all candidates of a problem."""
    return (
        math.log2(problem.m),
        math.log2(problem.n),
        math.log2(problem.k),
        not problem.a.row_major,
        problem.b.layout.order.startswith("row"),
    )


def _features_within(problem: Problem, tile: Tile, way: Way, units: int) -> tuple[float, ...]:
    """The features that differ between the candidates of a problem."""
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
    wide, high = CLUSTERS.get(way.cluster, (1, 1))
    across, down = -(-n // tile.columns), -(-m // tile.rows)
    across, down = -(-across // wide) * wide, -(-down // high) * high
    tiles, steps = batch * across * down * way.split, -(-k // (DEPTH * way.split))
    waves = -(-tiles // units)
    memory = 2 * batch * (n * k + m * k + m * n) / BYTES
    compute = waves * steps * DEPTH * tile.columns * tile.rows / OPERATIONS
    cache = 2 * tiles * steps * DEPTH * (tile.columns / high + tile.rows / wide) / CACHE_BYTES
    return (
        math.log2(max(memory, compute, 0.5)),
        math.log2(compute),
        math.log2(cache),
        math.log2(math.hypot(memory, compute, cache) + 2),
        math.log2(waves * steps * STEP_US + 0.5),
        math.log2(across * tile.columns * down * tile.rows / (m * n)),
        math.log2(waves),
        waves * units / tiles,
        math.log2(tile.columns),
        math.log2(tile.rows),
        tile.swap,
        way.option >> 1 & 1,
        way.option >> 2,
        math.log2(wide),
        math.log2(high),
        math.log2(way.split),
    )
