"""Fits the ranking of cuBLASLt's algorithms (`gemmdb.kernels.menus.cublaslt`) to explored problems.

    python -m gemmdb.generators.fit.cublaslt EXPLORED.jsonl.xz TILES.json --out gemmdb/kernels/menus/cublaslt.json

A line of EXPLORED is one problem: {"p": [m, n, k, layout], "units": SMs, "aten": [us, ...], "res": [[tile, custom,
cluster, split, us], ...]}. TILES: the sizes of tiles by identifier, as in NVIDIA's `cublasLt.h`. Ridge regression of
the logarithm of each time relative to the problem's best. Prints what the ranking loses on held-out problems. Needs
numpy.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gemmdb.cublaslt.tiles import CLUSTERS
from gemmdb.kernels.menus.cublaslt import Tile, Way, features
from gemmdb.key.problem import Problem

Array = NDArray[np.float64]
RIDGE = 3.0
CLOSE = 1.02
"""A tile belongs to the menu if it was this close to the best of some problem."""
MAX_LOSS = 1.0
"""Larger losses (logarithms) count as this."""
FAR, FAR_WEIGHT = math.log(1.5), 0.3
"""Candidates that lose more than FAR count less: their order does not matter."""
LEAST_US = 1.0
"""Shorter times are noise of the flush that was subtracted."""
FOLDS = 5
DIGITS = 5


@dataclass(frozen=True)
class Explored:
    """The candidates of one problem: their features, a row each, their losses (logarithms), and their tiles."""

    features: Array
    losses: Array
    tiles: Sequence[Tile]


def explored(path: Path, sizes: Mapping[int, tuple[int, int]]) -> Iterator[Explored]:
    """Yield the problems of an archive that have five candidates or more."""
    with lzma.open(path, "rt") as lines:
        for line in map(json.loads, lines):
            m, n, k, layout = line["p"]
            problem = Problem.gemm("mm", m=m, n=n, k=k, dtype="bf16", layout=layout)
            found = [
                (Tile(tile, *sizes[tile], custom & 1), Way(custom & 6, cluster, split), us)
                for tile, custom, cluster, split, us in line["res"]
                if us is not None and us > LEAST_US and cluster in CLUSTERS
            ]
            if len(found) < FOLDS:
                continue
            least = min(us for *_, us in found)
            rows = [features(problem, tile, way, line["units"]) for tile, way, _ in found]
            losses = [math.log(us / least) for *_, us in found]
            yield Explored(np.array(rows, float), np.array(losses), [tile for tile, *_ in found])


def products(rows: Array) -> Array:
    """Return 1, the features, and the products of two, a column each, in the order of `document`."""
    count = rows.shape[1]
    pairs = [rows[:, one] * rows[:, other] for one in range(count) for other in range(one, count)]
    return np.column_stack([np.ones(len(rows)), rows, *pairs])


def fit(problems: Sequence[Explored]) -> Array:
    """Return the weights."""
    rows = products(np.concatenate([one.features for one in problems]))
    losses = np.concatenate([one.losses for one in problems])
    weight = np.where(losses > FAR, FAR_WEIGHT, 1.0)
    scale = np.maximum(rows.std(axis=0), 1e-9)
    scale[0] = 1.0
    scaled = rows / scale
    penalty = np.full(rows.shape[1], RIDGE)
    penalty[0] = 0.0
    left = (scaled * weight[:, None]).T @ scaled + np.diag(penalty)
    solved: Array = np.linalg.solve(left, (scaled * weight[:, None]).T @ np.minimum(losses, MAX_LOSS))
    weights: Array = solved / scale
    return weights


def held_out(problems: Sequence[Explored], counts: Sequence[int] = (1, 4, 8, 16)) -> dict[int, float]:
    """Return the mean loss (relative) of the best of the first candidates, by their number, on held-out problems."""
    losses: dict[int, list[float]] = {count: [] for count in counts}
    for fold in range(FOLDS):
        weights = fit([one for place, one in enumerate(problems) if place % FOLDS != fold])
        for one in problems[fold::FOLDS]:
            order = np.argsort(products(one.features) @ weights)
            for count in counts:
                losses[count].append(float(one.losses[order[:count]].min()))
    return {count: math.expm1(float(np.mean(found))) for count, found in losses.items()}


def document(problems: Sequence[Explored]) -> dict[str, object]:
    """Return what `Ranking.read` reads."""
    close = Counter(
        tile for one in problems for tile, loss in zip(one.tiles, one.losses, strict=True) if loss <= math.log(CLOSE)
    )
    constant, *weights = (float(f"{value:.{DIGITS}g}") for value in fit(problems))
    count = problems[0].features.shape[1]
    pairs = iter(weights[count:])
    rows = [[first, *islice(pairs, count - place)] for place, first in enumerate(weights[:count])]
    return {"tiles": [list(tile) for tile in sorted(close)], "constant": constant, "weights": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("explored", type=Path, nargs="+")
    parser.add_argument("tiles", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    sizes = {int(number): (size[0], size[1]) for number, size in json.loads(given.tiles.read_text()).items()}
    problems = [one for path in given.explored for one in explored(path, sizes)]
    for count, loss in held_out(problems).items():
        print(f"best of the first {count}: {loss:.2%} slower than the best that was explored")
    given.out.write_text(json.dumps(document(problems), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
