"""What to measure for a problem that the cost model does not cover: configs that were the best on similar problems.

Similar problems have the same kind. A kind is wider than the family that rung `near` uses, because live tuning measures
these configs before it serves them: it mixes dtypes of one size, orders and biases, and reaches farther in size.
Configs are chosen greedily: each next one improves most on those before it, weighted by how similar the problems are.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest

from gemmdb.cost.candidates import MENU_OF
from gemmdb.cost.transfer import ATEN_GROUP, ConfigGroup, members
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.distance import metric, same_side
from gemmdb.lookup.model import uncovered
from gemmdb.lookup.neighbours import unfit
from gemmdb.lookup.policy_filter import objection
from gemmdb.lookup.timings import Timings, timings_of
from gemmdb.lookup.unmodelled import kind
from gemmdb.table.reader import Table

MOST = 16
"""The most similar problems that are used."""
NEAREST_KINDS = 32
"""The most families of the kind that are searched, the most similar first."""
BEST = 12
"""How many of its fastest groups of configs each problem contributes."""
LOOKED_AT = 8 * BEST
"""How many of its fastest groups are checked for being servable here."""
NAMED = 8
"""The most groups that are returned."""
UNLIKE = 0.25
"""A difference in dtype, order or bias counts as this many doublings of size."""
WIDTH = 2.5
"""Distance in doublings at which a problem has the weight exp(-1/2). WIDTH, MOST, BEST and UNLIKE are the values that
found the most on 383 measured problems with their (N, K) held out."""


@dataclass(frozen=True)
class _Measured:
    """A measured problem: its weight, its fastest groups with how far each is behind the best (in logarithms), and how
    far ATen is behind."""

    weight: float
    behind: Mapping[ConfigGroup, float]
    aten: float


def similar(ask: Ask) -> list[Config]:
    """Configs other than ATen that may be served, those that did best on similar problems first; empty if no table has
    any."""
    if ask.problem.empty or ask.problem.op not in MENU_OF:
        return []
    found = [(distance, here) for distance, here in _timings(ask) if here.steady_aten]
    unsafe = {one for _, here in found for one in here.unsafe}
    known = {one for _, here in found for one in _fastest(here) if one not in unsafe}
    banned = unfit(ask)
    fitted = {one: configs for one in known if (configs := _fitted(ask, one, banned))}
    measured = [_measured(distance, here, fitted) for distance, here in found]
    return [config for one in _first(measured) for config in fitted[one]]


def _fitted(ask: Ask, one: ConfigGroup, banned: Collection[Config]) -> list[Config]:
    """The configs of a group that may be served here, larger splits of K first: rows are read element by element, so
    kernels wait longest for memory."""
    configs = [member.config for member in members(one, ask.problem, ask.device)][::-1]
    return [c for c in configs if c != ATEN and c not in banned and objection(ask, c) is None]


def _timings(ask: Ask) -> Iterator[tuple[float, Timings]]:
    """The timings of the nearest problems of the kind, with their distances."""
    apart = metric(ask.device.kind).apart
    places: list[tuple[float, str, Table, Problem]] = []
    for table in ask.tables:
        examples = [(_differences(one, ask.problem), one) for one in ask.read(Table.families, table) or ()
                    if MENU_OF.get(one.op) == MENU_OF[ask.problem.op]
                    and uncovered(one) and kind(one) == kind(ask.problem)]  # fmt: skip
        for unlike, example in nsmallest(NEAREST_KINDS, examples, key=lambda pair: (pair[0], pair[1].text)):
            here = example.resized(ask.problem.m, ask.problem.n, ask.problem.k)
            for one in ask.read(Table.neighbours, table, here, ask.device, ask.query.l2, MOST) or []:
                if same_side(ask.problem, one) and one.text != ask.problem.text:
                    places.append((apart(ask.problem, one) + UNLIKE * unlike, one.text, table, one))
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
    aten = here.groups[ATEN_GROUP].behind
    usable = ((timed.behind, one.config.text, one) for one, timed in here.groups.items() if one in fitted)
    behind = {one: value for value, _, one in nsmallest(BEST, usable, key=lambda place: place[:2])}
    return _Measured(math.exp(-((distance / WIDTH) ** 2) / 2), behind, aten)


def _first(measured: list[_Measured]) -> list[ConfigGroup]:
    """The groups in greedy order. Each next one lowers most the weighted sum of how far the best of ATen and the groups
    before it is behind."""
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
