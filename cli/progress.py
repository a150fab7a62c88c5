"""What a running build shows on stderr: a progress bar on a terminal, else an occasional line."""

from __future__ import annotations

import sys
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

from gemmdb.cli.output import note

if TYPE_CHECKING:
    from gemmdb.generators.interfaces.progress import State

QUIET_SECONDS = 20.0
"""Seconds between lines without a terminal, for example in a CI log."""


class BuildProgress:
    """A `gemmdb.generators.interfaces.progress.Progress`, to be used as a context manager."""

    def __init__(self) -> None:
        # Imported here because rich takes 60 ms to import.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.last: State | None = None
        self._said = monotonic()
        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=None, left="")

    def __enter__(self) -> BuildProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, state: State) -> None:
        """Show `state`."""
        self.last = state
        text = state.phase if state.current is None else f"{state.phase} {sizes(state)}"
        self._bar.update(self._task, total=state.total, completed=state.done, description=text, left=left(state.eta_s))
        if self._bar.disable and monotonic() - self._said >= QUIET_SECONDS:
            self._said = monotonic()
            note(f"{state.done}/{state.total} problems, {text} {left(state.eta_s)}")


def sizes(state: State) -> str:
    """The current problem in short form: `mm 16x4096x4096 bf16`."""
    if state.current is None:
        return ""
    problem = state.current
    batch = f"{problem.batch}x" if problem.spec.batched else ""
    return f"{problem.op} {batch}{problem.m}x{problem.n}x{problem.k} {problem.a.dtype}"


def left(seconds: float | None) -> str:
    """The time left, as in `about 3 min left`; empty while it is unknown."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"about {seconds:.0f} s left"
    if seconds < 90 * 60:
        return f"about {seconds / 60:.0f} min left"
    return f"about {seconds / 3600:.1f} h left"
