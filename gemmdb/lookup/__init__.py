"""GEMM lookup: sources find candidates, and `acceptance` decides which one to serve. PRECEDENCE lists the rungs.

Lookups are pure: the result depends only on the arguments and the tables. Nothing is benchmarked or written.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gemmdb.errors import InputError, TableError, checks_arguments, choices
from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import L2_STATES, Problem, Query
from gemmdb.key.toolchain import Toolchain, installed
from gemmdb.lookup import environment, lowering
from gemmdb.lookup.ask import Ask, Exclude, Step
from gemmdb.lookup.lowering import slow_calls
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy, data_home
from gemmdb.table.catalog import Catalog
from gemmdb.table.reader import Table

__all__ = ["Exclude", "Step", "answer", "best_kernel", "explain", "lookup", "slow_calls"]

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
    "range": "gemmdb.lookup.acceptance.by_rows:by_rows",
    "epilogue": "gemmdb.lookup.acceptance.epilogue:epilogue",
}
"""The rungs for symbolic sizes."""
INVARIANT = "gemmdb.lookup.acceptance.invariant:invariant"
"""The rung before all others if the policy asks for batch invariance. What it misses is not batch-invariant."""
MOST_LEFT_OUT = 16
"""Maximum number of configs to exclude in one lookup: a hostile table could contain thousands that cannot run."""


def answer(
    query: Query, catalog: Catalog, policy: Policy, toolchain: Toolchain | None = None, excluded: Exclude | None = None
) -> Hit | None:
    """Return the first rung's hit, or None if every rung misses. `toolchain`: the toolchain that will run the config.
    `excluded`: returns why the caller cannot run a config. It, what Inductor cannot lower, and what costs the host more
    time than it saves are not served: the next best is, and `left_out` in the evidence gives the reasons. So the answer
    is what a compile with this policy serves.

    A broken table is skipped with one warning; with `on_miss="error"` it raises TableError. Raises InputError for
    invalid ranges.
    """
    ask = Ask(query, catalog.tables, policy, toolchain, excluded)
    variant = _invariant(ask)
    if variant is not None and variant.hit is not None:
        return variant.hit
    hit = next((step.hit for step in _steps(ask) if step.hit), None)
    if hit is None or variant is None:
        return hit
    return replace(hit, evidence={**hit.evidence, "not_batch_invariant": variant.reason})


def explain(
    query: Query, catalog: Catalog, policy: Policy, toolchain: Toolchain | None = None, excluded: Exclude | None = None
) -> list[Step]:
    """Return the result of every rung with its reason, including the rungs after the hit. Rungs that do not answer for
    symbolic sizes have a result for the hint, and no hit. Raises the same errors as `answer`."""
    ask = Ask(query, catalog.tables, policy, toolchain, excluded)
    variant = _invariant(ask)
    first = [] if variant is None else [variant]
    if not ask.symbolic:
        return [*first, *_steps(ask)]
    steps = [(name, _step(_rung(rung), ask)) for name, rung in {**SYMBOLIC, **PRECEDENCE}.items()]
    order = ["range", *PRECEDENCE]
    return [*first] + [
        step if name in SYMBOLIC or step.hit is None else replace(step, hit=None, reason=f"at the hint: {step.reason}")
        for name, step in sorted(steps, key=lambda pair: order.index(pair[0]))
    ]


def best_kernel(
    query: Query, catalog: Catalog, policy: Policy, toolchain: Toolchain | None = None, excluded: Exclude | None = None
) -> Hit | None:
    """Return the kernel with the lowest expected latency that `excluded` permits, even where ATen is faster; None if
    there is none. Takes the arguments of `answer`, with fixed sizes."""
    from gemmdb.lookup.acceptance import tuning  # Lazy, like the rungs.

    return tuning.best_kernel(Ask(query, catalog.tables, policy, toolchain, excluded))


def _invariant(ask: Ask) -> Step | None:
    """Return the result of rung `invariant`; None if the policy does not ask for batch invariance. ATen in place of too
    many kernels that cannot run is a miss: it adds in another order."""
    if not ask.policy.batch_invariant:
        return None
    step = _step(_rung(INVARIANT), ask)
    if step.hit is None or step.hit.config != ATEN:
        return step
    return replace(step, hit=None, reason=f"more than {MOST_LEFT_OUT} kernels with the summation order cannot run")


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
    """Run `rung` without the configs that a compile does not serve; the evidence lists these under `left_out`, with
    reasons.

    Only configs that the rung is about to serve are checked: a rejection may depend on the range of M that a config
    serves, and a prediction still compares against all others. After MOST_LEFT_OUT rejections ATen is served.
    """
    step = rung(ask)
    while (found := _excluded(ask, step.hit)) is not None:
        config, rejected = found
        ask = replace(ask, left_out={**ask.left_out, config: rejected})
        if len(ask.left_out) > MOST_LEFT_OUT:
            step = replace(step, hit=step.hit and step.hit.with_aten())
            break
        step = rung(ask)
    if not ask.left_out:
        return step
    left_out = {"left_out": {config.text: one.reason for config, one in ask.left_out.items()}}
    if step.hit is None:
        return replace(step, evidence={**step.evidence, **left_out})
    evidence = {**step.hit.evidence, **left_out}
    return replace(step, hit=replace(step.hit, evidence=evidence), evidence=evidence)


def _excluded(ask: Ask, hit: Hit | None) -> tuple[Config, Rejected] | None:
    """Return the first excluded config of a hit, with the reason. ATen is never excluded."""
    if hit is None:
        return None
    for config, rows in hit.kernels(ask.query.ranges):
        if config == ATEN:
            continue
        rejected = lowering.rejection(config, ask.query, rows) or (ask.excluded and ask.excluded(config, rows))
        if rejected is not None:
            return config, rejected
    slow = slow_calls(hit.config, ask.query, hit.expected_us, hit.speedup, ask.policy)
    return None if slow is None else (hit.config, slow)


def disturbed(hit: Hit, query: Query, tables: Sequence[Table]) -> bool:
    """Return whether the time of a hit is no expectation, since it or ATen's was taken only on a busy machine. A kernel
    is served only by quiet times relative to ATen's, but its microseconds are those of ATen times that ratio. Packed
    tables are made on idle machines."""
    return bool(disturbed_sizes(hit, query, tables))


def disturbed_sizes(hit: Hit, query: Query, tables: Sequence[Table]) -> tuple[Problem, ...]:
    """Return the sizes of a query of which that is true: of all that decide if ATen serves its range, else of the
    recorded one."""
    if hit.rung != "exact":
        return ()
    problems: Sequence[Problem] = (query.problem,)
    if query.ranges and hit.config == ATEN and not hit.branches:
        from gemmdb.lookup import symbolic  # Lazy, like the rungs.

        problems = symbolic.sizes(Ask(query, tuple(tables), _DEFAULTS, None))
    own = [table for table in tables if str(table.path) == hit.table and not table.packed]
    try:
        return tuple(one for one in problems if any(table.disturbed(one, query.device, hit.config) for table in own))
    except TableError:  # The lookup has warned of it.
        return ()


def outdated(hit: Hit, kind: str) -> bool:
    """Return whether the rows of a hit are not valid for the installed toolchain for devices of `kind`, and a build
    measures the problem again: it keeps only the rows of the user's own tables, by their toolchain class."""
    running = installed(kind)
    if running is None or hit.evidence.get("verified") is not False:
        return False
    is_own = Path(hit.table).absolute().parent == data_home().absolute()
    return not is_own or hit.evidence.get("class", running.klass) != running.klass


_DEFAULTS = Policy()


@checks_arguments
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
