"""Makes sessions: from tables, or from a function that chooses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gemmdb.hit import Hit, Range
from gemmdb.inductor.decide import legality
from gemmdb.inductor.entry.session import Allowed, Session
from gemmdb.kernels.config import Config
from gemmdb.kernels.cutlass import prebuilt
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import installed
from gemmdb.settings import PATIENT_S, Policy, Settings

if TYPE_CHECKING:
    from gemmdb.table.catalog import Catalog


_FORCED = Policy(compile_cost=10)
"""Somebody who names a kernel waits for its compiler."""


def from_tables(policy: Policy, tables: Sequence[Path] = (), settings: Settings | None = None) -> Session:
    """The session that asks the Catalog: `tables`, then GEMMDB_TABLES, the user's own, the shipped ones.

    A broken table leaves a warning and its place empty; under `on_miss="error"` it raises TableError.
    """
    from gemmdb.table.catalog import Catalog, written

    settings = settings or Settings.read()
    strict = policy.on_miss == "error"
    catalog = _Catalogs(
        lambda: Catalog.load(settings, tables=tables, strict=strict), lambda: written(settings.user_table)
    )
    asked = _Asked(policy, catalog)
    identity = f"{policy.text} catalog={catalog().identity()} kernels={prebuilt.identity()}"
    return Session(
        asked.find, policy, identity, settings.user_table, asked.why, asked.declines, asked.otherwise,
        asked.unconfirmed, asked.without_cutlass, asked.kernel, lambda: catalog().tables,
    )  # fmt: skip


@dataclass(frozen=True)
class _Asked:
    """What a session says to queries, from the tables of a catalog. See the fields of Session."""

    policy: Policy
    catalog: Callable[[], Catalog]

    def find(self, query: Query) -> Hit | None:
        policy = self.policy
        if policy.on_miss != "live" or self.declines(query):
            return self.otherwise(query)
        # Timing one doubtful answer takes a fraction of what tuning takes.
        hit = self.otherwise(query) if policy.live_s < PATIENT_S and self._applied(query, policy).confirm else None
        hit = hit or self._answer(query, policy)
        if hit is not None:
            return hit
        # A search would repeat what an earlier one has stored: times with the operands in the cache.
        hit = self._answer(replace(query, l2="hot"), replace(policy, near=False))
        return hit and replace(hit, evidence={**hit.evidence, "instead_of": query.l2})

    def otherwise(self, query: Query) -> Hit | None:
        return self._answer(query, self._untimed)

    def unconfirmed(self, query: Query) -> Hit | None:
        return self._answer(query, replace(self._untimed, confirm=False))

    def without_cutlass(self, query: Query) -> Hit | None:
        return self._answer(query, replace(self._untimed.without_cutlass, confirm=False))

    def kernel(self, query: Query, allowed: Allowed) -> Hit | None:
        from gemmdb.ladder import best_kernel  # It imports the cost model.

        def excluded(config: Config, rows: Range | None) -> str | None:
            return legality.excluded(query, config, rows) or (None if allowed(config) else "not allowed here")

        policy = self._applied(query, self._untimed)
        return best_kernel(query, self.catalog(), policy, installed(query.device.kind), excluded)

    def why(self, query: Query) -> str:
        from gemmdb.ladder import explain

        steps = explain(query, self.catalog(), self._applied(query, self.policy), installed(query.device.kind))
        return "; ".join(f"{step.rung}: {step.reason}" for step in steps if step.hit is None)

    def declines(self, query: Query) -> str:
        from gemmdb.inductor.benchmark.live_rules import objection  # Needs torch; making a session does not.

        return objection(query, self.policy)

    @property
    def _untimed(self) -> Policy:
        return replace(self.policy, on_miss="aten") if self.policy.on_miss == "live" else self.policy

    def _answer(self, query: Query, policy: Policy) -> Hit | None:
        from gemmdb.ladder import lookup

        excluded = functools.partial(legality.excluded, query)
        return lookup(query, self.catalog(), self._applied(query, policy), installed(query.device.kind), excluded)

    def _applied(self, query: Query, policy: Policy) -> Policy:
        """The policy for one query."""
        if policy.on_miss == "error" and not any(low != high for low, high in query.ranges.values()):
            # The other rungs answer with what nobody has measured. Of a range, only some sizes ever are.
            return replace(policy, near=False, sku=False, model=False)
        if policy.confirm:
            from gemmdb.inductor.benchmark.confirm_rules import objection  # As above.
            from gemmdb.ladder import confirmable

            return confirmable.applied(query, policy, objection)
        return policy


class _Catalogs:
    """The catalog of a session. Once live tuning has made the user's table, it is another catalog with that table, so
    that what was measured for one graph answers the next. The first stays open: another thread may be reading it."""

    def __init__(self, load: Callable[[], Catalog], made: Callable[[], bool]) -> None:
        self._load, self._made = load, made
        self._complete, self._now = made(), load()

    def __call__(self) -> Catalog:
        if not self._complete and self._made():
            self._now, self._complete = self._load(), True
        return self._now


def from_chooser(chooser: Callable[[Problem], Config | None], key: str | None) -> Session:
    """The session that gives each product what `chooser` says and leaves it alone on None; no table is read."""

    def find(query: Query) -> Hit | None:
        config = chooser(query.problem)
        if config is None:
            return None
        return Hit("forced", config, 0.0, 1.0, "", {})

    return Session(find, _FORCED, None if key is None else f"forced {key}")
