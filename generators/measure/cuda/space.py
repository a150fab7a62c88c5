"""Candidates on an NVIDIA GPU: ATen, then what the kernels' menus offer."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from gemmdb.generators.effort import Effort
from gemmdb.generators.interfaces.backend import Candidate
from gemmdb.generators.measure.cuda.likely import likely
from gemmdb.kernels import rules
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.menus import cutlass as cutlass_menu
from gemmdb.kernels.menus import inductor as inductor_menu
from gemmdb.kernels.menus.batch import MENU as BATCH
from gemmdb.kernels.menus.gemv import MENU as GEMV
from gemmdb.kernels.menus.grouped import MENU as GROUPED
from gemmdb.kernels.menus.int4 import MENU as INT4
from gemmdb.kernels.menus.int4_skinny import MENU as INT4_SKINNY
from gemmdb.kernels.menus.narrow import MENU as NARROW
from gemmdb.kernels.menus.persistent import MENU as PERSISTENT
from gemmdb.kernels.menus.scaled_blocks import MENU as SCALED_BLOCKS
from gemmdb.kernels.menus.shared import Menu
from gemmdb.kernels.menus.tile import MENU as TILE
from gemmdb.kernels.registry import KERNELS
from gemmdb.key import representatives
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

MENUS: Mapping[str, Menu] = {
    "gemv": GEMV, "int4_skinny": INT4_SKINNY, "int4": INT4, "narrow": NARROW, "persistent": PERSISTENT, "tile": TILE,
    "grouped": GROUPED, "batch": BATCH, "scaled_blocks": SCALED_BLOCKS,
}  # fmt: skip
"""What is tried of each of our Triton kernels, in this order."""
DEQUANTISED_INT4 = Config.of("aten", "dequantised")
BEYOND = 300
"""Configs of the whole space that breadth 2 tries after the menu."""


@dataclass(frozen=True)
class CudaSpace:
    """The space of a GPU. `breadth` 0 tries the likely configs of the menu (`likely`). 1 also tries Inductor's own
    templates, which every breadth tries if the menu is empty. 2 tries the whole menu and a sample of the rest of the
    space.

    `cutlass`: from breadth 1 on, also try the menu of our CUTLASS kernel; for machines that can compile it.
    """

    cutlass: bool = True

    def candidates(self, problem: Problem, device: Device, effort: Effort) -> Sequence[Candidate]:
        """ATen, then legal configs only: illegal configs of a product space tell nothing. If there is nothing to
        multiply, ATen alone. If torch cannot multiply these operands in a graph, or no epilogue of this class is
        measured, ATen alone, as illegal."""
        own = problem.int4
        rejected = rules.reject_fp8(problem, device) or rules.reject_uncapturable(problem, device)
        rejected = rejected or representatives.rejection(problem)
        rejected = rejected or (None if own is None else own.rejection(problem.n, problem.k))
        if rejected:
            return [Candidate(ATEN, rejected.reason)]
        if problem.empty:
            return [Candidate(ATEN)]
        whole = from_menu(problem, device)
        tried = likely(whole, problem, device) if effort.breadth < 2 else whole
        fewer = len(tried) < len(whole)
        ours = [Candidate(config, estimated=fewer) for config in tried]
        others = self._others(problem, device, effort) if effort.breadth or not whole else []
        beyond = _beyond(problem, device, {*tried, *others}) if effort.breadth == 2 else []
        return [Candidate(ATEN), *ours, *map(Candidate, [*others, *beyond])]

    def _others(self, problem: Problem, device: Device, effort: Effort) -> list[Config]:
        if problem.int4 is not None:
            return _legal([DEQUANTISED_INT4], problem, device)
        takes = self.cutlass and problem.op in KERNELS["cutlass", "gemm"].ops
        ours = cutlass_menu.configs(problem, device, effort.breadth == 2) if takes else []
        return [*ours, *inductor_menu.configs(problem, device)]


def _beyond(problem: Problem, device: Device, known: Collection[Config]) -> list[Config]:
    return list(islice((config for config in everything(problem, device) if config not in known), BEYOND))


def from_menu(problem: Problem, device: Device) -> list[Config]:
    """The legal configs of the menus for a problem, in their order; none for an op that no kernel of ours solves."""
    found = dict.fromkeys(config for menu in _menus(problem) for config in menu.usual(problem, device))
    return _legal(found, problem, device)


def everything(problem: Problem, device: Device) -> list[Config]:
    """All legal configs of the product space, in a fixed order that favours none; none for an op that no kernel of ours
    solves."""
    found = dict.fromkeys(config for menu in _menus(problem) for config in menu.whole(problem, device))
    legal = _legal(found, problem, device)
    return sorted(legal, key=lambda config: hashlib.sha256(config.text.encode()).digest())


def _menus(problem: Problem) -> list[Menu]:
    wanted = problem.int4 is not None
    kernels = {name: KERNELS["triton", name] for name in MENUS}
    return [MENUS[name] for name, one in kernels.items() if problem.op in one.ops and one.int4 == wanted]


def _legal(configs: Iterable[Config], problem: Problem, device: Device) -> list[Config]:
    return [config for config in configs if not config.rejection(problem, device)]
