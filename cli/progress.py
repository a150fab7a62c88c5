"""Progress of a running build on stderr: a progress bar on a terminal, else regular lines."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from threading import Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from gemmdb.cli.output import count, note

if TYPE_CHECKING:
    from gemmdb.generators.progress import State

MIN_SLOWER = 1.1
"""From how many times on a busy machine is named in an estimate."""
QUIET_SECONDS = 5.0
"""Maximum seconds between two lines without a terminal, for example in a CI log."""


class Pulse:
    """A context manager that repeats the current step every few seconds while nothing else is printed."""

    def __init__(self) -> None:
        self._words, self._began, self._said = "", monotonic(), monotonic()
        self._ends: float | None = None
        self._lock, self._stop = Lock(), Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def begin(self, words: str, aloud: bool = True, left_s: float | None = None) -> None:
        """Start a step. It is printed immediately if `aloud`. `left_s`: expected seconds to the end of everything, None
        if unknown."""
        with self._lock:
            self._ends = None if left_s is None else monotonic() + left_s
            if words.partition(":")[0] != self._words.partition(":")[0]:  # Details may follow, as what it waits for.
                self._began = monotonic()
            self._words = words
            if aloud:
                self._note(words)

    def _note(self, text: str) -> None:
        self._said = monotonic()
        note(text)

    def _run(self) -> None:
        while not self._stop.wait(min(QUIET_SECONDS / 5, 1.0)):
            with self._lock:
                now = monotonic()
                if self._words and now - self._said >= QUIET_SECONDS:
                    lasted = f" ({now - self._began:.0f} s so far)" if now - self._began >= 1 else ""
                    ends = "" if self._ends is None or self._ends <= now else f", {left(self._ends - now)}"
                    self._note(f"{self._words}{lasted}{ends}")


class BuildProgress:
    """A `gemmdb.generators.progress.Progress`, to be used as a context manager."""

    def __init__(self) -> None:
        # Imported here because rich takes 60 ms to import.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._pulse = Pulse()
        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=None, left="")
        self._shown: AbstractContextManager[Any] = self._pulse if self._bar.disable else self._bar

    def __enter__(self) -> BuildProgress:
        self._pulse.begin("preparing", aloud=False)
        self._shown.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._shown.__exit__(*error)

    def update(self, state: State) -> None:
        """Show `state`. The first one with work to do also prints how much there is and how long it may take."""
        text = state.phase if state.current is None else f"{state.phase} {sizes(state)}"
        left_s = None if state.phase.startswith("waiting for") else state.eta_s  # Nobody knows how long others go on.
        self._bar.update(self._task, total=state.total, completed=state.done, description=text, left=left(left_s))
        if state.phase == "starting" and state.total > state.done:
            work = f"{count(state.total - state.done, 'problem')} to measure"
            note(", ".join(filter(None, (work, takes(state), beside(state.slower)))))
        words = f"{state.done}/{state.total} problems, {text}"
        self._pulse.begin(words, aloud=False, left_s=left_s)


def sizes(state: State) -> str:
    """Return the current problem in short form: `mm 16x4096x4096 bf16`."""
    if state.current is None:
        return ""
    problem = state.current
    batch = f"{problem.batch}x" if problem.spec.batched else ""
    return f"{problem.op} {batch}{problem.m}x{problem.n}x{problem.k} {problem.a.dtype}"


def takes(state: State) -> str:
    """Return how long a build takes, as in `about 90 s to 3 min`, with all sizes of ranges; empty if unknown."""
    least, most = (left(seconds).removesuffix(" left") for seconds in (state.eta_s, state.most_s))
    time = least if most in ("", least) else f"{least} to {most.removeprefix('about ')}"
    return f"{time} of the time limit" if state.limited else time


def beside(slower: float) -> str:
    """Say that an estimate counts other programs; empty if there are none. `slower`: how many times as long as on an
    idle machine it is."""
    return f"{slower:.1f} times as long as on an idle machine" if slower >= MIN_SLOWER else ""


def left(seconds: float | None) -> str:
    """Format the time left, as in `about 3 min left`; empty if unknown."""
    if seconds is None:
        return ""
    if seconds < 180:
        return f"about {seconds if seconds < 100 else round(seconds, -1):.0f} s left"
    if seconds < 90 * 60:
        return f"about {seconds / 60:.0f} min left"
    return f"about {seconds / 3600:.1f} h left"
