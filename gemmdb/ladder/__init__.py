"""The lookup ladder: one function per rung, asked in order, each of which may decline.

Pure: an answer depends on the arguments and the tables only. Nothing is timed and nothing is written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from gemmdb.hit import RUNGS, Hit
from gemmdb.key.problem import Query
from gemmdb.key.toolchain import Toolchain
from gemmdb.ladder.ask import Ask, Exclude, Step
from gemmdb.ladder.excluding import answered
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog

__all__ = ["Exclude", "Step", "explain", "lookup"]

Rung = Callable[[Ask], Step]


def lookup(
    query: Query, catalog: Catalog, policy: Policy, toolchain: Toolchain | None = None, excluded: Exclude | None = None
) -> Hit | None:
    """The first rung's answer, None when all decline. `toolchain` is the one that will run the answer. `excluded` says
    why the caller cannot carry out a config; the next best is served then, and `left_out` in the evidence says why.

    A broken table is left out with one warning; under `on_miss="error"` it raises TableError. Raises InputError for
    ranges that make no sense.
    """
    ask = Ask(query, catalog.tables, policy, toolchain, excluded)
    return next((step.hit for step in _steps(ask) if step.hit), None)


def explain(
    query: Query, catalog: Catalog, policy: Policy, toolchain: Toolchain | None = None, excluded: Exclude | None = None
) -> list[Step]:
    """What every rung says and why, the ones below the answer too; raises what `lookup` raises."""
    ask = Ask(query, catalog.tables, policy, toolchain, excluded)
    steps = [answered(_RUNG[name](), ask) for name in RUNGS]
    return [answered(_ranged(), ask), *steps] if ask.symbolic else steps


def _steps(ask: Ask) -> Iterator[Step]:
    if ask.symbolic:
        yield answered(_ranged(), ask)
    else:
        yield from (answered(_RUNG[name](), ask) for name in RUNGS)


# A rung is imported when it is first asked: an exact hit needs no cost model, which takes as long to import as a third
# of all the others.


@functools.cache
def _exact() -> Rung:
    from gemmdb.ladder.exact import exact

    return exact


@functools.cache
def _near() -> Rung:
    from gemmdb.ladder.near import near

    return near


@functools.cache
def _sku() -> Rung:
    from gemmdb.ladder.sku import sku

    return sku


@functools.cache
def _model() -> Rung:
    from gemmdb.ladder.model import model

    return model


@functools.cache
def _ranged() -> Rung:
    from gemmdb.ladder.ranges import ranged

    return ranged


_RUNG: dict[str, Callable[[], Rung]] = {"exact": _exact, "near": _near, "sku": _sku, "model": _model}
