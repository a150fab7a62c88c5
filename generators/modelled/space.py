"""Candidates of a modelled build, ranked by the cost model, for a GPU that this machine may lack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmdb.cost.candidates import choices, runs_on
from gemmdb.cost.machine import machine
from gemmdb.cost.model import FITTED
from gemmdb.cost.work import Setting, Tile, tile_of
from gemmdb.generators.measure.cuda.space import from_menu
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem


@dataclass(frozen=True)
class Ranked:
    """A candidate with its modelled microseconds."""

    config: Config
    tile: Tile
    us: float


def rank(problem: Problem, device: Device) -> list[Ranked]:
    """Return our kernels' candidates that are legal on the arch, fastest first by the model.

    Raises ValueError for a device without a Machine.
    """
    setting = setting_of(problem, device)
    found = {
        config: tile
        for config, tile in _candidates(setting, device)
        if config.spec.template is not None and runs_on(tile, setting.machine)
    }
    ranked = [Ranked(config, tile, FITTED.predict(setting, tile)) for config, tile in found.items()]
    return sorted(ranked, key=lambda one: (one.us, one.config.text))


def compiled(one: Ranked, setting: Setting, registers: int, shared: int) -> Ranked:
    """Return the candidate with its modelled time for the compiled kernel's registers and shared memory."""
    tile = one.tile._replace(registers=registers, shared=shared)
    return Ranked(one.config, tile, FITTED.predict(setting, tile))


def setting_of(problem: Problem, device: Device) -> Setting:
    """Return the problem on the device's machine. Raises ValueError without one."""
    found = machine(device)
    if found is None:
        raise ValueError(f"no figures of {device.sku}")
    return Setting.of(problem, found)


def _candidates(setting: Setting, device: Device) -> Iterator[tuple[Config, Tile]]:
    problem = setting.problem
    menus = [choice.config for choice in choices(setting)]
    for config in dict.fromkeys((*from_menu(problem, device), *menus)):
        tile = tile_of(config)
        if tile is not None and config.rejection(problem, device) is None:
            yield config, tile
