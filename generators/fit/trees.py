"""Fits trees (`gemmdb.kernels.trees`), and those on top of the cost model to measured rows; the command is `write`.

Histogram gradient boosting learns the logarithm of measured over modelled time, weighted towards the fastest configs of
each problem. Needs gemmdb[fit].
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmdb.cost.features import FEATURES, of_aten, of_problem, of_tile
from gemmdb.cost.model import Coefficients
from gemmdb.cost.work import tile_of, work
from gemmdb.errors import InputError
from gemmdb.generators.fit.cost_model import Sample
from gemmdb.generators.modelled.space import setting_of
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.trees import FORMAT, parse

Array = NDArray[np.float64]

TREES, LEAVES, RATE = 200, 63, 0.1
"""Number of trees, leaves per tree, and learning rate. On held-out problems, 400 trees are no better, and 31 leaves
lose half a percent. A lookup evaluates a dozen configs in a millisecond."""
OP_TREES, OP_RATE = 100, 0.2
"""The same for TREE_OPS: on held-out problems as good as TREES at RATE, and faster (0.971 and 0.970 of the best time
for the first kernel, 0.997 for the best of four)."""
RIDGE = 1.0
LEAF_STEP = 1e-4
"""Rounding step of the leaves (logarithms). It is coarse, so that many leaves share one object after reading."""
CHECK_ROWS = 16
"""Number of rows kept with their predictions, as a check."""
MAX_ROUNDING = 3e-3
"""Maximum change of a prediction by rounding."""


def document(found: Iterable[Sample], fitted: Coefficients, trees: int = TREES, rate: float = RATE) -> dict[str, Any]:
    """Return the input of `gemmdb.kernels.trees.parse`: `trees` trees fitted to these samples on top of `fitted`.

    Raises what `boosted` raises.
    """
    used = [one for one in found if one.config == ATEN or tile_of(one.config) is not None]
    pairs = [values(one, fitted) for one in used]
    rows = np.array([row for row, _ in pairs], dtype=float)
    left = np.log([one.us for one in used]) - np.log([us for _, us in pairs])
    weights = np.array([one.share for one in used]) ** 2
    return boosted(rows, left, weights, FEATURES, max_iter=trees, max_leaf_nodes=LEAVES, learning_rate=rate)


def boosted(rows: Array, left: Array, weights: Array, features: Sequence[str], **limits: Any) -> dict[str, Any]:
    """Return the input of `gemmdb.kernels.trees.parse`: trees that predict `left` from `rows` of these features,
    fitted with `weights`. `limits`: arguments of HistGradientBoostingRegressor.

    Raises InputError without scikit-learn, and AssertionError if the written trees predict something else than the
    fitted ones.
    """
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError as error:
        raise InputError(f"fitting trees needs scikit-learn, pip install 'gemmdb[fit]': {error}") from error
    model = HistGradientBoostingRegressor(l2_regularization=RIDGE, early_stopping=False, random_state=0, **limits)
    model.fit(rows, left, sample_weight=weights)
    checked = rows[:: max(len(rows) // CHECK_ROWS, 1)][:CHECK_ROWS]
    checks = list(zip(checked.tolist(), model.predict(checked).tolist(), strict=True))
    written = _written(model, checks, features)
    read = parse(written, features)
    if any(abs(read.log(row) - expected) > MAX_ROUNDING for row, expected in checks):
        raise AssertionError("the trees that were written are not those that were fitted")
    return written


def values(sample: Sample, fitted: Coefficients) -> tuple[tuple[float, ...], float]:
    """Return the FEATURES of a sample, and the microseconds that the cost model predicts for it."""
    setting, tile = setting_of(sample.problem, sample.device), tile_of(sample.config)
    if tile is None:
        us = fitted.predict_aten(setting)
        return (*of_problem(setting), *of_aten(setting, us)), us
    w = work(setting, tile)
    us = fitted.of_work(setting, tile, w)
    return (*of_problem(setting), *of_tile(setting, tile, w, us)), us


def text(written: Mapping[str, Any]) -> str:
    parts = [f'"{name}": {_json(value)}' for name, value in written.items() if name != "trees"]
    trees = ",\n".join(_json(tree) for tree in written["trees"])
    return "{" + ",\n".join(parts) + f',\n"trees": [\n{trees}\n]}}\n'


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _written(
    model: Any, checks: Sequence[tuple[list[float], float]], features: Sequence[str]
) -> dict[str, Any]:  # fmt: skip
    # scikit-learn's tree nodes are private; `document` checks the trees read here against its predictions.
    trees = [nodes.nodes for (nodes,) in model._predictors]
    inner = [(int(node["feature_idx"]), float(node["num_threshold"])) for tree in trees for node in tree
             if not node["is_leaf"]]  # fmt: skip
    cuts = sorted(set(inner))
    places = {cut: place for place, cut in enumerate(cuts)}
    return {
        "format": FORMAT,
        "features": list(features),
        "base": float(np.ravel(model._baseline_prediction)[0]),
        "unit": LEAF_STEP,
        "checks": [[row, expected] for row, expected in checks],
        "cuts": [list(cut) for cut in cuts],
        "trees": [_codes(tree, places) for tree in trees],
    }


def _codes(tree: Any, places: Mapping[tuple[int, float], int]) -> list[int]:
    """Return the nodes of one tree, children before parents."""
    found: list[int] = []
    stack = [0]
    while stack:
        node = tree[stack.pop()]
        if node["is_leaf"]:
            found.append(2 * round(float(node["value"]) / LEAF_STEP) + 1)
        else:
            found.append(2 * places[int(node["feature_idx"]), float(node["num_threshold"])])
            stack += [int(node["left"]), int(node["right"])]
    # The stack visits parents before children; reversed, children come first.
    return found[::-1]
