"""What the neighbours of a problem say about one config, each by itself: how favourable the least favourable is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gemmdb.cost.transfer import ConfigGroup
from gemmdb.kernels.config import Config
from gemmdb.lookup.timings import Timings
from gemmdb.table.record import STEP


class Support(NamedTuple):
    """What the neighbours say about a config, one by one, as logarithms of its time relative to ATen. `timed`: how many
    timed it. `worst`: the largest that one of them alone predicts. `slowest`: the largest that one measured."""

    timed: int = 0
    worst: float = -math.inf
    slowest: float = -math.inf


@dataclass(frozen=True, slots=True)
class Supports(Mapping[Config, Support]):
    """The Support of each predicted config, made when it is asked for: a lookup asks about the few that it may serve.

    `around`: the neighbours. `origins`: the group that each config was predicted by, and the logarithm of its expected
    time at the problem; `aten`: that of ATen."""

    around: Sequence[Timings]
    origins: Mapping[Config, tuple[ConfigGroup, float]]
    aten: float

    def __getitem__(self, config: Config) -> Support:
        key, expected = self.origins[config]
        timed, worst, slowest = 0, -math.inf, -math.inf
        for one in self.around:
            if key in one.codes:
                value, code, _ = one.codes[key]
                timed += 1
                worst = max(worst, (value - one.least) * STEP - one.aten.excess)
                slowest = max(slowest, (code - one.fastest) * STEP - one.aten.behind)
        return Support(timed, worst + expected - self.aten, slowest)

    def __iter__(self) -> Iterator[Config]:
        return iter(self.origins)

    def __len__(self) -> int:
        return len(self.origins)
