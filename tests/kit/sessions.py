"""A session whose answers a test hands in, and the rows that it leaves in the user's table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gemmdb.hit import Hit
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.decide.session import Mode, Session
from gemmdb.inductor.observe.journal import Event
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy, Settings
from gemmdb.table.measurement import Measurement
from gemmdb.table.reader import Table

Find = Callable[[Query], Hit | None]


def nothing(query: Query) -> None:
    """A miss."""


class FakeSession(Session):
    """`find` answers queries, `untuned`, `certain`, `without_cutlass` and `dense` those of that
    mode. `declines`: why nothing is tuned live. `why`: what `explain_miss` says."""

    def __init__(
        self, find: Find = nothing, policy: Policy | None = None, identity: str | None = None,
        user_table: Path | None = None, *, untuned: Find = nothing, certain: Find = nothing,
        without_cutlass: Find = nothing, dense: Find = nothing,
        kernel: Callable[..., Hit | None] | None = None, declines: str = "", why: str = "", tables: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        super().__init__(policy or Policy(), identity, user_table)
        self._modes = {
            Mode.POLICY: find, Mode.UNTUNED: untuned, Mode.CERTAIN: certain, Mode.WITHOUT_CUTLASS: without_cutlass,
            Mode.DENSE: dense,
        }  # fmt: skip
        self._kernel, self._declines, self._why, self._tables = kernel, declines, why, tables

    def _find(self, query: Query, mode: Mode) -> Hit | None:
        return self._modes[mode](query)

    def best_kernel(self, query: Query, allowed: Callable[[Config], bool]) -> Hit | None:
        return None if self._kernel is None else self._kernel(query, allowed)

    def explain_miss(self, query: Query) -> str:
        return self._why

    def tuning_rejection(self, query: Query) -> Rejected | None:
        return Rejected(self._declines) if self._declines else None

    def tables(self) -> Sequence[Any]:
        return self._tables


def missed(user_table: Path, device: Device, *problems: Problem, **policy: Any) -> list[Decision]:
    """The decisions of a graph whose GEMMs all miss under live tuning. `policy`: fields of the Policy."""
    session = FakeSession(policy=Policy(**{"on_miss": "live", "live_s": 5.0, **policy}), user_table=user_table)
    return [Decision(session, Query(one, device), None, Event(one.text, "live", note="no row")) for one in problems]


def stored() -> list[Measurement]:
    """The rows of the user's table; none if there is no such file."""
    path = Settings.read().user_table
    if not path.exists():
        return []
    with Table.open(path) as table:
        return list(table.measurements())
