"""The cuBLASLt algorithms that are tried on Hopper: those that a fitted ranking expects to be the fastest.

On Hopper, one algorithm (number 66) runs nearly every GEMM. It has tiles of hundreds of sizes, each with several ways
to run, clusters and splits of K: about 9,000 combinations for each problem. cuBLASLt's own heuristic names eight.
`cublaslt.json` has the ways to run a tile that were close to the best of some problems, and the trees that rank them;
`python -m gemmdb.generators.fit.cublaslt` writes it from the timings in benchmarks/results.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gemmdb.cublaslt.tiles import ALGORITHM, CLUSTERS, CUSTOM, PARTIAL_SUMS, STAGES, ran, tiles
from gemmdb.kernels.config import Config
from gemmdb.kernels.hardware import HOPPER
from gemmdb.kernels.trees import Trees, parse
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

SPLITS = (2, 3, 4, 6, 8)
DTYPES = ("bf16", "fp16")
CONFIGS, PER_TILE = 16, 3
"""How many configs are tried, and how many of them with one tile."""
OPERATIONS, BYTES, CACHE_BYTES, STEP_US = 7.5e6, 3.0e6, 5.5e6, 0.05
"""Rough rates of a Hopper GPU: multiply-adds of one multiprocessor per microsecond, bytes per microsecond from memory
and from L2, and microseconds of a step along K. The fit corrects them."""
DEPTH = 64
FEATURES = (
    "least_us", "compute_us", "cache_us", "all_us", "steps_us", "padding", "waves", "last_wave", "columns", "rows",
    "swap", "option_2", "option_4", "wide", "high", "split", "m", "n", "k", "a_by_columns", "b_by_rows",
)  # fmt: skip
"""What `features` returns. The last OF_PROBLEM are equal for all candidates of a problem."""
OF_PROBLEM = 5


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


class Proven(NamedTuple):
    """A way to run a tile that was close to the best of some problems: with a split of K or without, and with `least`
    to `most` rows. `option`, `cluster`: as in Way."""

    tile: Tile
    option: int
    cluster: int
    split: int
    least: int
    most: int


@dataclass(frozen=True)
class Ranking:
    """The fitted ranking: `trees` over FEATURES estimate the logarithm of a time relative to the best of the problem.
    Of other candidates than `proven` ones, few were timed on similar problems, and the trees may be wrong about
    them."""

    proven: tuple[Proven, ...]
    trees: Trees

    @classmethod
    @functools.cache
    def read(cls) -> Ranking:
        """The shipped ranking. Raises ValueError if its file is damaged."""
        return cls.parse(json.loads(Path(__file__).with_name("cublaslt.json").read_text()))

    @classmethod
    def parse(cls, document: Any) -> Ranking:
        """The ranking of a JSON document. Raises ValueError with the reason if it is malformed.

        `proven`: by the identifier of a tile, lists of `custom`, cluster, whether K is split, `least` and `most`.
        `trees`: for `gemmdb.kernels.trees.parse`.
        """
        listed = document.get("proven") if isinstance(document, dict) else None
        if not isinstance(listed, dict) or not listed or not all(isinstance(one, list) for one in listed.values()):
            raise ValueError("no ways to run tiles of cuBLASLt")
        proven = tuple(_proven(tile, values) for tile, found in listed.items() for values in found)
        return cls(proven, parse(document.get("trees"), FEATURES))

    def rows(self, problem: Problem) -> int:
        """The number of rows of a problem, within those that were measured."""
        return max(min(one.least for one in self.proven), min(problem.m, max(one.most for one in self.proven)))


def tile_of(identifier: int, custom: int) -> Tile:
    """The tile with this identifier, for a `custom`."""
    rows, columns = tiles()[identifier]
    return Tile(identifier, columns, rows, custom & 1)


def _proven(tile: str, values: Any) -> Proven:
    if not isinstance(values, list) or len(values) != 5 or not set(map(type, values)) <= {int}:
        raise ValueError("a way to run a tile is five whole numbers")
    custom, cluster, split, least, most = values
    sound = custom in CUSTOM and cluster in CLUSTERS and split in (0, 1) and 0 < least <= most
    if not sound or not tile.isdecimal() or not ran(int(tile), custom, cluster):
        raise ValueError(f"a way that never ran: tile {tile!r:.20}, {values!r:.60}")
    return Proven(tile_of(int(tile), custom), custom & ~1, cluster, split, least, most)


def configs(problem: Problem, device: Device, ranking: Ranking | None = None) -> list[Config]:
    """The configs to try, the most promising first, by the shipped ranking or another. Empty where nothing was
    explored: off Hopper, and for int8."""
    if device.capability != HOPPER or problem.a.dtype not in DTYPES:
        return []
    found: list[Config] = []
    per_tile: Counter[int] = Counter()
    for _, tile, way in sorted(_ranked(ranking or Ranking.read(), problem, device.units)):
        config = config_of(tile, way)
        if per_tile[tile.identifier] < PER_TILE and config.rejection(problem, device) is None:
            per_tile[tile.identifier] += 1
            found.append(config)
            if len(found) == CONFIGS:
                break
    return found


def _ranked(ranking: Ranking, problem: Problem, units: int) -> Iterator[tuple[float, Tile, Way]]:
    """The candidates with their estimates."""
    trees, rows = ranking.trees, ranking.rows(problem)
    left = trees.reached(trees.every, _features_of(problem), len(FEATURES) - OF_PROBLEM)
    for tile, option, cluster, split, least, most in ranking.proven:
        fits = tile.rows < 2 * max(problem.m, DEPTH // 4) and tile.columns < 2 * problem.n
        if fits and least <= rows <= most:
            for slices in _splits(problem, tile, units) if split else (1,):
                way = Way(option, cluster, slices)
                yield trees.total(trees.reached(left, _features_within(problem, tile, way, units))), tile, way


def _splits(problem: Problem, tile: Tile, units: int) -> Iterator[int]:
    """The splits of K that still leave every multiprocessor one tile at most, with four steps each or more."""
    tiles = problem.batch * math.ceil(problem.m / tile.rows) * math.ceil(problem.n / tile.columns)
    for split in SPLITS:
        if tiles * split <= units and problem.k >= 4 * DEPTH * split:
            yield split


def config_of(tile: Tile, way: Way) -> Config:
    """The config of an algorithm."""
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
