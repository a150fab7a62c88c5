"""The lookup: sources find candidates, and `acceptance` decides what is done with them. PRECEDENCE lists the rungs.

It is pure: an answer depends only on the arguments and the tables. Nothing is timed and nothing is written.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace

from gemmdb.errors import InputError
from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import L2_STATES, Problem, Query
from gemmdb.key.toolchain import Toolchain, installed
from gemmdb.lookup import environment
from gemmdb.lookup.ask import Ask, Exclude, Step
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog

__all__ = ["Exclude", "Step", "answer", "best_kernel", "explain", "lookup"]

Rung = Callable[[Ask], Step]

PRECEDENCE = {
    "exact": "gemmdb.lookup.acceptance:exact",
    "near": "gemmdb.lookup.acceptance.near:near_unless_measured",
    "epilogue": "gemmdb.lookup.acceptance.epilogue:epilogue",
    "sku": "gemmdb.lookup.acceptance.near:sku",
    "model": "gemmdb.lookup.acceptance.model:model",
}
"""The rungs for fixed sizes, in order: the first that does not decline answers. `near` and `epilogue` decline where
`sku` has a kernel that was measured for this very problem."""
SYMBOLIC = {
    "range": "gemmdb.lookup.acceptance.ranges:ranged",
    "epilogue": "gemmdb.lookup.acceptance.epilogue:epilogue",
}
"""The same for symbolic sizes."""
MOST_LEFT_OUT = 16
"""The most configs that are left out of one answer: a hostile table could hold thousands that cannot run."""


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
    rungs = [*([SYMBOLIC["range"]] if ask.symbolic else []), *PRECEDENCE.values()]
    return [_step(_rung(name), ask) for name in rungs]


def best_kernel(
    query: Query, catalog: Catalog, policy: Policy, toolchain: Toolchain | None = None, excluded: Exclude | None = None
) -> Hit | None:
    """The kernel that is expected to be the fastest of those that `excluded` leaves, also where ATen is faster. None if
    there is none. The arguments are those of `answer`, with fixed sizes."""
    from gemmdb.lookup.acceptance import tuning  # As the rungs.

    return tuning.best_kernel(Ask(query, catalog.tables, policy, toolchain, excluded))


def _steps(ask: Ask) -> Iterator[Step]:
    rungs = SYMBOLIC if ask.symbolic else PRECEDENCE
    return (_step(_rung(name), ask) for name in rungs.values())


@functools.cache
def _rung(name: str) -> Rung:
    """Imported at its first use: an exact hit does not need the cost model, whose import takes a third of the time of
    all the others."""
    module, function = name.split(":")
    rung: Rung = getattr(importlib.import_module(module), function)
    return rung


def _step(rung: Rung, ask: Ask) -> Step:
    """The step of `rung` without what `ask.excluded` rules out; the evidence lists that under `left_out`, with reasons.

    Only configs that the rung is about to serve are checked: a reason may depend on the rows that a config is to serve,
    and a prediction still compares with all others. After MOST_LEFT_OUT of them the hit may name one more: the caller
    then falls back to ATen.
    """
    step = rung(ask)
    if ask.excluded is None:
        return step
    while len(ask.left_out) < MOST_LEFT_OUT and (found := _excluded(ask, step.hit)) is not None:
        config, rejected = found
        ask = replace(ask, left_out={**ask.left_out, config: rejected})
        step = rung(ask)
    if not ask.left_out or step.hit is None:
        return step
    evidence = {**step.hit.evidence, "left_out": {config.text: one.reason for config, one in ask.left_out.items()}}
    return replace(step, hit=replace(step.hit, evidence=evidence), evidence=evidence)


def _excluded(ask: Ask, hit: Hit | None) -> tuple[Config, Rejected] | None:
    """The first config of a hit that is ruled out, and why; ATen never is."""
    if hit is None or ask.excluded is None:
        return None
    for config, rows in hit.kernels(ask.query.ranges):
        if config != ATEN and (rejected := ask.excluded(config, rows)):
            return config, rejected
    return None


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
