"""NVIDIA GPU candidates: ATen, then the menu configs that the cost model ranks highest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from gemmdb.cost.candidates import alike
from gemmdb.cost.machine import machine
from gemmdb.cost.model import FITTED
from gemmdb.cost.trees import Corrected
from gemmdb.cost.work import Setting, Tile, tile_of
from gemmdb.generators.backend import Candidate
from gemmdb.generators.effort import Effort
from gemmdb.kernels import rules
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.menus import cublaslt as cublaslt_menu
from gemmdb.kernels.menus import cutlass as cutlass_menu
from gemmdb.kernels.menus import inductor as inductor_menu
from gemmdb.kernels.menus.batch import BATCH, SCALED_BLOCKS
from gemmdb.kernels.menus.gemv import MENU as GEMV
from gemmdb.kernels.menus.grouped import MENU as GROUPED
from gemmdb.kernels.menus.groupwise import GROUPWISE
from gemmdb.kernels.menus.int4 import INT4, INT4_SKINNY
from gemmdb.kernels.menus.shared import Menu
from gemmdb.kernels.menus.tile import NARROW, PERSISTENT, TILE
from gemmdb.kernels.registry import KERNELS
from gemmdb.key import representatives
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.lookup.ranking import uncovered

MENUS: Mapping[str, Menu] = {
    "gemv": GEMV, "int4_skinny": INT4_SKINNY, "int4": INT4, "groupwise": GROUPWISE, "narrow": NARROW,
    "persistent": PERSISTENT, "tile": TILE, "grouped": GROUPED, "batch": BATCH, "scaled_blocks": SCALED_BLOCKS,
}  # fmt: skip
"""Candidate configs for each of our Triton kernels, in this order."""
DEQUANTISED_INT4 = Config.of("aten", "dequantised")
MAX_ALGORITHMS = 8
"""Number of cuBLASLt's algorithms from the menu that breadth 0 tries."""
MAX_SAMPLED = 300
"""Number of configs from the whole space that breadth 2 tries after the menu."""


@dataclass(frozen=True)
class CudaSpace:
    """GPU search space. `breadth` 0 tries the likely configs of the menu, and a few of cuBLASLt's algorithms. 1 tries
    more of these, and Inductor's own templates, which every breadth tries if the menu is empty, and, on machines that
    can compile it, the menu of our CUTLASS kernels. 2 tries the whole menus and a sample of the rest of the space."""

    cutlass: bool = True

    def candidates(self, problem: Problem, device: Device, effort: Effort) -> Sequence[Candidate]:
        """Return ATen, then legal configs only: illegal parameter combinations are not informative. If there is nothing
        to compute, ATen alone; the same, as illegal, if torch cannot run the GEMM of these operands in a graph, or no
        epilogue of this class is measured."""
        own = problem.int4
        rejected = rules.reject_fp8(problem, device) or rules.reject_uncapturable(problem, device)
        rejected = rejected or representatives.rejection(problem)
        rejected = rejected or (None if own is None else own.rejection(problem.n, problem.k))
        if rejected:
            return [Candidate(ATEN, rejected)]
        if problem.empty:
            return [Candidate(ATEN)]
        whole = from_menu(problem, device)
        tried = likely(whole, problem, device, effort.likely) if effort.breadth < 2 else whole
        ours = [Candidate(config, estimated=len(tried) < len(whole)) for config in tried]
        others = self._others(problem, device, effort) if effort.breadth or not whole else []
        others = [*_algorithms(problem, device, effort), *others]
        if effort.breadth == 2:
            known = {*tried, *others}
            rest = (config for config in everything(problem, device) if config not in known)
            others = [*others, *islice(rest, MAX_SAMPLED)]
        return [Candidate(ATEN), *ours, *map(Candidate, others)]

    def _others(self, problem: Problem, device: Device, effort: Effort) -> list[Config]:
        if problem.int4 is not None:
            ours = cutlass_menu.configs(problem, device) if self.cutlass else []
            return [*ours, *_legal([DEQUANTISED_INT4], problem, device)]
        ours = cutlass_menu.configs(problem, device, effort.breadth == 2) if self.cutlass else []
        return [*ours, *inductor_menu.configs(problem, device)]


def _algorithms(problem: Problem, device: Device, effort: Effort) -> list[Config]:
    if problem.op not in KERNELS["cublaslt", "matmul"].ops:
        return []  # Ranking them takes milliseconds.
    found = _legal(cublaslt_menu.configs(problem, device), problem, device)
    return found if effort.breadth else found[:MAX_ALGORITHMS]


def from_menu(problem: Problem, device: Device) -> list[Config]:
    """Return the legal menu configs for a problem, in menu order; none for an op that none of our kernels solves."""
    return _legal((config for menu in _menus(problem) for config in menu.usual(problem, device)), problem, device)


def everything(problem: Problem, device: Device) -> list[Config]:
    """Return all legal parameter combinations, in a fixed neutral order; none for an op that none of our kernels
    solves."""
    legal = _legal((config for menu in _menus(problem) for config in menu.whole(problem, device)), problem, device)
    return sorted(legal, key=lambda config: hashlib.sha256(config.text.encode()).digest())


def _menus(problem: Problem) -> list[Menu]:
    kernels = ((KERNELS["triton", name], menu) for name, menu in MENUS.items())
    return [menu for one, menu in kernels if problem.op in one.ops and one.int4 == (problem.int4 is not None)]


def _legal(configs: Iterable[Config], problem: Problem, device: Device) -> list[Config]:
    return [config for config in dict.fromkeys(configs) if not config.rejection(problem, device)]


MAX_CONFIGS = 16
"""Number of configs to try if the trees cover the problem."""
MAX_UNCORRECTED = 24
"""Number of configs to try if only the cost model covers the problem: on an arch outside the trees' data."""
MAX_CORRECTED = 40
"""Number of configs that the trees predict, a tenth of a millisecond each: the fastest by the cost model."""
ALWAYS_TRIED = ("gemv",)
"""Kernels with few configs, whose time the model mispredicts by up to a tenth."""


def likely(configs: Sequence[Config], problem: Problem, device: Device, most: int | None = None) -> list[Config]:
    """Return the configs predicted to be the fastest, at most `most`, and those without a prediction, in the given
    order. Returns all configs if the model covers neither the problem nor a similar one, or not the device."""
    known, modelled = machine(device), alike(problem)
    if known is None or len(configs) <= (most or MAX_CONFIGS) or uncovered(modelled):
        return list(configs)
    found = {config: tile_of(config) for config in configs if config.kernel not in ALWAYS_TRIED}
    tiles = {config: tile for config, tile in found.items() if tile is not None}
    first = set(_fastest(tiles, Setting.of(modelled, known))[:most])
    return [config for config in configs if config in first or config not in tiles]


def _fastest(tiles: Mapping[Config, Tile], setting: Setting) -> list[Config]:
    expected = {config: FITTED.predict(setting, tile) for config, tile in tiles.items()}
    order = sorted(tiles, key=expected.__getitem__)
    corrected = Corrected.of(setting)
    if corrected is None:
        return order[:MAX_UNCORRECTED]
    us = {config: corrected.us(tiles[config]) for config in order[:MAX_CORRECTED]}
    return sorted(us, key=us.__getitem__)[:MAX_CONFIGS]
