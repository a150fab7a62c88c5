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
from gemmdb.cost.roofline import roofline_us
from gemmdb.cost.sizes import Counts, Rates
from gemmdb.cost.transfer import tile
from gemmdb.generators.fit.cost_model import Array, Sample, least_squares, pooled
from gemmdb.generators.fit.write import DIGITS, json_text, main, provenance, rows
from gemmdb.kernels.aten import DEQUANTISED
from gemmdb.kernels.config import ATEN

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
    """Return the rates by kernel, and by the names of `sizes.aten_of`."""
    groups = _grouped(found)
    expanded = {name: samples for name, samples in groups.items() if name.startswith(sizes.EXPANDED)}
    rates = {name: _rates(samples, name not in (sizes.TILED, sizes.BLOCKS))
             for name, samples in groups.items() if name not in expanded}  # fmt: skip
    return dict(sorted((rates | _expanded(expanded)).items()))


def _grouped(found: Iterable[Sample]) -> dict[str, list[Sample]]:
    """Return the samples by the name of their rates, without kernels that have few."""
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in found:
        shape = tile(sample.config)
        if sample.config == ATEN or sample.config.spec is DEQUANTISED:
            groups[sizes.aten_of(sample.problem, sample.config)].append(sample)
        elif shape is not None and sample.share * SLOWEST >= 1:
            groups[shape.kernel].append(sample)
    return {name: samples for name, samples in groups.items() if len(samples) >= FEWEST}


def error(rates: Rates, found: Sequence[Sample], roofline: bool = False) -> float:
    """Return the mean error of the logarithm, up to a factor for each config; `roofline`: that of the roofline."""
    times = np.log([sample.us for sample in found])
    if roofline:
        left = times - np.log([roofline_us(sample.problem, sample.device) for sample in found])
    else:
        left = times - np.log(sizes.microseconds(rates, _counts(found)))
    owner = _owners(found)
    return float(np.abs(left - (np.bincount(owner, left) / np.bincount(owner))[owner]).mean())


def _rates(found: Sequence[Sample], free: bool) -> Rates:
    """Return the rates of a kernel, or of ATen. `free`: each config has a factor of its own."""
    counts, logs = _counts(found), np.log([sample.us for sample in found])
    weights = np.array([sample.share**2 if free else 1.0 for sample in found])
    owner = _owners(found)
    total = np.bincount(owner, weights**2)

    def residual(theta: Array) -> Array:
        left = np.log(sizes.microseconds(Rates(*np.exp(theta)), counts)) - logs
        if free:
            left = left - (np.bincount(owner, weights**2 * left) / total)[owner]
        return np.asarray(left * weights)

    return Rates(*least_squares(residual, np.log(INITIAL), weights, PRIOR_WEIGHT).tolist())


def _expanded(groups: dict[str, list[Sample]]) -> dict[str, Rates]:
    """Return ATen's rates for weights that it expands: each format takes a time of its own to unpack, and the GEMM
    after that is the same. Under the name of all: for other formats, the mean."""
    found = [sample for samples in groups.values() for sample in samples]
    which = np.repeat(np.arange(len(groups)), [len(samples) for samples in groups.values()])
    counts, logs, ones = _counts(found), np.log([sample.us for sample in found]), np.ones(len(found))

    def rates(launch: Any, products: Any, weights: Any) -> Rates:
        return INITIAL._replace(launch=launch, products=products, weights=weights)

    def residual(theta: Array) -> Array:
        launch, products, *weights = np.exp(theta)
        return np.asarray(np.log(sizes.microseconds(rates(launch, products, np.array(weights)[which]), counts)) - logs)

    start = np.log([INITIAL.launch, INITIAL.products, *[INITIAL.weights] * len(groups)])
    launch, products, *weights = least_squares(residual, start, ones, PRIOR_WEIGHT).tolist()
    mean = float(np.exp(np.log(weights).mean()))
    named = {**dict(zip(groups, weights, strict=True)), sizes.EXPANDED: mean}
    return {name: rates(launch, products, one) for name, one in named.items()}


def _counts(found: Sequence[Sample]) -> Counts:
    each = []
    for sample in found:
        shape = tile(sample.config)
        if shape is None:
            each.append(sizes.of_aten(sample.problem, sample.device, sample.config))
        else:
            each.append(sizes.of_tile(shape, sample.problem, sample.device))
    return Counts(*np.array(each, dtype=float).T)


def _owners(found: Sequence[Sample]) -> Any:
    """Return a number for each sample, the same for the samples of a config, without its split of K, and a format."""
    names: dict[object, int] = {}
    return np.array([names.setdefault(_config(sample), len(names)) for sample in found])


def _config(sample: Sample) -> object:
    own = sample.problem.int4
    params = tuple((name, value) for name, value in sample.config.params if name != "split_k")
    return sample.config.kernel, params, own and (own.packing, own.zeros, own.size)


def texts(folders: Sequence[Path]) -> dict[str, str]:
    wanted = (row for row in rows(folders, reference=True) if row.device.sku == SKU)
    found = pooled(row for row in wanted if sizes.concerns(row.problem))
    rates = {name: Rates(*(float(f"{rate:.{DIGITS}g}") for rate in one)) for name, one in fit(found).items()}
    errors = {name: [round(error(rates[name], samples, roofline), 3) for roofline in (False, True)]
              for name, samples in sorted(_grouped(found).items())}  # fmt: skip
    document: dict[str, Any] = {
        "capabilities": sorted({one.device.capability for one in found}), "provenance": provenance(folders, found),
        "errors": errors, "rates": rates,
    }  # fmt: skip
    return {"sizes.json": json_text("sizes", folders, document)}


if __name__ == "__main__":
    main(__doc__, texts)
