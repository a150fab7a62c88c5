"""Fit of the cost model (`gemmdb.cost.model`) to measured rows; the command is `write`.

Each group of kernels is fitted in three steps: the rates, by least squares of the logarithm (Levenberg-Marquardt),
weighted towards the fastest configs of each problem; the remaining error in the *order* within each problem, by ridge
regression on the traits; the remaining error in each problem's level, by ridge regression on its kind. Needs numpy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from gemmdb.cost.features import OPS
from gemmdb.cost.library import library
from gemmdb.cost.model import Coefficients, kinds, microseconds, traits
from gemmdb.cost.work import COEFFICIENTS, Work, tile_of, work
from gemmdb.generators.modelled.space import setting_of
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Measurement, Status

Array = NDArray[np.float64]

INITIAL_RATES = {
    "launch": 2.5, "wave": 0.3, "output": 1.0, "fixup": 1.5, "second": 2.0, "partial": 1.0, "dram": 1.15, "l2": 1.5,
    "latency": 0.7, "sync": 1.3, "wide": 1.2, "fma": 1.5, "shared": 0.3, "cast": 1.5, "bits": 1.5, "steps": 0.1,
    "power": 3.0,
}  # fmt: skip
"""Start of the search, from data sheets and a first look at the rows."""
PRIOR_WEIGHT = 0.02
"""Regularization of the rates towards INITIAL_RATES. Rates that the rows do not determine stay there."""
MAX_SPREAD = 0.25
"""Rows with a wider (relative) interval are skipped."""
RIDGE = 5.0
ROUNDS = 40
GROUPS = ("tile", "gemv", "cutlass", "aten")


@dataclass(frozen=True)
class Sample:
    """Time of a config on a problem and device in microseconds, pooled over runs. `share`: the time of the fastest
    config measured on that problem divided by it, at most 1."""

    problem: Problem
    device: Device
    config: Config
    us: float
    share: float


def samples(rows: Iterable[Measurement]) -> list[Sample]:
    """Return the samples of measured rows of the modelled ops, except int4 weights."""
    return pooled(row for row in rows if row.problem.op in OPS and row.problem.int4 is None)


def pooled(rows: Iterable[Measurement]) -> list[Sample]:
    """Return the samples of measured rows: full measurements if there are any, else short estimates. Failures give no
    samples."""
    times: dict[tuple[Problem, Device], dict[Config, list[tuple[bool, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.times is not None and row.times.spread <= MAX_SPREAD and row.protocol.clock != "model":
            times[row.problem, row.device][row.config].append((row.status is Status.OK, row.times.median_us))
    found = []
    for (problem, device), configs in times.items():
        full = {config: [us for ok, us in values if ok] for config, values in configs.items()}
        us = {config: median(full[config] or [us for _, us in values]) for config, values in configs.items()}
        best = min(us.values())
        found += [Sample(problem, device, config, one, best / one) for config, one in us.items()]
    return found


def fit(found: Iterable[Sample]) -> Coefficients:
    grouped: dict[str, list[Sample]] = defaultdict(list)
    for sample in found:
        tile = tile_of(sample.config)
        group = "aten" if sample.config == ATEN else tile.group if tile else ""
        if group:
            grouped[group].append(sample)
    parts = {group: _fit_group(group, grouped[group]) for group in GROUPS if grouped[group]}
    rates, own, common = ({group: part[i] for group, part in parts.items()} for i in range(3))
    return Coefficients(rates, own, common)


def _fit_group(group: str, found: Sequence[Sample]) -> tuple[tuple[float, ...], ...]:
    done, own, common = [], [], []
    for sample in found:
        setting = setting_of(sample.problem, sample.device)
        tile = tile_of(sample.config)
        one = library(setting) if tile is None else work(setting, tile)
        done.append(one)
        own.append(() if tile is None else traits(setting, tile, one))
        common.append(kinds(sample.problem))
    logs = np.log([sample.us for sample in found])
    names: dict[Problem, int] = {}
    owner = np.array([names.setdefault(sample.problem, len(names)) for sample in found])
    weights = np.array([sample.share**2 for sample in found]) if group != "aten" else np.ones(len(found))
    weights = weights / np.sqrt(np.bincount(owner)[owner])
    rates = _rates(np.array(done, dtype=float), logs, weights)
    left = logs - _log_us(np.array(done, dtype=float), np.log(rates))
    order = _ridge(np.array(own, dtype=float), left, weights, owner)
    if len(order):
        left = left - np.array(own, dtype=float) @ order
    level = _ridge(np.array(common, dtype=float), left, weights, None)
    return tuple(map(tuple, (rates.tolist(), order.tolist(), level.tolist())))


def _log_us(done: Array, theta: Array) -> Array:
    us: Array = microseconds(Work(*done.T), np.exp(theta).tolist())
    return np.log(us)


def _rates(done: Array, logs: Array, weights: Array) -> Array:
    start = np.log([INITIAL_RATES[name] for name in COEFFICIENTS])
    return least_squares(lambda theta: (_log_us(done, theta) - logs) * weights, start, weights)


def least_squares(errors: Callable[[Array], Array], start: Array, weights: Array, prior: float = PRIOR_WEIGHT) -> Array:
    """Run Levenberg-Marquardt over the logarithms of rates. `errors`: of these logarithms, times the `weights`.
    `prior`: regularization towards the `start`."""
    pull = prior * np.sqrt((weights**2).sum())

    def residual(theta: Array) -> Array:
        return np.concatenate([errors(theta), pull * (theta - start)])

    theta, damping = start.copy(), 1e-2
    now = residual(theta)
    for _ in range(ROUNDS):
        slopes = np.stack([(residual(theta + step) - now) / 1e-4 for step in 1e-4 * np.eye(len(theta))], axis=1)
        normal, gradient = slopes.T @ slopes, slopes.T @ now
        before = now @ now
        while damping < 1e6:
            move = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-6), -gradient)
            after = residual(theta + np.clip(move, -0.7, 0.7))
            if after @ after < before:
                theta, now, damping = theta + np.clip(move, -0.7, 0.7), after, damping / 3
                break
            damping *= 4
        if before - now @ now < 1e-6 * before:
            break
    return np.exp(theta)


def _ridge(values: Array, left: Array, weights: Array, owner: NDArray[np.int_] | None) -> Array:
    """Return the coefficients of `values` that explain `left`; with `owner`, only differences within each problem."""
    if values.shape[1] == 0:
        return np.zeros(0)
    scale = values.std(axis=0)
    values = values / np.where(scale > 0, scale, 1.0)
    if owner is not None:
        values, left = _centred(values, weights, owner), _centred(left[:, None], weights, owner)[:, 0]
    rows, wanted = values * weights[:, None], left * weights
    strength = RIDGE * (weights**2).sum() / len(weights) if owner is not None else 1e-3 * (weights**2).sum()
    solved = np.linalg.solve(rows.T @ rows + strength * np.eye(rows.shape[1]), rows.T @ wanted)
    return np.where(scale > 0, solved / np.where(scale > 0, scale, 1.0), solved if owner is None else 0.0)


def _centred(values: Array, weights: Array, owner: NDArray[np.int_]) -> Array:
    total = np.bincount(owner, weights**2)
    means = [np.bincount(owner, weights**2 * column) / total for column in values.T]
    return values - np.stack(means, axis=1)[owner]
