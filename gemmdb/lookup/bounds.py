"""Calibrated upper bounds on the time of predicted configs, used to tell whether one is certainly faster than ATen.

Most predictions are off by a few percent, some by a third. Each of the FEATURES of a prediction widens the bound by its
own weight. `benchmarks.offtable calibrate` fits the weights to problems, (N, K) pairs and classes of M held out from
measured tables, and a constant with which the bound holds for all but a few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from operator import mul

from gemmdb.cost.roofline import roofline_us
from gemmdb.cost.transfer import tile
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.canonical import lazy
from gemmdb.key.problem import Problem
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.calibration import CAPABILITIES, MODEL, NEAR, WEIGHTS
from gemmdb.lookup.prediction import Prediction

FEATURES = ("no_trees", "spread", "rows", "sides", "worst", "slowest", "unseen", "once", "library", "gemv")
"""`no_trees`: no trees corrected the time; `spread`: the prediction's standard deviation; `rows`, `sides`: distance in
doublings of M, and of N and K, to the nearest neighbour; `worst`: excess of the largest single-neighbour prediction
over the prediction; `slowest`: how much slower than ATen the config was at a neighbour; `unseen`, `once`: no neighbour
timed the config, or only one; `library`: excess of ATen's expected time over its times nearby, scaled by the roofline;
`gemv`: a gemv kernel. Times and ratios are logarithms."""
LIBRARY_NEIGHBOURS = 3
"""Number of neighbours that `library` uses."""
PARTIAL_STEP = 0.16
"""Log-scale penalty on the bound of a config whose K tile does not divide K. Such configs mask their loads, and few of
the fitted problems have such a K. On problems outside all presets, none of 104 configs with whole steps was below its
bound; of 175 others 8 were, two of them by at least this (`offtable fresh-report`)."""
LAUNCH_US = 2.0
"""Launch overhead of a call, used when times are scaled by the roofline."""


@dataclass(frozen=True)
class Certainty:
    """Bounds for a prediction from neighbours."""

    ask: Ask
    prediction: Prediction

    @lazy
    def common(self) -> tuple[float, float, float]:
        """The features shared by all configs: rows, sides, library."""
        ask, found = self.ask, self.prediction
        m, n, k = ask.problem.doublings
        around = [one.problem.doublings for one in found.around]
        here = roofline_us(ask.problem, ask.device) + LAUNCH_US
        least = min(one.aten_us / (one.roof_us + LAUNCH_US) for one in found.around[:LIBRARY_NEIGHBOURS]) * here
        return (
            min([abs(one[0] - m) for one in around]),
            min([math.hypot(one[1] - n, one[2] - k) for one in around]),
            max(0.0, math.log(found.aten_us / least)),
        )

    def features(self, config: Config) -> tuple[float, ...]:
        """Return the FEATURES of a config other than ATen."""
        found, (rows, sides, library) = self.prediction, self.common
        log, spread, _ = found.estimates[config]
        support = found.support(config)
        return (
            float(not found.corrected or tile(config) is None),
            math.hypot(spread, found.estimates[ATEN].spread),
            rows,
            sides,
            max(0.0, support.worst - log),
            max(0.0, support.slowest),
            float(support.timed == 0),
            float(support.timed == 1),
            library,
            float(config.kernel == "gemv"),
        )

    def sure(self, config: Config) -> bool:
        """Return whether a config is certainly faster than ATen."""
        log = self.prediction.estimates[config].log
        if calibrated(self.ask) and log + NEAR[self.ask.problem.op] >= 0:
            return False  # No feature lowers a bound.
        return self.most(config) < 0

    def most(self, config: Config) -> float:
        """Return the upper bound on the log of a config's time relative to ATen's: negative if certainly faster.

        Infinite for a config with too little evidence, and for a library's algorithms: how fast one is changes from
        size to size. On uncalibrated devices, two standard deviations plus the distance penalty.
        """
        log, spread, _ = self.prediction.estimates[config]
        if not calibrated(self.ask):
            if config.spec.library:
                return math.inf
            return log + 2 * math.hypot(spread, self.prediction.estimates[ATEN].spread) + self.prediction.far
        features = self.features(config)
        no_trees, unseen, once = features[0], features[6], features[7]
        if no_trees and (unseen or once or config.spec.library):  # A single neighbour may be off by 2x.
            return math.inf
        added: float = sum(map(mul, WEIGHTS, features))
        return log + NEAR[self.ask.problem.op] + added + partial_step(self.ask.problem, config)


def certain(ask: Ask, prediction: Prediction) -> Prediction:
    """Return the prediction without configs that may be slower than ATen."""
    bounds = Certainty(ask, prediction)
    estimates = prediction.estimates
    kept = {config: one for config, one in estimates.items() if config == ATEN or bounds.sure(config)}
    return replace(prediction, estimates=kept)


def margin(ask: Ask, config: Config) -> float:
    """Return the log gain that a config must exceed in the cost model to be a certain gain; 0 on an uncalibrated arch,
    infinite for an uncalibrated op on a calibrated arch."""
    if ask.device.capability not in CAPABILITIES:
        return 0.0
    return MODEL.get(ask.problem.op, math.inf) + partial_step(ask.problem, config)


def partial_step(problem: Problem, config: Config) -> float:
    """Return PARTIAL_STEP if a config's K tile does not divide K, else 0."""
    shape = tile(config)
    return PARTIAL_STEP if shape is not None and problem.k % shape.k else 0.0


def calibrated(ask: Ask) -> bool:
    """Return whether the bounds were calibrated for the query's arch and op."""
    return ask.device.capability in CAPABILITIES and ask.problem.op in NEAR
