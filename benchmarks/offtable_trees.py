"""What regression trees on top of the cost model would bring: an experiment, which nothing else uses. CPU; ten minutes.

    python benchmarks/offtable_trees.py benchmarks/results/h200/DATE... --out benchmarks/results/offtable/trees.json

The cost model's linear traits leave 9% of spread. Here scikit-learn's histogram gradient boosting (which has to be
installed for it) learns the logarithm of measured over modelled time from the tile, the problem and the counted work,
weighted towards fast configs. A fifth of the (N, K) pairs is held out in turn. Told are the share of the best measured
time that the first config of the order reaches, and the best of the first four and ATen (geometric mean, 5th
percentile): by the model, by the trees over all candidates, and by the trees over the model's first twelve, which is
what a lookup would have time for.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from offtable_model import PARTS, part_of
from sklearn.ensemble import HistGradientBoostingRegressor

from gemmdb.config import ATEN
from gemmdb.generators import fit
from gemmdb.generators.fit import Sample
from gemmdb.generators.fit_write import rows
from gemmdb.generators.modelled_space import setting_of
from gemmdb.ladder.model_cost import FITTED
from gemmdb.ladder.model_work import Setting, Tile, tile_of, work
from gemmdb.problem import Problem

SIZES = ((60, 31), (200, 31), (400, 63))
"""Trees, and leaves of each."""
FIRST = 12
ORDERS = ("row", "row-padded", "col", "col-padded")
OPS = ("mm", "addmm", "int_mm", "mixed_mm")
KERNELS = ("tile", "gemv", "gemm", "narrow", "persistent", "inductor_mm", "inductor_persistent_tma")
TILE = 31
"""How many of the features are about a tile; ATen has none."""


def features(setting: Setting, tile: Tile | None, us: float) -> list[float]:
    """What the trees see of a config (None: ATen) that the model expects to take `us`."""
    p = setting.problem
    about = [0.0] * TILE if tile is None else _about(setting, tile, us)
    orders = [float(ORDERS.index(operand.layout.order)) for operand in (p.a, p.b)]
    return [
        float(tile is None), *about, float(OPS.index(p.op)), math.log2(p.m), math.log2(p.n), math.log2(p.k),
        float(p.fusion != "none"), float(p.bias is not None), *orders, float(p.b.layout.align), float(setting.a),
        float(setting.b),
    ]  # fmt: skip


def _about(setting: Setting, tile: Tile, us: float) -> list[float]:
    p, w = setting.problem, work(setting, tile)
    programs = math.ceil(p.m / tile.m) * math.ceil(p.n / tile.n) * tile.split
    filled, steps = programs / setting.machine.sms, p.k / tile.k / tile.split
    cores = max(w.sync, w.wide, w.fma)
    return [
        float(KERNELS.index(tile.kernel)), *map(_log, (tile.m, tile.n, tile.k, tile.split, filled, steps)),
        float(tile.warps), float(tile.stages), float(("none", "fixup", "kernel").index(tile.reduce)), float(tile.swap),
        float(tile.tma), float(tile.bits), float(tile.mask), float(tile.stagger), float(tile.resident),
        float(tile.cluster), float(w.waves), filled % 1, steps % 1, p.m / tile.m % 1,
        p.m / (math.ceil(p.m / tile.m) * tile.m), _log(w.dram), _log(w.latency),
        *[_log(part / w.dram) for part in (w.l2, w.steps, cores, w.shared, w.cast + w.bits, w.output, us)],
    ]  # fmt: skip


def _log(value: float) -> float:
    return math.log2(max(value, 1e-6))


class Data:
    """Arrays over samples: features, measured and modelled times, and where a sample belongs."""

    def __init__(self, found: Sequence[Sample]) -> None:
        self.problems: dict[Problem, list[int]] = defaultdict(list)
        x, us, modelled, share, part, aten = [], [], [], [], [], []
        for sample in found:
            tile = tile_of(sample.config)
            if tile is None and sample.config != ATEN:
                continue
            setting = setting_of(sample.problem, sample.device)
            expected = FITTED.predict(setting, tile) if tile is not None else FITTED.predict_aten(setting)
            self.problems[sample.problem].append(len(us))
            x.append(features(setting, tile, expected))
            us.append(sample.us)
            modelled.append(expected)
            share.append(sample.share)
            part.append(part_of(sample.problem))
            aten.append(tile is None)
        self.x, self.us, self.modelled = np.array(x), np.array(us), np.array(modelled)
        self.share, self.part, self.aten = np.array(share), np.array(part), np.array(aten)

    def corrected(self, trees: int, leaves: int) -> Any:
        """Logarithms of the expected times of held-out samples."""
        left = np.log(self.us / self.modelled)
        found = np.zeros(len(left))
        for part in range(PARTS):
            known = self.part != part
            model = HistGradientBoostingRegressor(
                max_iter=trees, max_leaf_nodes=leaves, learning_rate=0.1, l2_regularization=1.0, random_state=0
            )
            model.fit(self.x[known], left[known], sample_weight=self.share[known] ** 2)
            found[~known] = model.predict(self.x[~known])
        return np.log(self.modelled) + found

    def figures(self, logs: Any, first: int = 0) -> dict[str, list[float]]:
        """Shares of the best time by an order; of the model's `first` configs alone, unless that is 0."""
        one, four = [], []
        for places in self.problems.values():
            ours = [i for i in places if not self.aten[i]]
            if not ours:
                continue
            if first:
                ours = sorted(ours, key=lambda i: self.modelled[i])[:first]
            ranked = sorted(ours, key=lambda i: logs[i])
            aten = [i for i in places if self.aten[i]]
            one.append(self.share[min([*ranked[:1], *aten], key=lambda i: logs[i])])
            four.append(max(self.share[i] for i in [*ranked[:4], *aten]))
        return {name: [_mean(values), float(np.percentile(values, 5))] for name, values in (("1", one), ("4", four))}


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def main() -> None:
    """Fit, hold out, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    data = Data(fit.samples(rows(options.folders)))
    model = np.log(data.modelled)
    result: dict[str, Any] = {"problems": len(data.problems), "samples": len(data.us), "model": data.figures(model)}
    for trees, leaves in SIZES:
        logs = data.corrected(trees, leaves)
        result[f"{trees} trees of {leaves}"] = data.figures(logs)
        result[f"{trees} trees of {leaves}, of the model's first {FIRST}"] = data.figures(logs, FIRST)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
