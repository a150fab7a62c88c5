"""Print how soon a ranking of cuBLASLt's algorithms comes to the best one that was timed, on held-out problems.

    python -m benchmarks.dense ranking FILE... --h100 H100.jsonl.xz --lines LINES.jsonl.xz

FILE and H100: rows of the H200 and an exploration on an H100, as `python -m gemmdb.generators.fit.cublaslt` takes them.
LINES: an exploration of other GEMMs on the H200, which no fit sees. Each ranking orders the timed algorithms of a
problem. The gain over ATen with the first 1, 2, 4, ... of them is a geometric mean over the problems of a class of M,
in percent; where none is faster it is 0.

`polynomial`: a quadratic polynomial of the features, fitted to H100, as the former ranking was.
`trees`: fitted like the shipped ranking, held out by (N, K), and `trees, by M` by powers of two of M. `nearest rows`:
first the best algorithms of the two nearest M with the same N and K, then the trees.

What was timed was chosen by the polynomial, by cuBLASLt's heuristic and by a search near the best, so this favors the
polynomial. `from all`: the first configs of the new menu, most of which were never timed for that problem: the gain of
those that were, which is a lower bound, and their share. Needs gemmdb[fit].
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, TypeVar

import numpy as np

from benchmarks.common import json_lines
from benchmarks.dense.sample import STRATA, stratum
from gemmdb.generators.fit.cublaslt import Array, Explored, fit, of_times, read, way_of
from gemmdb.kernels.config import Config
from gemmdb.kernels.menus.cublaslt import Ranking, configs
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

H200 = Device("cuda", "sm90", "NVIDIA H200", 132, 140)
Fit = TypeVar("Fit")
COUNTS = (1, 2, 4, 8, 16)
FOLDS = 5
RIDGE, FAR, FAR_WEIGHT = 3.0, math.log(1.5), 0.3
"""Of the polynomial: the penalty of the scaled weights, and what a loss above FAR weighs."""
NEAREST = 2
"""Number of problems whose algorithms come first."""
LAST = 100.0
"""More than any loss."""
Score = Callable[[Explored], Array]
"""The expected losses of a problem's algorithms, in their order."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="archives of rows")
    parser.add_argument("--h100", type=Path, required=True, help="an exploration on an H100")
    parser.add_argument("--lines", type=Path, required=True, help="an exploration of other GEMMs")


def main(options: argparse.Namespace) -> None:
    """Print the tables."""
    sources = {
        "rows": read(options.files), "other GEMMs": list(of_lines(json_lines(options.lines))),
        "H100": read([options.h100]),
    }  # fmt: skip
    print("\n".join(text(sources)))


def of_lines(lines: Sequence[Mapping[str, Any]]) -> Iterator[Explored]:
    """The problems of an exploration, with the medians of the rounds where an algorithm has some."""
    timed: dict[str, dict[tuple[int, ...], float]] = defaultdict(dict)
    aten = {line["problem"]: median(line["rounds"]) for line in lines if line["group"] == "aten"}
    for line in (one for one in lines if one["group"] == "cublaslt" and "us" in one):
        if way := way_of(Config.parse(line["config"])):
            us = median(line["rounds"]) if "rounds" in line else line["us"]
            timed[line["problem"]][way] = us / aten[line["problem"]]
    for problem, ratios in timed.items():
        if found := of_times(Problem.parse(problem), H200.units, ratios):
            yield found


def text(sources: Mapping[str, Sequence[Explored]]) -> Iterator[str]:
    """A table for each source: a line for each class of M and ranking."""
    fitted = [*sources["rows"], *sources["H100"]]
    menus = folded(fitted, lambda problems: Ranking.parse(fit(problems)), by_sizes)
    others = folded(fitted, lambda problems: Ranking.parse(fit(problems)), by_rows)
    former = folded(sources["H100"], polynomial, by_sizes)
    rankings: dict[str, Score] = {
        "polynomial": lambda one: former(one.problem)(one), "trees": lambda one: losses(menus(one.problem), one),
        "trees, by M": lambda one: losses(others(one.problem), one),
    }  # fmt: skip
    rankings["nearest rows"] = nearest_first(sources["rows"], rankings["trees, by M"])
    for name, problems in sources.items():
        yield f"\n{name}\n"
        yield f"| M | GEMMs | ranking | {' | '.join(map(str, COUNTS))} | all |\n|---|---|---|{'---|' * len(COUNTS)}---|"
        for low, high in STRATA:
            group = [one for one in problems if low <= one.problem.m <= high]
            for title, score in rankings.items() if group else ():
                yield _line(low, title, [gains(one, score(one)) for one in group])
            if group and name != "H100":
                yield from _from_all(low, [chosen(one, menus(one.problem)) for one in group])


