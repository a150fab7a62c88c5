"""TableSession: the session that looks GEMMs up in tables."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmdb import __version__
from gemmdb.hit import Hit, Range
from gemmdb.inductor.decide import legality
from gemmdb.inductor.decide.session import Mode, Session
from gemmdb.inductor.lower.adapter import state
from gemmdb.kernels.config import Config
from gemmdb.kernels.cutlass import prebuilt
from gemmdb.key.problem import Query
from gemmdb.key.toolchain import installed
from gemmdb.lookup import answer, best_kernel, explain
from gemmdb.rejected import Rejected
from gemmdb.settings import UNLIMITED_LIVE_S, Policy, Settings
from gemmdb.table.catalog import Catalog, written

if TYPE_CHECKING:
    from gemmdb.table.reader import Table


@dataclass
class Loaded:
    """The catalog of a session and of its copies: what lookups have read and found is kept with its tables. `complete`:
    whether it has the user's table, or will not get it."""

    catalog: Catalog
    complete: bool


class TableSession(Session):
    """Looks up a Catalog: `tables`, then GEMMDB_TABLES, the user table, and the shipped tables.

    A broken table is skipped with a warning; with `on_miss="error"` it raises TableError. Once live tuning has created
    the user table, a new catalog includes it, so that later graphs hit what was measured for earlier ones. The old
    catalog stays open: another thread may be reading it. A frozen policy reads the named tables alone, and opens them
    once.
    """

    def __init__(self, policy: Policy, tables: Sequence[Path] = (), settings: Settings | None = None) -> None:
        self._settings, self._named = (settings or Settings.read()).with_frozen(policy.frozen), tables
        self._policy = policy
        untuned = replace(policy, on_miss="aten") if policy.on_miss == "live" else policy
        self._policies = {
            Mode.UNTUNED: untuned,
            Mode.CERTAIN: replace(untuned, confirm=False),
            Mode.WITHOUT_CUTLASS: replace(untuned.without_cutlass, confirm=False),
            Mode.DENSE: replace(untuned.without_views, confirm=False),
        }
        complete = self._settings.frozen or self._has_user_table()
        self._loaded = Loaded(self._load(), complete)
        identity = f"{policy.text} catalog={self._loaded.catalog.identity()} kernels={prebuilt.identity()}"
        super().__init__(policy, identity, self._settings.user_table)

    def _find(self, query: Query, mode: Mode) -> Hit | None:
        policy = self._policy
        if mode is not Mode.POLICY:
            return self._answer(query, self._policies[mode])
        if policy.on_miss != "live" or self.tuning_rejection(query):
            return self._answer(query, self._policies[Mode.UNTUNED])
        # Confirming one uncertain answer takes a fraction of the time of tuning.
        quick = policy.live_s < UNLIMITED_LIVE_S and self._applied(query, policy).confirm
        hit = self._answer(query, self._policies[Mode.UNTUNED]) if quick else None
        hit = hit or self._answer(query, policy)
        if hit is not None:
            return hit
        # A search would repeat what an earlier one stored: times with a hot cache.
        hit = self._answer(replace(query, l2="hot"), replace(policy, near=False))
        return hit and replace(hit, evidence={**hit.evidence, "instead_of": query.l2})

    def best_kernel(self, query: Query, allowed: Callable[[Config], bool]) -> Hit | None:
        def excluded(config: Config, rows: Range | None) -> Rejected | None:
            return legality.rejection(config, query, rows) or (
                None if allowed(config) else Rejected("not allowed here")
            )

        policy = self._applied(query, self._policies[Mode.UNTUNED])
        return best_kernel(query, self.catalog(), policy, installed(query.device.kind), excluded)

    def explain_miss(self, query: Query) -> str:
        policy, excluded = self._applied(query, self._policy), partial(legality.process_rejection, query)
        steps = explain(query, self.catalog(), policy, installed(query.device.kind), excluded)
        return "; ".join(f"{step.rung}: {step.reason}" for step in steps if step.hit is None)

    def tuning_rejection(self, query: Query) -> Rejected | None:
        from gemmdb.inductor.benchmark import rules  # Needs torch; making a session does not.

        return rules.tuning_rejection(query, self._policy)

    def tables(self) -> Sequence[Table]:
        return self.catalog().tables

    def frozen_to(self) -> dict[str, Any] | None:
        if not self._policy.frozen:
            return None
        pins = self._settings.pins
        identity = hashlib.sha256(f"{__version__} {self.identity}".encode()).hexdigest()[:16]
        tables = [{"path": str(table.path), "digest": table.digest} for table in self.tables()]
        return {"pins": None if pins is None else str(pins), "tables": tables, "identity": identity}

    def catalog(self) -> Catalog:
        """The current catalog."""
        loaded = self._loaded
        if not loaded.complete and self._has_user_table():
            loaded.catalog, loaded.complete = self._load(), True
        return loaded.catalog

    def _load(self) -> Catalog:
        return Catalog.load(self._settings, tables=self._named, strict=self._policy.on_miss == "error")

    def _has_user_table(self) -> bool:
        return written(self._settings.user_table)

    def _answer(self, query: Query, policy: Policy) -> Hit | None:
        excluded = partial(legality.process_rejection, query)
        return answer(query, self.catalog(), self._applied(query, policy), installed(query.device.kind), excluded)

    def _applied(self, query: Query, policy: Policy) -> Policy:
        """Return the policy for one query."""
        policy = state.applied(policy)
        unmeasured = policy.batch_invariant or query.symbolic
        if policy.on_miss == "error" and not unmeasured:
            # The other rungs answer with unmeasured configs. Only some sizes of a range are ever measured.
            return replace(policy, near=False, sku=False, model=False)
        if policy.confirm:
            from gemmdb.inductor.benchmark import rules

            if rules.confirm_rejection(query, policy):
                return replace(policy, confirm=False)
        return policy
