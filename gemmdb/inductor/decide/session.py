"""Session: looks up the GEMMs of a compile under a policy.

`gemmdb.inductor.entry` contains the session that reads tables, and tracks the active session.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.settings import Policy

if TYPE_CHECKING:
    from gemmdb.key.problem import Problem, Query
    from gemmdb.rejected import Rejected
    from gemmdb.table.reader import Table

FORCED = Policy(compile_cost=10)
"""Policy of a forced config: a user who forces a kernel waits for its compiler."""


class Mode(Enum):
    """Which hits a query may get."""

    POLICY = auto()
    """Everything that the policy allows."""
    UNTUNED = auto()
    """As if live tuning were off: the GEMM should have been tuned but could not be."""
    CERTAIN = auto()
    """Only hits that need no confirmation: the hit should have been confirmed but could not be."""
    WITHOUT_CUTLASS = auto()
    """Only hits that need no confirmation and no CUTLASS kernel: one could not be compiled."""
    DENSE = auto()
    """Only hits that need no confirmation and give a dense output: the program gets it."""


class Session:
    """Answers the queries of a compile; the base class always misses.

    `identity`: the part of the compile-cache key that stands for the answers; None keeps graphs out of every cache.
    `user_table`: where live timings are stored.
    """

    def __init__(self, policy: Policy, identity: str | None = None, user_table: Path | None = None) -> None:
        self.policy, self.identity, self.user_table = policy, identity, user_table
        self._aten_for: Collection[str] = ()
        self._hits: dict[object, Hit] | None = None

    def variant(self, **changes: Any) -> Self:
        """Return a copy with other attributes. It still applies the policy that the session was created with."""
        one = copy.copy(self)
        vars(one).update(changes)
        return one

    def remembering(self) -> Self:
        """Return a copy that caches hits: both passes of a compile look up each GEMM, and many layers share one. Misses
        are not cached, since they may have been tuned by the next lookup."""
        return self.variant(_hits={})

    def with_aten_for(self, problems: Collection[str]) -> Self:
        """Return a copy with ATen for some problems (by text) and unchanged hits for all others. It never tunes."""
        policy = replace(self.policy, on_miss="aten")
        return self.variant(_aten_for=problems, identity=None, policy=policy)

    def find(self, query: Query, mode: Mode = Mode.POLICY) -> Hit | None:
        """Return the hit for a query, None for a miss."""
        if self._aten_for and query.problem.text in self._aten_for:
            return _forced(ATEN)
        if self._hits is None:
            return self._find(query, mode)
        ranges = tuple(sorted(query.ranges.items()))
        kind = query.l2, query.activation, query.aten_splits, query.computed
        asked = mode, query.problem, query.device, ranges, kind
        hit = self._hits.get(asked) or self._find(query, mode)
        if hit is not None:
            self._hits[asked] = hit
        return hit

    def _find(self, query: Query, mode: Mode) -> Hit | None:
        return None

    def best_kernel(self, query: Query, allowed: Callable[[Config], bool]) -> Hit | None:
        """Return the best kernel that `allowed` accepts, even if ATen is expected to be faster."""
        return None

    def explain_miss(self, query: Query) -> str:
        """Explain why a query misses, source by source."""
        return ""

    def tuning_rejection(self, query: Query) -> Rejected | None:
        """Return why a query that misses is not tuned live."""
        return None

    def tables(self) -> Sequence[Table]:
        """Return the tables in lookup order."""
        return ()

    def frozen_to(self) -> dict[str, Any] | None:
        """Return what a frozen session reads, as in `stats()["frozen"]`; None for any other."""
        return None


class ForcedSession(Session):
    """Uses one config for each GEMM, or the one that a function of its Problem returns (None: Inductor's choice). Reads
    no table. `key`: represents the function in compile-cache keys; a config is its own key."""

    def __init__(self, chosen: Config | Callable[[Problem], Config | None] | None, key: str | None = None) -> None:
        if isinstance(chosen, Config):
            key = key or chosen.text
        super().__init__(FORCED, None if key is None else f"forced {key}")
        self._chosen = chosen

    def _find(self, query: Query, mode: Mode) -> Hit | None:
        if mode is not Mode.POLICY:  # There is no other config.
            return None
        config = self._chosen(query.problem) if callable(self._chosen) else self._chosen
        return None if config is None else _forced(config)


def _forced(config: Config) -> Hit:
    return Hit("forced", config, 0.0, 1.0, "", {})
