"""Problems that the cost model does not cover: the shipped menus of configs that were often the best on their kind, and
for products of groups the first of the menu that a build tries."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from gemmdb.cost.candidates import MENU_OF
from gemmdb.cost.data import CAPABILITIES, rest
from gemmdb.cost.machine import machine
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.menus.grouped import MENU as GROUPED
from gemmdb.kernels.menus.int4 import MENU as INT4_MENU
from gemmdb.kernels.menus.int4_skinny import MENU as INT4_SKINNY_MENU
from gemmdb.kernels.menus.int4_skinny import mostly_fastest
from gemmdb.key.problem import Problem
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.neighbours import unfit
from gemmdb.lookup.policy_filter import objection

INT4 = 6
"""The most configs for an int4 weight. Live tuning measures four."""


def kind(problem: Problem) -> str:
    """The kind of an uncovered problem: its menu, with the multiplication mode for fp32, the packing of int4 weights,
    else "unaligned"."""
    if problem.int4 is not None:
        return f"{MENU_OF[problem.op]} {problem.int4.packing}"
    how = problem.numerics.fp32 if problem.a.dtype == "fp32" else "unaligned"
    return f"{MENU_OF[problem.op]} {how}"


def usual(ask: Ask) -> list[Config]:
    """The configs that were the best on measured problems of the kind, the most frequent first; for products of groups
    those of the menu. For int4 weights, the first of the menu for a few rows where these are mostly the fastest, some
    of the menu for all, evenly spread, and ATen's product of a dequantised weight. Empty for an arch or a kind without
    measurements."""
    known = machine(ask.device)
    if ask.problem.int4 is not None:
        return _of_int4(ask) if known is not None and not ask.problem.empty else []
    if known is None or known.capability not in CAPABILITIES or ask.problem.empty:
        return []
    banned = unfit(ask)
    return [c for c in _menu(ask) if c != ATEN and c not in banned and objection(ask, c) is None]


def _menu(ask: Ask) -> Iterable[Config]:
    if ask.problem.spec.grouped:
        return GROUPED.usual(ask.problem, ask.device)
    if ask.problem.op not in MENU_OF:
        return ()
    menus = rest().get(kind(ask.problem), {})
    return _configs(next((texts for limit, texts in menus.items() if ask.problem.m <= limit), ()))


def _of_int4(ask: Ask) -> list[Config]:
    banned = unfit(ask)

    def legal(menu: Iterable[Config]) -> list[Config]:
        return [one for one in dict.fromkeys(menu) if one not in banned and objection(ask, one) is None]

    few = legal(INT4_SKINNY_MENU.usual(ask.problem, ask.device))[: INT4 // 2 if mostly_fastest(ask.problem) else 0]
    rest = legal((*INT4_MENU.usual(ask.problem, ask.device), Config.of("aten", "dequantised")))
    return [*few, *rest[:: -(-len(rest) // (INT4 - len(few))) or 1]]


@functools.cache
def _configs(texts: Sequence[str]) -> tuple[Config, ...]:
    return tuple(Config.parse(text) for text in texts)
