"""The lookup ladder: one function per rung. They are called in order, and each may decline.

It is pure: an answer depends only on the arguments and the tables. Nothing is timed and nothing is written.
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

__all__ = ["Exclude", "Step", "best_kernel", "explain", "lookup"]

Rung = Callable[[Ask], Step]


def lookup(
    query: Query, catalog: Catalog, policy: Policy, toolchain: Toolchain | None = None, excluded: Exclude | None = None
) -> Hit | None:
    """The answer of the first rung that does not decline; None if all decline. `toolchain`: the one that will run the
    answer. `excluded`: tells why the caller cannot run a config; then the next best is served, and `left_out` in the
    evidence gives the reason.

    A broken table is left out with one warning; under `on_miss="error"` it raises TableError. Raises InputError for
    invalid ranges.
    """
    ask = Ask(query, catalog.tables, policy, toolchain, excluded)
    return next((step.hit for step in _steps(ask) if step.hit), None)


def explain(
    query: Query, catalog: Catalog, policy: Policy, toolchain: Toolchain | None = None, excluded: Exclude | None = None
) -> list[Step]:
    """What every rung says and why, also the rungs after the answer. Raises what `lookup` raises."""
    ask = Ask(query, catalog.tables, policy, toolchain, excluded)
    steps = [answered(_RUNG[name](), ask) for name in RUNGS]
    return [answered(_ranged(), ask), *steps] if ask.symbolic else steps


def best_kernel(
    query: Query, catalog: Catalog, policy: Policy, toolchain: Toolchain | None = None, excluded: Exclude | None = None
) -> Hit | None:
    """The kernel that is expected to be the fastest of those that `excluded` leaves, also where ATen is faster. None if
    there is none. The arguments are those of `lookup`, with fixed sizes."""
    from gemmdb.ladder import fastest  # As the rungs.

    return fastest.best_kernel(Ask(query, catalog.tables, policy, toolchain, excluded))


def _steps(ask: Ask) -> Iterator[Step]:
    if ask.symbolic:
        yield answered(_ranged(), ask)
        yield answered(_epilogue(), ask)
    else:
        yield from (answered(_RUNG[name](), ask) for name in RUNGS)


# A rung is imported at its first use: an exact hit does not need the cost model, whose import takes a third of the time
# of all the others.


@functools.cache
def _exact() -> Rung:
    from gemmdb.ladder.exact import exact

    return exact


@functools.cache
def _near() -> Rung:
    from gemmdb.ladder.sku import near_unless_measured

    return near_unless_measured


@functools.cache
def _epilogue() -> Rung:
    from gemmdb.ladder.epilogue import epilogue

    return epilogue


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


_RUNG: dict[str, Callable[[], Rung]] = {
    "exact": _exact, "near": _near, "epilogue": _epilogue, "sku": _sku, "model": _model,
}  # fmt: skip
