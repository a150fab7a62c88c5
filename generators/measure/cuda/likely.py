"""Which of the menu's configs are worth compiling for a problem: the cost model's order, corrected by its trees, where
they know the problem.

Of 529 problems that were measured with the whole menu on an H200, the best of the 16 that the trees expect to be the
fastest, fitted without the problem's (N, K), and of what the other backends offer, was within 0.07% of the best of all
(mean; 2% of the problems lost more than 1%); with 12 of them within 0.17%, and with 24 by the cost model alone 0.09%.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gemmdb.cost.machine import machine
from gemmdb.cost.model import FITTED
from gemmdb.cost.trees import Corrected
from gemmdb.cost.work import Setting, Tile, tile_of
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.ladder.model import uncovered

MOST = 16
"""How many configs are tried where the trees know the problem."""
UNCORRECTED = 24
"""How many where the cost model does, on an arch that no trees were fitted on."""
LOOKED_AT = 40
"""How many the trees are asked about, a tenth of a millisecond each: those that the cost model expects to be the
fastest."""
ALWAYS = ("gemv",)
"""Kernels that are few, and that the model misjudges by up to a tenth."""


def likely(configs: Sequence[Config], problem: Problem, device: Device) -> list[Config]:
    """The configs that are expected to be the fastest, and those that nothing is known about, in the given order; all
    of them where the model knows the problem or the device too little."""
    known = machine(device)
    if known is None or len(configs) <= MOST or uncovered(problem):
        return list(configs)
    found = {config: tile_of(config) for config in configs if config.kernel not in ALWAYS}
    tiles = {config: tile for config, tile in found.items() if tile is not None}
    first = set(_first(tiles, Setting.of(problem, known)))
    return [config for config in configs if config in first or config not in tiles]


def _first(tiles: Mapping[Config, Tile], setting: Setting) -> list[Config]:
    expected = dict(zip(tiles, FITTED.each(setting, tiles.values()), strict=True))
    order = sorted(tiles, key=lambda config: expected[config][0])
    corrected = Corrected.of(setting)
    if corrected is None:
        return order[:UNCORRECTED]
    first = ((config, *expected[config]) for config in order[:LOOKED_AT])
    us = {config: corrected.of_work(tiles[config], w, us) for config, us, w in first}
    return sorted(us, key=us.__getitem__)[:MOST]
