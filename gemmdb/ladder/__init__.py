"""The lookup ladder: one function per rung, asked in order, each of which may decline.

Pure: what an answer depends on is in the arguments and the tables. Nothing is timed and nothing is written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from importlib import import_module

from gemmdb.hit import RUNGS, Hit
from gemmdb.key.problem import Query
from gemmdb.key.toolchain import Toolchain
from gemmdb.ladder.ask import Ask, Step
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog

__all__ = ["Step", "explain", "lookup"]


def lookup(query: Query, catalog: Catalog, policy: Policy, toolchain: Toolchain | None = None) -> Hit | None:
    """The first rung's answer, None when all decline. `toolchain` is the one that will run the answer.

    A broken table is left out with one warning; under `on_miss="error"` it raises TableError. Raises InputError for
    ranges that make no sense.
    """
    return next((step.hit for step in _steps(query, catalog, policy, toolchain) if step.hit), None)


def explain(query: Query, catalog: Catalog, policy: Policy, toolchain: Toolchain | None = None) -> list[Step]:
    """What every rung says and why, the ones below the answer too; raises what `lookup` raises."""
    ask = Ask(query, catalog.tables, policy, toolchain)
    steps = [_rung(name)(ask) for name in RUNGS]
    return [_ranged()(ask), *steps] if ask.symbolic else steps


def _steps(query: Query, catalog: Catalog, policy: Policy, toolchain: Toolchain | None) -> Iterator[Step]:
    ask = Ask(query, catalog.tables, policy, toolchain)
    if ask.symbolic:
        yield _ranged()(ask)
    else:
        yield from (_rung(name)(ask) for name in RUNGS)


@functools.cache
def _rung(name: str) -> Callable[[Ask], Step]:
    """The rung that the module of its name holds. Loaded when it is first asked: an exact hit needs no cost model, and
    loading that takes a third of the time of all the others."""
    rung: Callable[[Ask], Step] = getattr(import_module(f"{__name__}.{name}"), name)
    return rung


def _ranged() -> Callable[[Ask], Step]:
    from gemmdb.ladder.ranges import ranged

    return ranged