def _line(low: int, title: str, found: Sequence[Sequence[float]]) -> str:
    cells = (f"{100 * math.expm1(fmean(column)):.2f}" for column in zip(*found, strict=True))
    return f"| {stratum(low)} | {len(found):,} | {title} | {' | '.join(cells)} |"


def _from_all(low: int, found: Sequence[tuple[list[float], list[float]]]) -> Iterator[str]:
    yield _line(low, "from all", [[*gained, math.nan] for gained, _ in found])
    shares = (f"{fmean(column):.0%}" for column in zip(*(timed for _, timed in found), strict=True))
    yield f"| | | timed | {' | '.join(shares)} | |"


def chosen(one: Explored, ranking: Ranking) -> tuple[list[float], list[float]]:
    """Of the first few configs of a menu: the logarithms of the gains of the timed ones, and the shares of these."""
    timed: dict[tuple[int, ...], float] = {
        (tile.identifier, way.option + tile.swap, way.cluster, way.split): float(ratio)
        for (tile, way), ratio in zip(one.ways, one.ratios, strict=True)
    }
    ratios = [timed.get(way_of(config) or (), math.inf) for config in configs(one.problem, H200, ranking)]
    known = [sum(ratio < math.inf for ratio in ratios[:count]) / count for count in COUNTS]
    return [max(0.0, -math.log(min(ratios[:count], default=math.inf))) for count in COUNTS], known


def losses(ranking: Ranking, one: Explored) -> Array:
    """What the trees expect of a problem's algorithms."""
    return np.array([ranking.trees.log(row) for row in one.features().tolist()])


def gains(one: Explored, losses: Array) -> list[float]:
    """The logarithms of the gains over ATen with the first few algorithms, and with all."""
    best = np.minimum.accumulate(np.log(one.ratios)[np.argsort(losses, kind="stable")])
    return [max(0.0, -float(best[min(count, len(best)) - 1])) for count in (*COUNTS, len(best))]


def by_sizes(problem: Problem) -> int:
    """The fold of all problems with one N and K."""
    return hashlib.sha256(f"{problem.n} {problem.k}".encode()).digest()[0] % FOLDS


def by_rows(problem: Problem) -> int:
    """The fold of the problems whose M is between two powers of two."""
    return problem.m.bit_length()


def folded(
    problems: Sequence[Explored], fitted: Callable[[Sequence[Explored]], Fit], fold: Callable[[Problem], int]
) -> Callable[[Problem], Fit]:
    """The fit for a problem: to those of other folds."""

    @functools.cache
    def without(mine: int) -> Fit:
        return fitted([other for other in problems if fold(other.problem) != mine])

    return lambda problem: without(fold(problem))


def polynomial(problems: Sequence[Explored]) -> Score:
    """A ridge regression of the losses on products of two features, fitted to these problems."""
    rows = products(np.concatenate([one.features() for one in problems]))
    losses = np.concatenate([one.losses for one in problems])
    weights = np.where(losses > FAR, FAR_WEIGHT, 1.0)[:, None]
    scale = rows.std(axis=0)
    scale[scale < 1e-9] = 1.0
    scaled, penalty = rows / scale, np.full(rows.shape[1], RIDGE)
    penalty[0] = 0.0
    left = (scaled * weights).T @ scaled + np.diag(penalty)
    solved = np.linalg.solve(left, (scaled * weights).T @ np.minimum(losses, 1.0)) / scale
    return lambda one: np.asarray(products(one.features()) @ solved)


def products(rows: Array) -> Array:
    """1, the features, and the products of two, a column each."""
    count = rows.shape[1]
    pairs = [rows[:, one] * rows[:, other] for one in range(count) for other in range(one, count)]
    return np.column_stack([np.ones(len(rows)), rows, *pairs])


def nearest_first(problems: Sequence[Explored], score: Score) -> Score:
    """A ranking that begins with the algorithms timed at the nearest M of another fold, by their losses there."""
    alike: dict[tuple[int, int], list[Explored]] = defaultdict(list)
    for one in problems:
        alike[one.problem.n, one.problem.k].append(one)

    def nearest(one: Explored) -> Array:
        m, found = one.problem.m, score(one)
        alike_here = alike[one.problem.n, one.problem.k]
        others = [other for other in alike_here if by_rows(other.problem) != by_rows(one.problem)]
        others.sort(key=lambda other: abs(math.log2(other.problem.m / m)))
        known: dict[Any, float] = {}
        for other in others[:NEAREST]:
            for way, loss in zip(other.ways, other.losses, strict=True):
                known[way] = min(float(loss), known.get(way, math.inf))
        return np.array([known.get(way, LAST + loss) for way, loss in zip(one.ways, found, strict=True)])

    return nearest
