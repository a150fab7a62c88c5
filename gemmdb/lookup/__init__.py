"""GEMM lookup: sources find candidates, and `acceptance` decides which one to serve. PRECEDENCE lists the rungs.

Lookups are pure: the result depends only on the arguments and the tables. Nothing is benchmarked or written.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace

from gemmdb.errors import InputError, choices
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
    "exact": "gemmdb.lookup.acceptance.extern:exact_or_extern",
    "near": "gemmdb.lookup.acceptance.near:near_unless_measured",
    "epilogue": "gemmdb.lookup.acceptance.epilogue:epilogue",
    "sku": "gemmdb.lookup.acceptance.near:sku",
    "model": "gemmdb.lookup.acceptance.model:model",
}
"""The rungs for fixed sizes, in order. The first rung with a hit wins. `near` and `epilogue` decline where `sku` has a
kernel that was measured for this exact problem, `exact` and `near` where `epilogue` has an extern kernel that saves
more."""
SYMBOLIC = {
    "range": "gemmdb.lookup.acceptance.ranges:ranged",
    "epilogue": "gemmdb.lookup.acceptance.epilogue:epilogue",
}
"""The rungs for symbolic sizes."""
MOST_LEFT_OUT = 16
"""Maximum number of configs to exclude in one lookup: a hostile table could contain thousands that cannot run."""


def answer(
    query: Query, catalog: Catalog, policy: Policy, toolchain: Toolchain | None = None, excluded: Exclude | None = None
) -> Hit | None:
    """Return the first rung's hit, or None if every rung misses. `toolchain`: the toolchain that will run the config.
    `excluded`: returns why the caller cannot run a config; the next best is then served, and `left_out` in the evidence
    gives the reason.

    A broken table is skipped with one warning; with `on_miss="error"` it raises TableError. Raises InputError for
    invalid ranges.
    """
    ask = Ask(query, catalog.tables, policy, toolchain, excluded)
    return next((step.hit for step in _steps(ask) if step.hit), None)


def explain(
    query: Query, catalog: Catalog, policy: Policy, toolchain: Toolchain | None = None, excluded: Exclude | None = None
) -> list[Step]:
    """Return the result of every rung with its reason, including the rungs after the hit. Raises the same errors as
    `answer`."""
    ask = Ask(query, catalog.tables, policy, toolchain, excluded)
    rungs = [*([SYMBOLIC["range"]] if ask.symbolic else []), *PRECEDENCE.values()]
    return [_step(_rung(name), ask) for name in rungs]


def best_kernel(
    query: Query, catalog: Catalog, policy: Policy, toolchain: Toolchain | None = None, excluded: Exclude | None = None
) -> Hit | None:
    """Return the kernel with the lowest expected latency that `excluded` permits, even where ATen is faster; None if
    there is none. Takes the arguments of `answer`, with fixed sizes."""
    from gemmdb.lookup.acceptance import tuning  # Lazy, like the rungs.

    return tuning.best_kernel(Ask(query, catalog.tables, policy, toolchain, excluded))


def _steps(ask: Ask) -> Iterator[Step]:
    rungs = SYMBOLIC if ask.symbolic else PRECEDENCE
    return (_step(_rung(name), ask) for name in rungs.values())


@functools.cache
def _rung(name: str) -> Rung:
    """Import a rung on first use: an exact hit does not need the cost model, whose import takes a third as long as all
    the others."""
    module, function = name.split(":")
    rung: Rung = getattr(importlib.import_module(module), function)
    return rung


def _step(rung: Rung, ask: Ask) -> Step:
    """Run `rung` without the configs that `ask.excluded` rejects; the evidence lists these under `left_out`, with
    reasons.

    Only configs that the rung is about to serve are checked: a rejection may depend on the range of M that a config
    serves, and a prediction still compares against all others. After MOST_LEFT_OUT rejections the hit may contain one
    more: the caller then falls back to ATen.
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
    """Return the first excluded config of a hit, with the reason. ATen is never excluded."""
    if hit is None or ask.excluded is None:
        return None
    for config, rows in hit.kernels(ask.query.ranges):
        if config != ATEN and (rejected := ask.excluded(config, rows)):
            return config, rejected
    return None


_DEFAULTS = Policy()


def lookup(problem: Problem, device: str | None = None, l2: str = "cold") -> Hit | None:
    """Look up the config for `problem`; None on a miss. Benchmarks nothing and ignores `on_miss`. Changes to settings
    or tables take effect within 0.1 seconds, or after `gemmdb.refresh()`.

    `device`: a SKU or an arch; defaults to this machine. `l2`: the state of the last-level cache before each call,
    `cold` or `hot`. Raises InputError for another state, and for an unknown device that is in no table.
    """
    if l2 not in L2_STATES:
        raise InputError(f"unknown l2 state {l2!r}; {choices(l2, L2_STATES)}")
    tables = environment.current()
    where = tables.resolve(device)
    return answer(Query(problem, where, l2=l2), tables.catalog(), _DEFAULTS, installed(where.kind))


class _Callable(types.ModuleType):
    """Makes this package callable as the function `gemmdb.lookup`: importing one of its modules binds that name in
    `gemmdb` to the package."""

    __call__ = staticmethod(lookup)


sys.modules[__name__].__class__ = _Callable
