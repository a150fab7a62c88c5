"""Which of the menu's configs are worth compiling for a problem: the first in the cost model's order, with the tree
correction where the trees know the problem.

529 problems were measured with the whole menu on an H200. The trees, fitted without a problem's (N, K), picked 16
configs for it. The best of these and of the other backends' configs was within 0.07% of the best of all (mean; 2% of
the problems lost more than 1%). With 12 configs the mean loss is 0.17%, and with 24 by the cost model alone 0.09%.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gemmdb.cost.candidates import alike
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
"""How many are tried where only the cost model knows the problem: on an arch that no trees were fitted on."""
LOOKED_AT = 40
"""How many configs the trees predict, a tenth of a millisecond each: the fastest by the cost model."""
ALWAYS = ("gemv",)
"""Kernels with few configs, whose time the model mispredicts by up to a tenth."""


def likely(configs: Sequence[Config], problem: Problem, device: Device) -> list[Config]:
    """The configs that are predicted to be the fastest, and those without a prediction, in the given order. All configs
    if the model covers neither the problem nor one like it, or not the device."""
    known, modelled = machine(device), alike(problem)
    if known is None or len(configs) <= MOST or uncovered(modelled):
        return list(configs)
    found = {config: tile_of(config) for config in configs if config.kernel not in ALWAYS}
    tiles = {config: tile for config, tile in found.items() if tile is not None}
    first = set(_first(tiles, Setting.of(modelled, known)))
    return [config for config in configs if config in first or config not in tiles]


def _first(tiles: Mapping[Config, Tile], setting: Setting) -> list[Config]:
    expected = {config: FITTED.predict(setting, tile) for config, tile in tiles.items()}
    order = sorted(tiles, key=expected.__getitem__)
    corrected = Corrected.of(setting)
    if corrected is None:
        return order[:UNCORRECTED]
    us = {config: corrected.us(tiles[config]) for config in order[:LOOKED_AT]}
    return sorted(us, key=us.__getitem__)[:MOST]
