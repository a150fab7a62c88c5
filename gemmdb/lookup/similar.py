"""Configs to benchmark for a problem that the cost model does not cover: the best configs on similar problems, and
shipped menus of configs that were often the best for their kind.

Similar problems have the same kind. A kind is broader than the family that rung `near` uses, because live tuning
measures these configs before serving them: it mixes dtypes of one size, orders and biases, and covers more distant
sizes. Configs are chosen greedily: each one improves most on those before it, weighted by problem similarity.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import NamedTuple

from gemmdb.cost.candidates import MENU_OF
from gemmdb.cost.data import CAPABILITIES, rest
from gemmdb.cost.machine import machine
from gemmdb.cost.transfer import ConfigGroup, members
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.menus.batch import SCALED_BLOCKS
from gemmdb.kernels.menus.grouped import MENU as GROUPED
from gemmdb.kernels.menus.groupwise import GROUPWISE
from gemmdb.kernels.menus.int4 import INT4, INT4_SKINNY, skinny_mostly_fastest
from gemmdb.key.problem import Problem
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.neighbours import metric, same_side, unfit
from gemmdb.lookup.ranking import uncovered
from gemmdb.lookup.timings import Timings, timings_of
from gemmdb.table.reader import Table
from gemmdb.table.record import STEP

MOST_INT4_CONFIGS = 6
"""Maximum number of configs for a weight with groups. Live tuning measures four."""
MOST_PROBLEMS = 16
"""Maximum number of similar problems."""
MOST_FAMILIES = 32
"""Maximum number of families of the kind to search, most similar first."""
GROUPS_PER_PROBLEM = 12
"""Number of fastest config groups that each problem contributes."""
CHECKED_GROUPS = 8 * GROUPS_PER_PROBLEM
"""Number of its fastest groups checked for servable configs."""
MOST_GROUPS = 8
"""Maximum number of groups to return."""
TRAIT_DISTANCE = 0.25
"""Distance in doublings for each difference in dtype, order or bias."""
DISTANCE_SCALE = 2.5
"""Distance in doublings at which a problem has the weight exp(-1/2). This, MOST_PROBLEMS, GROUPS_PER_PROBLEM and
TRAIT_DISTANCE gave the largest savings on 383 measured problems with their (N, K) held out."""


class _Measured(NamedTuple):
    """A measured problem: its weight, its fastest groups with their log distance behind the best, and ATen's log
    distance."""

    weight: float
    behind: Mapping[ConfigGroup, float]
    aten: float


def kind(problem: Problem) -> str:
    """Return the kind of an uncovered problem: its menu, with the multiplication mode for fp32, the packing for int4
    weights, else "unaligned"."""
    if problem.int4 is not None:
        return f"{MENU_OF[problem.op]} {problem.int4.packing}"
    how = problem.numerics.fp32 if problem.a.dtype == "fp32" else "unaligned"
    return f"{MENU_OF[problem.op]} {how}"


def similar(ask: Ask) -> list[Config]:
    """Return servable configs other than ATen, best on similar problems first; empty if no table has any."""
    if ask.problem.empty or ask.problem.op not in MENU_OF:
        return []
    found = [(distance, here) for distance, here in _timings(ask) if here.steady_aten]
    unsafe = {one for _, here in found for one in here.unsafe}
    known = {one for _, here in found for one in _fastest(here, CHECKED_GROUPS, here.codes) if one not in unsafe}
    banned = unfit(ask)
    fitted = {one: configs for one in known if (configs := _fitted(ask, one, banned))}
    measured = []
    for distance, here in found:
        weight = math.exp(-((distance / DISTANCE_SCALE) ** 2) / 2)
        measured.append(_Measured(weight, _fastest(here, GROUPS_PER_PROBLEM, fitted), here.aten[1]))
    return [config for one in _first(measured) for config in fitted[one]]


def _fitted(ask: Ask, one: ConfigGroup, banned: Collection[Config]) -> list[Config]:
    """Return the servable configs of a group, larger splits of K first: rows are loaded element by element, so kernels
    are memory-latency bound."""
    configs = [member.config for member in members(one, ask.problem, ask.device)][::-1]
    return [c for c in configs if c != ATEN and c not in banned and ask.rejection(c) is None]


def _timings(ask: Ask) -> Iterator[tuple[float, Timings]]:
    """Yield the timings of the nearest problems of the same kind, with their distances."""
    apart = metric(ask.device.kind).apart
    places: list[tuple[float, str, Table, Problem]] = []
    for table in ask.tables:
        examples = [(_differences(one, ask.problem), one) for one in ask.read(Table.families, table) or ()
                    if MENU_OF.get(one.op) == MENU_OF[ask.problem.op]
                    and uncovered(one) and kind(one) == kind(ask.problem)]  # fmt: skip
        for unlike, example in nsmallest(MOST_FAMILIES, examples, key=lambda pair: (pair[0], pair[1].text)):
            here = example.resized(ask.problem.m, ask.problem.n, ask.problem.k)
            for one in ask.read(Table.neighbours, table, here, ask.device, ask.query.l2, MOST_PROBLEMS) or []:
                if same_side(ask.problem, one) and one.text != ask.problem.text:
                    places.append((apart(ask.problem, one) + TRAIT_DISTANCE * unlike, one.text, table, one))
    for distance, _, table, problem in nsmallest(MOST_PROBLEMS, places, key=lambda place: place[:2]):
        here_known = timings_of(ask, table, problem)
        if here_known is not None:
            yield distance, here_known


def _differences(one: Problem, other: Problem) -> int:
    def traits(problem: Problem) -> tuple[object, ...]:
        a, b = problem.a, problem.b
        return a.dtype, b.dtype, a.layout.order, b.layout.order, problem.bias is None

    return sum(x != y for x, y in zip(traits(one), traits(other), strict=True))


def _fastest(here: Timings, count: int, among: Collection[ConfigGroup]) -> dict[ConfigGroup, float]:
    """Return the `count` fastest groups in `among` with their log distance behind the best."""
    ranked = nsmallest(count, [(behind * STEP, one.config.text, one) for behind, one in here.behind if one in among],
                       key=lambda place: place[:2])  # fmt: skip
    return {one: behind for behind, _, one in ranked}


def _first(measured: list[_Measured]) -> list[ConfigGroup]:
    """Return the groups in greedy order. Each one lowers most the weighted sum of log distances of the best among ATen
    and the groups chosen so far."""
    now = [one.aten for one in measured]
    chosen: dict[ConfigGroup, None] = {}
    while len(chosen) < MOST_GROUPS:
        gains: dict[ConfigGroup, float] = defaultdict(float)
        for one, least in zip(measured, now, strict=True):
            for name, behind in one.behind.items():
                if name not in chosen:
                    gains[name] += one.weight * max(least - behind, 0.0)
        best = max(gains, key=lambda name: (gains[name], name.config.text), default=None)
        if best is None or gains[best] <= 0:
            break
        chosen[best] = None
        now = [min(least, one.behind.get(best, least)) for one, least in zip(measured, now, strict=True)]
    return list(chosen)


def usual(ask: Ask) -> list[Config]:
    """Return the configs that were most often the best on measured problems of the kind; for grouped GEMMs and scales
    of blocks those of the menu. For weights with groups, the top configs of the skinny menu where these are mostly the
    fastest, an even sample of the main menu, and ATen's GEMM with a dequantised weight. Empty for an arch or a kind
    without measurements."""
    known = machine(ask.device)
    if ask.problem.int4 is not None:
        return _of_int4(ask) if known is not None and not ask.problem.empty else []
    if known is None or known.capability not in CAPABILITIES or ask.problem.empty:
        return []
    banned = unfit(ask)
    return [c for c in _menu(ask) if c != ATEN and c not in banned and ask.rejection(c) is None]


def _menu(ask: Ask) -> Iterable[Config]:
    if ask.problem.spec.grouped:
        return GROUPED.usual(ask.problem, ask.device)
    if ask.problem.scales == "block":
        return SCALED_BLOCKS.usual(ask.problem, ask.device)
    if ask.problem.op not in MENU_OF:
        return ()
    menus = rest().get(kind(ask.problem), {})
    return _configs(next((texts for limit, texts in menus.items() if ask.problem.m <= limit), ()))


def _of_int4(ask: Ask) -> list[Config]:
    banned = unfit(ask)

    def legal(menu: Iterable[Config]) -> list[Config]:
        return [one for one in dict.fromkeys(menu) if one not in banned and ask.rejection(one) is None]

    few = legal(INT4_SKINNY.usual(ask.problem, ask.device))[
        : MOST_INT4_CONFIGS // 2 if skinny_mostly_fastest(ask.problem) else 0
    ]
    menus = (menu.usual(ask.problem, ask.device) for menu in (INT4, GROUPWISE))
    others = legal((*itertools.chain(*menus), Config.of("aten", "dequantised")))
    return [*few, *others[:: -(-len(others) // (MOST_INT4_CONFIGS - len(few))) or 1]]


@functools.cache
def _configs(texts: Sequence[str]) -> tuple[Config, ...]:
    return tuple(Config.parse(text) for text in texts)
