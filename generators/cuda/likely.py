"""Which of the menu's configs are worth compiling for a problem: the cost model's order, where it knows the problem.

Of 353 problems that were measured with the whole menu on an H200, the best of the 24 that the model expects to be the
fastest, and of what the other backends offer, was within 0.1% of the best of all (geometric mean; 5th percentile 0.7%).
"""

from __future__ import annotations

from collections.abc import Sequence

from gemmdb.config import Config
from gemmdb.device import Device
from gemmdb.ladder.model import uncovered
from gemmdb.ladder.model_cost import FITTED
from gemmdb.ladder.model_machine import machine
from gemmdb.ladder.model_work import Setting, tile_of
from gemmdb.problem import Problem

MOST = 24
"""How many configs are tried where the model knows the problem."""
ALWAYS = ("gemv",)
"""Kernels that are few, and that the model misjudges by up to a tenth."""


def likely(configs: Sequence[Config], problem: Problem, device: Device) -> list[Config]:
    """The configs that the model expects to be the fastest, MOST besides those it is not asked about, in the given
    order; all of them where the model knows the problem or the device too little."""
    known = machine(device)
    if known is None or len(configs) <= MOST or uncovered(problem):
        return list(configs)
    setting = Setting.of(problem, known)
    tiles = {config: tile_of(config) for config in configs if config.kernel not in ALWAYS}
    expected = {config: FITTED.predict(setting, tile) for config, tile in tiles.items() if tile is not None}
    out = set(sorted(expected, key=lambda config: expected[config])[MOST:])
    return [config for config in configs if config not in out]
