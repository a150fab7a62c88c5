"""Fits the ranking of cuBLASLt's algorithms (`gemmdb.kernels.menus.cublaslt`) to timings.

    python -m gemmdb.generators.fit.cublaslt FILE.jsonl.xz... --out gemmdb/kernels/menus/cublaslt.json

A FILE is an archive of rows, whose dense GEMMs count, or an exploration with a line for each problem: {"p": [m, n, k,
layout], "units": SMs, "aten": [us, ...], "res": [[tile, custom, cluster, split, us], ...]}. Regression trees learn the
logarithm of each time relative to the problem's best; the closer to it, the more it counts.
`python -m benchmarks.dense ranking` prints what the ranking is worth on held-out problems. Needs gemmdb[fit].
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmdb.cublaslt.tiles import ALGORITHM, CLUSTERS, known, tiles
from gemmdb.generators.files import archive
from gemmdb.generators.fit.trees import boosted
from gemmdb.kernels.config import Config
from gemmdb.kernels.menus.cublaslt import DTYPES, FEATURES, Tile, Way, config_of, features, tile_of
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Status

Array = NDArray[np.float64]
OPS = ("mm", "addmm")
CLOSE, OFTEN = 1.02, 4
"""A way to run a tile is proven if it was this close to the best of this many problems."""
LEAST_US = 1.0
"""Shorter times are noise of the flush that was subtracted."""
FEWEST = 5
"""Problems with fewer timed algorithms do not count."""
MAX_LOSS = 1.0
"""Larger losses (logarithms) count as this."""
NEAR, FAR_WEIGHT = 0.05, 0.05
"""A candidate weighs exp(-loss / NEAR) + FAR_WEIGHT: the order of the slow ones does not matter."""
DIGITS = 3
"""Decimals of features: more only make the file larger."""
TREES: Mapping[str, Any] = {
    "max_iter": 30, "max_leaf_nodes": 31, "learning_rate": 0.3, "min_samples_leaf": 20, "max_bins": 63
}  # fmt: skip
"""Twice as many leaves gain 0.1% more with four candidates, and the file is twice as large."""


@dataclass(frozen=True)
class Explored:
    """A problem and its timed algorithms. `ratios`: the time of each relative to ATen's. `units`: multiprocessors of
    the GPU."""

    problem: Problem
    units: int
    ways: Sequence[tuple[Tile, Way]]
    ratios: Array

    @property
    def losses(self) -> Array:
        """The logarithm of each time relative to the best."""
        found: Array = np.log(self.ratios / self.ratios.min())
        return found

    def features(self) -> Array:
        """The features of the algorithms, a row each."""
        return np.array([features(self.problem, *way, self.units) for way in self.ways], float)


def read(paths: Iterable[Path]) -> list[Explored]:
    """The problems of some files that have enough timed algorithms. Raises InputError for a damaged archive."""
    rows: list[Path] = []
    found: list[Explored] = []
    for path in paths:
        with lzma.open(path, "rt") as lines:
            head = json.loads(next(lines))
            if "archive" in head:
                rows.append(path)
            else:
                found += filter(None, map(_of_line, (head, *map(json.loads, lines))))
    return [*_of_rows(rows), *found]


def _of_line(line: Mapping[str, Any]) -> Explored | None:
    m, n, k, layout = line["p"]
    aten = median(line["aten"])
    timed: dict[tuple[int, ...], float] = {
        (tile, custom, cluster, split): us / aten
        for tile, custom, cluster, split, us in line["res"]
        if us is not None and min(us, aten) > LEAST_US
    }
    return of_times(Problem.gemm("mm", m=m, n=n, k=k, dtype="bf16", layout=layout), line["units"], timed)


def _of_rows(paths: Iterable[Path]) -> Iterator[Explored]:
    """The dense GEMMs of archives. A time of a full measurement counts more than an estimate."""
    timed: dict[tuple[Problem, int], dict[tuple[int, ...], tuple[bool, float]]] = {}
    for row in (row for path in paths for row in archive.read(path)):
        problem, config = row.problem, row.config
        dense = problem.op in OPS and problem.a.dtype in DTYPES and problem.fusion == "none"
        if row.times is None or not dense or (way := way_of(config)) is None:
            continue
        found = row.status != Status.OK, row.times.median_us / row.times.aten_us
        others = timed.setdefault((problem, row.device.units), {})
        others[way] = min(found, others.get(way, found))
    for (problem, units), found_of in timed.items():
        one = of_times(problem, units, {way: ratio for way, (_, ratio) in found_of.items()})
        if one is not None:
            yield one


def way_of(config: Config) -> tuple[int, ...] | None:
    """The tile, `custom`, cluster and split of an algorithm that may be ranked, None for other configs."""
    values = config.values
    if config.name != "cublaslt:matmul" or values["algo"] != ALGORITHM:
        return None
    return tuple(int(values[name]) for name in ("tile", "custom", "cluster", "split_k"))


def of_times(problem: Problem, units: int, timed: Mapping[tuple[int, ...], float]) -> Explored | None:
    """The problem with those of its timed algorithms that may be ranked, None if they are too few. `timed`: by tile,
    `custom`, cluster and split, relative to ATen's."""
    ways, ratios = list[tuple[Tile, Way]](), list[float]()
    for (identifier, custom, cluster, split), ratio in timed.items():
        if identifier not in tiles() or cluster not in CLUSTERS:
            continue
        one = tile_of(identifier, custom), Way(custom & ~1, cluster, split)
        if known({name: int(value) for name, value in config_of(*one).values.items()}):
            ways.append(one)
            ratios.append(ratio)
    return Explored(problem, units, ways, np.array(ratios)) if len(ways) >= FEWEST else None


def fit(problems: Sequence[Explored]) -> dict[str, Any]:
    """Return what `Ranking.parse` reads. Raises InputError without scikit-learn."""
    losses = np.concatenate([one.losses for one in problems])
    rows = np.concatenate([one.features() for one in problems]).round(DIGITS)
    weights = np.exp(-losses / NEAR) + FAR_WEIGHT
    return {
        "proven": proven(problems),
        "trees": boosted(rows, np.minimum(losses, MAX_LOSS), weights, FEATURES, **TREES),
    }


def proven(problems: Sequence[Explored]) -> dict[str, list[list[int]]]:
    """The ways to run tiles that were close to the best of several problems, as `Ranking.parse` reads them."""
    rows: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for one in problems:
        for (tile, way), loss in zip(one.ways, one.losses, strict=True):
            if loss <= math.log(CLOSE):
                rows[tile.identifier, way.option + tile.swap, way.cluster, way.split > 1].append(one.problem.m)
    found: dict[str, list[list[int]]] = defaultdict(list)
    for (identifier, custom, cluster, split), close in sorted(rows.items()):
        if len(close) >= OFTEN:
            found[str(identifier)].append([custom, cluster, int(split), min(close), max(close)])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.write_text(json.dumps(fit(read(given.files)), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
