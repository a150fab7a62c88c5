"""The lookup ladder: one function per rung. They are called in order, and each may decline.

It is pure: an answer depends only on the arguments and the tables. Nothing is timed and nothing is written.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterator

from gemmdb.errors import InputError
from gemmdb.hit import RUNGS, Hit
from gemmdb.key.problem import L2_STATES, Problem, Query
from gemmdb.key.toolchain import Toolchain, installed
from gemmdb.lookup import environment
from gemmdb.lookup.ask import Ask, Exclude, Step
from gemmdb.lookup.excluding import answered
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog

__all__ = ["Exclude", "Step", "answer", "best_kernel", "explain", "lookup"]

Rung = Callable[[Ask], Step]


def answer(
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
    """What every rung says and why, also the rungs after the answer. Raises what `answer` raises."""
    ask = Ask(query, catalog.tables, policy, toolchain, excluded)
    steps = [answered(_rung(name), ask) for name in RUNGS]
    return [answered(_rung("ranges"), ask), *steps] if ask.symbolic else steps


def best_kernel(
    query: Query, catalog: Catalog, policy: Policy, toolchain: Toolchain | None = None, excluded: Exclude | None = None
) -> Hit | None:
    """The kernel that is expected to be the fastest of those that `excluded` leaves, also where ATen is faster. None if
    there is none. The arguments are those of `answer`, with fixed sizes."""
    from gemmdb.lookup import fastest  # As the rungs.

    return fastest.best_kernel(Ask(query, catalog.tables, policy, toolchain, excluded))


def _steps(ask: Ask) -> Iterator[Step]:
    if ask.symbolic:
        yield answered(_rung("ranges"), ask)
        yield answered(_rung("epilogue"), ask)
    else:
        yield from (answered(_rung(name), ask) for name in RUNGS)


_SOURCES = {
    "exact": ("exact", "exact"),
    "near": ("sku", "near_unless_measured"),
    "epilogue": ("epilogue", "epilogue"),
    "sku": ("sku", "sku"),
    "model": ("model", "model"),
    "ranges": ("ranges", "ranged"),
}
"""Module and function of each rung."""


@functools.cache
def _rung(name: str) -> Rung:
    """Imported at its first use: an exact hit does not need the cost model, whose import takes a third of the time of
    all the others."""
    module, function = _SOURCES[name]
    rung: Rung = getattr(importlib.import_module(f"gemmdb.lookup.{module}"), function)
    return rung


_DEFAULTS = Policy()


def lookup(problem: Problem, device: str | None = None, l2: str = "cold") -> Hit | None:
    """The answer for `problem`, or None for a miss. It times nothing and ignores `on_miss`. A change of the settings or
    of a table counts within a tenth of a second, or after `gemmdb.refresh()`.

    `device`: a SKU or an arch, by default this machine. `l2`: the state of the last-level cache before each call,
    `cold` or `hot`. Raises InputError for another state, and for an unknown device that is in no table.
    """
    if l2 not in L2_STATES:
        raise InputError(f"unknown l2 state {l2!r}; known: {', '.join(L2_STATES)}")
    tables = environment.current()
    where = tables.resolve(device)
    return answer(Query(problem, where, l2=l2), tables.catalog(), _DEFAULTS, installed(where.kind))


class _Callable(types.ModuleType):
    """This package, which is also the function `gemmdb.lookup`: to import one of its modules binds that name in
    `gemmdb` to the package."""

    __call__ = staticmethod(lookup)


sys.modules[__name__].__class__ = _Callable
