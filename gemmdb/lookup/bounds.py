"""An upper bound of the time of a predicted config, calibrated on held-out problems: is it certainly faster than ATen?

Most predictions are off by a few percent, some by a third. Each of the FEATURES of what a prediction was made from
widens the bound by its own weight. `benchmarks.offtable calibrate` fits the weights to problems, (N, K) pairs and
classes of M that were held out from measured tables, and a constant for which the bound holds for all but a few.
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
"""`no_trees`: no trees corrected the time; `spread`: the prediction's standard deviation; `rows`, `sides`: doublings of
M, and of N and K, to the nearest neighbour in these; `worst`: how far the largest time that a single neighbour
predicts is above the prediction; `slowest`: how much slower than ATen the config was at a neighbour; `unseen`, `once`:
no neighbour timed the config, or only one; `library`: how far ATen's expected time is above its times nearby, scaled by
the roofline; `gemv`: the kernel. Times and ratios are logarithms."""
LIBRARY_NEIGHBOURS = 3
"""How many neighbours `library` looks at."""
PARTIAL_STEP = 0.16
"""Added to the bound of a config whose steps do not divide K, as a logarithm. It masks its loads, and few of the
problems that the bounds were fitted to have such a K. Of the answers to problems that no preset lists, none of 104 with
whole steps was below its bound; of 175 others 8 were, two of them by at least this (`offtable fresh-report`)."""
LAUNCH_US = 2.0
"""What a call takes besides its bytes and operations, when times are scaled by the roofline."""


@dataclass(frozen=True)
class Certainty:
    """The bounds of a prediction that was made from neighbours."""

    ask: Ask
    prediction: Prediction

    @lazy
    def common(self) -> tuple[float, float, float]:
        """The features that all of its configs share: rows, sides, library."""
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
        """The FEATURES of a config other than ATen."""
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
        """Whether a config is faster than ATen for certain."""
        log = self.prediction.estimates[config].log
        if calibrated(self.ask) and log + NEAR[self.ask.problem.op] >= 0:
            return False  # No feature makes a bound lower.
        return self.most(config) < 0

    def most(self, config: Config) -> float:
        """The upper bound of the logarithm of a config's time relative to ATen's: negative if it is faster for certain.

        Infinite for a config that has too little evidence. On devices that nothing was calibrated on, two standard
        deviations and what the distance adds.
        """
        log, spread, _ = self.prediction.estimates[config]
        if not calibrated(self.ask):
            return log + 2 * math.hypot(spread, self.prediction.estimates[ATEN].spread) + self.prediction.far
        features = self.features(config)
        no_trees, unseen, once = features[0], features[6], features[7]
        if no_trees and (unseen or once):  # One neighbour alone may be off by a factor of two.
            return math.inf
        added: float = sum(map(mul, WEIGHTS, features))
        return log + NEAR[self.ask.problem.op] + added + partial_step(self.ask.problem, config)


def certain(ask: Ask, prediction: Prediction) -> Prediction:
    """The prediction without the configs that may be slower than ATen."""
    bounds = Certainty(ask, prediction)
    estimates = prediction.estimates
    kept = {config: one for config, one in estimates.items() if config == ATEN or bounds.sure(config)}
    return replace(prediction, estimates=kept)


def margin(ask: Ask, config: Config) -> float:
    """What the logarithm of the gain that the cost model expects of a config must exceed to be a gain for certain; 0
    on an arch where nothing was calibrated. Infinite for an op that was not, where others were."""
    if ask.device.capability not in CAPABILITIES:
        return 0.0
    return MODEL.get(ask.problem.op, math.inf) + partial_step(ask.problem, config)


def partial_step(problem: Problem, config: Config) -> float:
    """PARTIAL_STEP if the steps of a config do not divide K, else 0."""
    shape = tile(config)
    return PARTIAL_STEP if shape is not None and problem.k % shape.k else 0.0


def calibrated(ask: Ask) -> bool:
    """Whether the bounds were calibrated on the arch and the op of the query."""
    return ask.device.capability in CAPABILITIES and ask.problem.op in NEAR
