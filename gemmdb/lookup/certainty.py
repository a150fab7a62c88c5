"""How sure is it that a predicted config is faster than ATen? A bound of its time, calibrated on held-out problems.

A prediction is off by a few percent nearly always, and by a third sometimes. How far it may be off depends on what it
was made from: how many neighbours timed the config, what the least favourable of them says, how far away they are in M
and in N and K, whether ATen could be as fast as the roofline makes of its times nearby. Each of these FEATURES widens
the bound by its own weight. `benchmarks.offtable calibrate` fits the weights to problems, (N, K) pairs and classes of M
that were held out from measured tables, and adds what it takes for the bound to hold for all but a few of them.
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
from gemmdb.lookup.support import Support

FEATURES = ("untreed", "spread", "rows", "sides", "worst", "slowest", "unseen", "once", "library", "gemv")
"""`untreed`: no trees corrected the time; `spread`: the prediction's own standard deviation; `rows`, `sides`: doublings
of M, and of N and K, to the nearest neighbour in these; `worst`: how far the least favourable neighbour is above the
prediction; `slowest`: how much slower than ATen the config was at a neighbour; `unseen`, `once`: no neighbour timed the
config, or only one; `library`: how far ATen's expected time is above its times nearby, scaled by the roofline; `gemv`:
the kernel. Times and ratios are logarithms."""
CLOSEST = 3
"""How many neighbours `library` looks at."""
UNEVEN = 0.16
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
        return (*_gaps(self.ask.problem, self.prediction), _library(self.ask, self.prediction))

    def features(self, config: Config) -> tuple[float, ...]:
        """The FEATURES of a config other than ATen."""
        found, (rows, sides, library) = self.prediction, self.common
        log, spread, _ = found.estimates[config]
        support = found.support.get(config, Support())
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
        untreed, unseen, once = features[0], features[6], features[7]
        if untreed and (unseen or once):  # One neighbour alone may be off by a factor of two.
            return math.inf
        added: float = sum(map(mul, WEIGHTS, features))
        return log + NEAR[self.ask.problem.op] + added + uneven(self.ask.problem, config)


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
    return MODEL.get(ask.problem.op, math.inf) + uneven(ask.problem, config)


def uneven(problem: Problem, config: Config) -> float:
    """UNEVEN if the steps of a config do not divide K, else 0."""
    shape = tile(config)
    return UNEVEN if shape is not None and problem.k % shape.k else 0.0


def calibrated(ask: Ask) -> bool:
    """Whether the bounds were calibrated on the arch and the op of the question."""
    return ask.device.capability in CAPABILITIES and ask.problem.op in NEAR


def _gaps(problem: Problem, prediction: Prediction) -> tuple[float, float]:
    m, n, k = problem.doublings
    around = [one.problem.doublings for one in prediction.around]
    return min([abs(one[0] - m) for one in around]), min([math.hypot(one[1] - n, one[2] - k) for one in around])


def _library(ask: Ask, prediction: Prediction) -> float:
    here = roofline_us(ask.problem, ask.device) + LAUNCH_US
    least = min(one.aten_us / (one.roof_us + LAUNCH_US) for one in prediction.around[:CLOSEST]) * here
    return max(0.0, math.log(prediction.aten_us / least))
