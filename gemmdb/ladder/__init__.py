"""The lookup ladder: one function per rung, asked in order, each of which may decline.

Pure: what an answer depends on is in the arguments and the tables. Nothing is timed and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gemmdb.catalog import Catalog
from gemmdb.hit import Hit
from gemmdb.ladder.ask import Ask, Step
from gemmdb.ladder.exact import exact
from gemmdb.ladder.model import model
from gemmdb.ladder.near import near
from gemmdb.ladder.ranges import ranged
from gemmdb.ladder.sku import sku
from gemmdb.problem import Query
from gemmdb.settings import Policy
from gemmdb.toolchain import Toolchain

__all__ = ["Step", "explain", "lookup"]

RUNGS: tuple[Callable[[Ask], Step], ...] = (exact, near, sku, model)
"""The rungs of a query with fixed sizes, in the order in which they are asked."""


def lookup(query: Query, catalog: Catalog, policy: Policy, toolchain: Toolchain | None = None) -> Hit | None:
    """The first rung's answer, None when all decline. `toolchain` is the one that will run the answer.

    A broken table is left out with one warning; under `on_miss="error"` it raises TableError. Raises InputError for
    ranges that make no sense.
    """
    return next((step.hit for step in _steps(query, catalog, policy, toolchain) if step.hit), None)


def explain(query: Query, catalog: Catalog, policy: Policy, toolchain: Toolchain | None = None) -> list[Step]:
    """What every rung says and why, the ones below the answer too; raises what `lookup` raises."""
    ask = Ask(query, catalog.tables, policy, toolchain)
    steps = [rung(ask) for rung in RUNGS]
    return [ranged(ask), *steps] if ask.symbolic else steps


def _steps(query: Query, catalog: Catalog, policy: Policy, toolchain: Toolchain | None) -> Iterator[Step]:
    ask = Ask(query, catalog.tables, policy, toolchain)
    for rung in (ranged,) if ask.symbolic else RUNGS:
        yield rung(ask)
