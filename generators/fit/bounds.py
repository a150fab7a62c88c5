"""Fit of the bounds in `gemmdb.lookup.bounds` to outcomes of held-out problems; the command is `benchmarks.offtable
calibrate`.

An outcome is a candidate with its expected and its measured time relative to ATen, as logarithms. `weights` finds what
each feature adds to the expected time, so that a share LEVEL of the measured times stays below (quantile regression
with non-negative weights). `shifts` then checks that, op by op, on outcomes outside the fit, and adds what is missing
(split conformal prediction). Needs gemmdb[fit].
"""

from __future__ import annotations

import importlib
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmdb.errors import InputError

Array = NDArray[np.float64]

LEVEL = 0.99
"""Share of measured times that stay below their bounds."""
RIDGE = 1e-3
"""Penalty per weight, so that uninformative features get none."""


@dataclass(frozen=True)
class Outcome:
    """A candidate on a held-out problem. `group`: outcomes of one group are held out together."""

    op: str
    group: int
    expected: float
    measured: float
    features: tuple[float, ...]


@dataclass(frozen=True)
class Bounds:
    """What `bounds` adds to an expected logarithm: a constant per op, and feature weights."""

    constants: Mapping[str, float]
    weights: tuple[float, ...]

    def of(self, one: Outcome) -> float:
        added = sum(weight * value for weight, value in zip(self.weights, one.features, strict=True))
        return one.expected + self.constants[one.op] + added


def fit(found: Sequence[Outcome], level: float = LEVEL) -> Bounds:
    """Return the bounds for these outcomes. Raises InputError without scipy."""
    missed: dict[str, list[float]] = defaultdict(list)
    for group in sorted({one.group for one in found}):
        others = weights([one for one in found if one.group != group], level)
        for one in found:
            if one.group == group and one.op in others.constants:
                missed[one.op].append(one.measured - others.of(one))
    whole = weights(found, level)
    moved = {op: constant + shift(missed[op], level) for op, constant in whole.constants.items()}
    return Bounds(moved, whole.weights)


def weights(found: Sequence[Outcome], level: float) -> Bounds:
    """Run the quantile regression: per-op constants and weights that minimize the pinball loss."""
    ops = sorted({one.op for one in found})
    own = np.array([[float(one.op == op) for op in ops] for one in found])
    values = np.hstack([own, np.array([one.features for one in found])])
    left = np.array([one.measured - one.expected for one in found])
    solved = _pinball(values, left, level, len(ops))
    return Bounds(dict(zip(ops, solved[: len(ops)].tolist(), strict=True)), tuple(solved[len(ops) :].tolist()))


def shift(missed: Sequence[float], level: float) -> float:
    """Return the shift that keeps a share `level` of new outcomes below their bounds: a quantile of how far these were
    above theirs, corrected for their number; infinite if there are too few."""
    rank = math.ceil((len(missed) + 1) * level)
    return sorted(missed)[rank - 1] if rank <= len(missed) else math.inf


def margins(found: Iterable[tuple[str, float, float]], level: float = LEVEL) -> dict[str, float]:
    """Return, by op, the margin by which a share `level` of measured logarithms exceeds the expected ones at most, from
    (op, expected, measured)."""
    missed: dict[str, list[float]] = defaultdict(list)
    for op, expected, measured in found:
        missed[op].append(measured - expected)
    return {op: max(shift(values, level), 0.0) for op, values in sorted(missed.items())}


def _pinball(values: Array, left: Array, level: float, free: int) -> Array:
    """Solve for the coefficients of `values` (the first `free` of any sign, the others non-negative) that minimize the
    pinball loss of `left`, as a linear program."""
    try:
        optimize, sparse = (importlib.import_module(f"scipy.{name}") for name in ("optimize", "sparse"))
    except ImportError as error:
        raise InputError("fitting bounds needs scipy: pip install gemmdb[fit]") from error
    rows, columns = values.shape
    ones: Any = sparse.identity(rows)
    cost = np.concatenate(
        [np.zeros(free), np.full(columns - free, RIDGE * rows * (1 - level)), np.full(rows, level),
         np.full(rows, 1 - level)]
    )  # fmt: skip
    limits = [(None, None)] * free + [(0.0, None)] * (columns - free + 2 * rows)
    equal = sparse.hstack([sparse.csr_matrix(values), ones, -ones]).tocsr()
    solved = optimize.linprog(cost, A_eq=equal, b_eq=left, bounds=limits, method="highs")
    found: Array = solved.x[:columns]
    return found
