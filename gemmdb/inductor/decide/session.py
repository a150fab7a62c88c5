"""Session: what a compile asks about its GEMMs, and by which policy.

`gemmdb.inductor.entry` has the session that asks tables, and says which session is active.
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
"""The policy of a forced config: whoever names a kernel waits for its compiler."""


class Mode(Enum):
    """Which answers a query may get."""

    POLICY = auto()
    """All that the policy allows."""
    UNTUNED = auto()
    """As if live tuning were off: the GEMM should have been tuned, and could not be."""
    CERTAIN = auto()
    """What needs no confirmation: the answer should have been confirmed, and could not be."""
    WITHOUT_CUTLASS = auto()
    """What needs no confirmation and is no CUTLASS kernel: one could not be compiled."""


class Session:
    """What answers the queries of a compile; this one answers none.

    `identity`: the part of the compile-cache key that stands for the answers; None keeps graphs out of every cache.
    `user_table`: where live timings go.
    """

    def __init__(self, policy: Policy, identity: str | None = None, user_table: Path | None = None) -> None:
        self.policy, self.identity, self.user_table = policy, identity, user_table
        self._aten_for: Collection[str] = ()
        self._hits: dict[object, Hit] | None = None

    def variant(self, **changes: Any) -> Self:
        """A copy with other attributes. Its answers are by the policy that the session was made with."""
        one = copy.copy(self)
        vars(one).update(changes)
        return one

    def remembering(self) -> Self:
        """A copy that keeps its hits: both passes of a compile ask for a GEMM, and layers of a model for the same one.
        A miss may have been tuned when it is asked for again."""
        return self.variant(_hits={})

    def with_aten_for(self, problems: Collection[str]) -> Self:
        """A copy with ATen for some problems (by text), and the same answers for all others. It tunes nothing."""
        policy = replace(self.policy, on_miss="aten")
        return self.variant(_aten_for=problems, identity=None, policy=policy)

    def find(self, query: Query, mode: Mode = Mode.POLICY) -> Hit | None:
        """The answer to a query, None for a miss."""
        if self._aten_for and query.problem.text in self._aten_for:
            return _forced(ATEN)
        if self._hits is None:
            return self._find(query, mode)
        asked = (mode, query.problem, query.device, query.l2, tuple(sorted(query.ranges.items())))
        hit = self._hits.get(asked) or self._find(query, mode)
        if hit is not None:
            self._hits[asked] = hit
        return hit

    def _find(self, query: Query, mode: Mode) -> Hit | None:
        return None

    def best_kernel(self, query: Query, allowed: Callable[[Config], bool]) -> Hit | None:
        """The best of the kernels that `allowed` accepts, even if ATen is expected to be faster."""
        return None

    def explain_miss(self, query: Query) -> str:
        """Why a query has no answer, source by source."""
        return ""

    def tuning_rejection(self, query: Query) -> Rejected | None:
        """Why a query that misses is not tuned live."""
        return None

    def tables(self) -> Sequence[Table]:
        """The tables that are asked, in order."""
        return ()


class ForcedSession(Session):
    """Gives each GEMM one config, or what a function of its Problem says (None: Inductor's own choice). It reads no
    table. `key`: stands for the function in compile-cache keys; a config is its own key."""

    def __init__(self, chosen: Config | Callable[[Problem], Config | None] | None, key: str | None = None) -> None:
        if isinstance(chosen, Config):
            key = key or chosen.text
        super().__init__(FORCED, None if key is None else f"forced {key}")
        self._chosen = chosen

    def _find(self, query: Query, mode: Mode) -> Hit | None:
        if mode is not Mode.POLICY:  # Nothing else was asked for.
            return None
        config = self._chosen(query.problem) if callable(self._chosen) else self._chosen
        return None if config is None else _forced(config)


def _forced(config: Config) -> Hit:
    return Hit("forced", config, 0.0, 1.0, "", {})
