"""What to measure for a problem that the cost model does not cover: what was the best on measured ones of its kind.

A kind is wider than the family that rung `near` keeps to, since what comes of this is measured before it is served:
dtypes of one size, orders and biases mix, and problems count that are farther away. Of the configs that were among the
best there those are taken first that add the most to the ones before, on the problems that are the most alike.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest

from gemmdb.cost.menu import MENU_OF
from gemmdb.cost.transfer import ConfigGroup, group_of, members
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.ladder.ask import Ask
from gemmdb.ladder.exact import barred
from gemmdb.ladder.model import uncovered
from gemmdb.ladder.near import distances, same_side
from gemmdb.ladder.policy_filter import objection
from gemmdb.ladder.timings import Timings, timings_of
from gemmdb.ladder.unmodelled import kind
from gemmdb.table.reader import Table

MOST = 16
"""Problems that are asked."""
NEAREST_KINDS = 32
"""Families of problems of the kind that are looked through, the most alike."""
BEST = 12
"""Groups of configs that each of them names: its fastest."""
LOOKED_AT = 8 * BEST
"""Of how many, its fastest, it is found out which may be served here."""
NAMED = 8
"""Groups that are returned."""
UNLIKE = 0.25
"""Doublings of size that a difference in dtype, order or bias counts like."""
WIDTH = 2.5
"""Doublings at which a problem counts exp(-1/2). With MOST, BEST and UNLIKE it is what found the most on 383 measured
problems without their (N, K)."""


@dataclass(frozen=True)
class _Measured:
    """A measured problem: how much it counts, its fastest groups by how far they are behind the best, in logarithms,
    and how far ATen is."""

    weight: float
    behind: Mapping[ConfigGroup, float]
    aten: float


def similar(ask: Ask) -> list[Config]:
    """Configs other than ATen that may be served, those first that found the most on problems of the same kind; none
    where no table has any."""
    if ask.problem.empty or ask.problem.op not in MENU_OF:
        return []
    found = [(distance, here) for distance, here in _timings(ask) if here.knows(ATEN)]
    unsafe = {one for _, here in found for one in here.unsafe}
    known = {one for _, here in found for one in _fastest(here) if one not in unsafe}
    banned = barred(ask)
    fitted = {one: configs for one in known if (configs := _fitted(ask, one, banned))}
    measured = [_measured(distance, here, fitted) for distance, here in found]
    return [config for one in _first(measured) for config in fitted[one]]


def _fitted(ask: Ask, one: ConfigGroup, banned: Collection[Config]) -> list[Config]:
    """The configs of a group that may be served here. Of the splits of K first the larger: rows are read element by
    element, and wait the longest."""
    configs = list(members(one, ask.problem, ask.device))[::-1]
    return [c for c in configs if c != ATEN and c not in banned and objection(ask, c) is None]


def _timings(ask: Ask) -> Iterator[tuple[float, Timings]]:
    """What is known of the nearest problems of the kind, and their distances."""
    apart = distances(ask.problem, ask.device.kind)
    places: list[tuple[float, str, Table, Problem]] = []
    for table in ask.tables:
        examples = [(_differences(one, ask.problem), one) for one in ask.read(Table.families, table) or ()
                    if MENU_OF.get(one.op) == MENU_OF[ask.problem.op]
                    and uncovered(one) and kind(one) == kind(ask.problem)]  # fmt: skip
        for unlike, example in nsmallest(NEAREST_KINDS, examples, key=lambda pair: (pair[0], pair[1].text)):
            here = example.resized(ask.problem.m, ask.problem.n, ask.problem.k)
            for one in ask.read(Table.neighbours, table, here, ask.device, ask.query.l2, MOST) or []:
                if same_side(ask.problem, one) and one.text != ask.problem.text:
                    places.append((apart(one) + UNLIKE * unlike, one.text, table, one))
    for distance, _, table, problem in nsmallest(MOST, places, key=lambda place: place[:2]):
        here_known = timings_of(ask, table, problem)
        if here_known is not None:
            yield distance, here_known


def _differences(one: Problem, other: Problem) -> int:
    def traits(problem: Problem) -> tuple[object, ...]:
        a, b = problem.a, problem.b
        return a.dtype, b.dtype, a.layout.order, b.layout.order, problem.bias is None

    return sum(x != y for x, y in zip(traits(one), traits(other), strict=True))


def _fastest(here: Timings) -> list[ConfigGroup]:
    ranked = nsmallest(LOOKED_AT, ((timed.behind, one.config.text, one) for one, timed in here.groups.items()),
                       key=lambda place: place[:2])  # fmt: skip
    return [one for _, _, one in ranked]


def _measured(distance: float, here: Timings, fitted: Collection[ConfigGroup]) -> _Measured:
    aten = here.groups[group_of(ATEN, here.problem, here.device)].behind
    usable = ((timed.behind, one.config.text, one) for one, timed in here.groups.items() if one in fitted)
    behind = {one: value for value, _, one in nsmallest(BEST, usable, key=lambda place: place[:2])}
    return _Measured(math.exp(-((distance / WIDTH) ** 2) / 2), behind, aten)


def _first(measured: list[_Measured]) -> list[ConfigGroup]:
    """The groups, each the one that lowers the weighted sum of what is behind the most, beside ATen and those before
    it."""
    now = [one.aten for one in measured]
    chosen: dict[ConfigGroup, None] = {}
    while len(chosen) < NAMED:
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
