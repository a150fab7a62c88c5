"""The mode in which `gemmdb freeze` runs a program: its compiles time what frozen ones cannot, and store it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmdb.inductor.entry import active
from gemmdb.inductor.entry.enable import install
from gemmdb.settings import Policy, Settings

if TYPE_CHECKING:
    from gemmdb.inductor.decide.session import Session

POLICY = Policy(on_miss="aten", confirm=True, confirm_s=15.0, horizontal=False)
"""No kernel of several GEMMs: a frozen compile has none, and each of its GEMMs needs rows of its own. The time limits
are longer than in a program that someone waits for."""


def start() -> None:
    """Let all compiles of this process confirm configs and choose algorithms, whatever the program enables."""

    def session() -> Session:
        from gemmdb.inductor.entry.table_session import TableSession  # It imports torch: the program must do so first.

        settings = Settings.read()
        return TableSession(POLICY.resolved(settings), settings=settings)

    active.pin(session)
    install()
