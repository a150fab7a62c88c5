"""Forecast: the time of every config at a problem, read off its own rows or predicted from its neighbours'."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from gemmdb.config import ATEN, Config
from gemmdb.ladder.ask import Ask
from gemmdb.ladder.exact import barred, find
from gemmdb.ladder.gate import gain, objection, verified
from gemmdb.ladder.roofline import roofline_us
from gemmdb.problem import Problem
from gemmdb.table import Table
from gemmdb.verdict import Pooled

DOUBT = 0.05
"""Loss allowed for per doubling of the distance to a single neighbour; half of it between two. Copying the nearest
neighbour's winner loses 8 to 12% on 54,317 recorded problems; a prediction from all timings is granted about half."""

NOISY = 0.25
"""Nothing is predicted from a time whose 95% interval is wider than this to each side: something disturbed it."""


@dataclass(frozen=True)
class Surface:
    """What one table knows of one problem: each config's pooled time relative to ATen's `aten_us` microseconds.
    `verified`: measured under the running toolchain class, with our kernels as they are now; None when that is
    unknown."""

    problem: Problem
    table: str
    pooled: Mapping[Config, Pooled]
    aten_us: float
    verified: bool | None

    def knows(self, config: Config) -> bool:
        """Whether `config` has a time here that is steady enough to predict from."""
        return config in self.pooled and self.pooled[config].spread <= NOISY


@dataclass(frozen=True)
class Forecast:
    """Times relative to ATen at a problem, for the configs that may be served there and for ATen itself.

    `ratios`: expected. `doubt`: how far, relative, each may be off; 0 where it was measured. `gains`: the smallest gain
    over ATen among the surfaces that it was predicted from. `aten_us`: expected microseconds of ATen.
    """

    rung: str
    ratios: Mapping[Config, float]
    doubt: Mapping[Config, float]
    gains: Mapping[Config, float]
    aten_us: float
    verified: bool | None
    table: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def regret(self, config: Config) -> float:
        """How much slower than the best of all `config` is expected to be: 0.03 is 3%."""
        return self.ratios[config] / min(self.ratios.values()) - 1

    def loss(self, config: Config) -> float:
        """The expected loss of serving `config`: its regret and the doubt."""
        return self.regret(config) + self.doubt[config]


def surface(ask: Ask, table: Table, problem: Problem) -> Surface | None:
    """The rows of `problem` in `table`, of the running toolchain class if there are any; None without ATen's."""
    classes = (None,) if ask.klass is None else (ask.klass, None)
    for klass in classes:
        rows = ask.read(Table.pooled, table, problem, ask.device, ask.query.l2, klass) or []
        pooled = {one.config: one for one in rows if all(row.protocol.clock != "model" for row in one.rows)}
        if ATEN in pooled:
            aten_us = median(row.times.median_us for row in pooled[ATEN].rows if row.times)
            holds = None if ask.klass is None else all(_holds(ask, one) for one in pooled.values())
            return Surface(problem, str(table.path), pooled, aten_us, holds)
    return None


def measured(ask: Ask) -> Forecast | None:
    """The forecast of a problem that was measured itself; None when no table has a verdict for it."""
    found = find(ask)
    here = surface(ask, found[0], ask.problem) if found else None
    if here is None:
        return None
    banned = barred(ask) - {ATEN}
    allowed = (c for c, one in here.pooled.items() if one.servable and c not in banned)
    ratios = {c: here.pooled[c].ratio for c in allowed if objection(ask, c) is None}
    gains = {config: gain(ratio) for config, ratio in ratios.items()}
    return Forecast("exact", ratios, dict.fromkeys(ratios, 0.0), gains, here.aten_us, here.verified, here.table)


def predicted(ask: Ask, used: Sequence[tuple[float, Surface]]) -> Forecast:
    """The forecast from the surfaces at neighbours, each with its distance in doublings (> 0).

    Only configs timed at all of them take part, each interpolated in log space with weights inverse to the distance,
    which between two neighbours on one line is linear interpolation. `doubt` grows with the distance to the nearest and
    with how much the neighbours disagree about a config's regret.
    """
    weights = [1 / distance for distance, _ in used]
    weights = [weight / sum(weights) for weight in weights]
    surfaces = [one for _, one in used]
    banned = barred(ask) - {ATEN}
    known = (c for c in surfaces[0].pooled if c not in banned and all(s.knows(c) for s in surfaces))
    shared = [c for c in known if objection(ask, c) is None]
    logs = {c: [math.log(s.pooled[c].ratio) for s in surfaces] for c in shared}
    best = [min(logs[c][i] for c in shared) for i in range(len(surfaces))]
    slope = DOUBT if len(used) == 1 else DOUBT / 2
    far = slope * min(distance for distance, _ in used)
    efficiency = [math.log(s.aten_us / roofline_us(s.problem, ask.device)) for s in surfaces]
    nearest = min(used, key=lambda pair: pair[0])[1]
    return Forecast(
        "near",
        {c: math.exp(_mean(weights, logs[c])) for c in shared},
        {c: far + _disagreement([own - top for own, top in zip(logs[c], best, strict=True)]) for c in shared},
        {c: min(gain(s.pooled[c].ratio) for s in surfaces) for c in shared if servable(c, surfaces)},
        roofline_us(ask.problem, ask.device) * math.exp(_mean(weights, efficiency)),
        None if ask.klass is None else all(s.verified for s in surfaces),
        nearest.table,
        {
            "neighbours": [
                {"problem": s.problem.text, "distance": distance, "table": s.table, "aten_us": s.aten_us}
                for distance, s in used
            ],
            "distance": min(distance for distance, _ in used),
            "configs": len(shared),
        },
    )


def servable(config: Config, surfaces: Sequence[Surface]) -> bool:
    """Whether `config` was measured in full at one of the neighbours at least."""
    return any(one.pooled[config].servable for one in surfaces)


def _holds(ask: Ask, one: Pooled) -> bool:
    return any(verified(ask, one.config, row.toolchain) for row in one.rows)


def _mean(weights: Sequence[float], values: Sequence[float]) -> float:
    return sum(weight * value for weight, value in zip(weights, values, strict=True))


def _disagreement(values: Sequence[float]) -> float:
    return math.expm1((max(values) - min(values)) / 2)
