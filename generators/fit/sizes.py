"""Writes the rates of `gemmdb.cost.sizes`, fitted to archives of measured rows.

    python -m gemmdb.generators.fit.sizes FOLDER... --out gemmdb/cost

FOLDER: a folder of archives (`rows-*.jsonl.xz`). The same archives give the same file, `sizes.json`. Each kernel's
rates are fitted by least squares of the logarithm, weighted towards the fastest configs of each problem. A config may
be faster or slower than the formula says by the same factor everywhere. Needs gemmdb[fit].
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gemmdb.cost import sizes
from gemmdb.cost.sizes import Counts, Rates
from gemmdb.cost.transfer import tile
from gemmdb.generators.fit.cost_model import Array, Sample, least_squares, pooled
from gemmdb.generators.fit.write import DIGITS, json_text, main, provenance, rows
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem

INITIAL = Rates(2.5, 0.5, 0.3, 0.1, 0.1, 0.05, 0.25, 0.5, 1.0, 0.5)
"""Start of the search, to which rates that the rows do not determine are pulled."""
PRIOR_WEIGHT = 0.002
"""Regularization of the rates towards INITIAL."""
SKU = "NVIDIA H200"
"""The GPU to whose rows the rates are fitted."""
FEWEST = 10
"""Samples that a kernel's rates are fitted to, at least."""
SLOWEST = 1.6
"""Configs are left out where they take more than so many times as long as the best one."""


def fit(found: Iterable[Sample]) -> dict[str, Rates]:
    """Return the rates by kernel."""
    grouped: dict[str, list[Sample]] = defaultdict(list)
    for sample in found:
        shape = tile(sample.config)
        if sample.config == ATEN:
            for name in _of_aten(sample.problem):
                grouped[name].append(sample)
        elif shape is not None and sample.share * SLOWEST >= 1:
            grouped[shape.kernel].append(sample)
    return {name: _rates(samples) for name, samples in sorted(grouped.items()) if len(samples) >= FEWEST}


def _of_aten(problem: Problem) -> Sequence[str]:
    own = problem.int4
    if own is None or own.inner:
        return [sizes.aten_of(problem)]
    return [sizes.EXPANDED, sizes.expanded_as(own)]


def _rates(found: Sequence[Sample]) -> Rates:
    counts = Counts(*np.array([_counts(sample) for sample in found], dtype=float).T)
    logs = np.log([sample.us for sample in found])
    weights = np.array([1.0 if sample.config == ATEN else sample.share**2 for sample in found])
    names: dict[object, int] = {}
    owner = np.array([names.setdefault(_config(sample), len(names)) for sample in found])
    total = np.bincount(owner, weights**2)

    def residual(theta: Array) -> Array:
        left = np.log(sizes.microseconds(Rates(*np.exp(theta)), counts)) - logs
        return np.asarray((left - (np.bincount(owner, weights**2 * left) / total)[owner]) * weights)

    return Rates(*least_squares(residual, np.log(INITIAL), weights, PRIOR_WEIGHT).tolist())


def _counts(sample: Sample) -> Counts:
    shape = tile(sample.config)
    return sizes.of_aten(sample.problem) if shape is None else sizes.of_tile(shape, sample.problem, sample.device)


def _config(sample: Sample) -> object:
    """What has a factor of its own: a config without its split of K, for a format of the weight."""
    own = sample.problem.int4
    params = tuple((name, value) for name, value in sample.config.params if name != "split_k")
    return sample.config.kernel, params, own and (own.packing, own.zeros, own.size)


def texts(folders: Sequence[Path]) -> dict[str, str]:
    wanted = (row for row in rows(folders, reference=True) if sizes.covers(row.problem) and row.device.sku == SKU)
    found = pooled(wanted)
    rates = {name: [float(f"{rate:.{DIGITS}g}") for rate in one] for name, one in fit(found).items()}
    document: dict[str, Any] = {"provenance": provenance(folders, found), "rates": rates}
    return {"sizes.json": json_text("sizes", folders, document)}


if __name__ == "__main__":
    main(__doc__, texts)
