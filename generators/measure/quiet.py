"""Timing on a quiet machine: wait for one, and time disturbed measurements again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic, sleep
from typing import TypeVar

from gemmdb.devices import load
from gemmdb.devices.load import Load
from gemmdb.generators.backend import Backend, Outcome, silent
from gemmdb.generators.estimate import PATIENCE_S
from gemmdb.kernels.config import ATEN
from gemmdb.table.measurement import NOISY

POLL_S = 1.0
"""Seconds between checks whether others still use the devices."""
WAITING_TEXT, TIMING_TEXT = "waiting for a quiet machine", "timing"
"""What is said when it waits, and when that ends."""
MAX_DISTURBED = 3
"""Problems in a row of which all times were disturbed, after which timing stops."""
T = TypeVar("T")


@dataclass
class Watch:
    """Monitor the load from other processes during timing. `threads`: number of timed threads; `patience_s`: how long
    it may still wait; `say`: called when it waits; `given_up`: ends the waiting early. `last`: the last load,
    None if unknown."""

    threads: int | None = None
    patience_s: float = PATIENCE_S
    say: Callable[[str], None] = silent
    last: Load | None = field(default=None, init=False)
    given_up: Callable[[], bool] = lambda: False
    _looked: bool = field(default=False, init=False)

    def timed(self, measure: Callable[[], T]) -> tuple[T, bool]:
        """Return (result of `measure`, whether other processes disturbed it). If they did, it waits until the machine
        is quiet and measures once more, as long as it has patience."""
        if not self._looked or (self.last is not None and self.last.disturbs):
            self._looked = True
            self._wait()
        found, disturbed = self._watched(measure)
        if disturbed and self._wait():
            found, disturbed = self._watched(measure)
        return found, disturbed

    def _watched(self, measure: Callable[[], T]) -> tuple[T, bool]:
        before = load.reading()
        found = measure()
        seen = load.between(before, load.reading(), self.threads)
        if seen is not None:  # A very short measurement gives no load: keep the previous one.
            self.last = seen
        return found, self.last is not None and self.last.disturbs

    def _wait(self) -> bool:
        """Wait for a quiet machine. Returns whether there was patience left to check."""
        if self.patience_s <= 0:
            return False
        start = monotonic()
        waited = False

        def say(busy: Load) -> None:
            nonlocal waited
            waited = True
            self.say(f"{WAITING_TEXT}: {busy.text}")

        self.last = load.wait(self.patience_s, self.threads, say, self.given_up)
        if waited:
            self.say(TIMING_TEXT)
        self.patience_s -= max(monotonic() - start - load.SAMPLE_S, 0.0)  # The first check is free.
        return True


@dataclass
class Disturbances:
    """Problems in a row of which all times were disturbed."""

    in_a_row: int = 0

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Count a measured problem. One without times tells nothing."""
        if times := [one for one in outcomes if one.times]:
            self.in_a_row = self.in_a_row + 1 if all(one.disturbed for one in times) else 0

    def why(self, backend: Backend) -> str:
        """Return why nothing more should be timed: what others use. Empty if it should."""
        if self.in_a_row < MAX_DISTURBED:
            return ""
        return backend.occupied() or "other programs disturbed the timings"


def wait(backend: Backend, say: Callable[[str], None] = silent) -> str:
    """Wait at most PATIENCE_S while others use the devices. Returns the remaining use (see `Backend.busy`)."""
    until = monotonic() + PATIENCE_S
    while (busy := backend.busy()) and monotonic() < until:
        say(f"{WAITING_TEXT}: {busy}")
        sleep(POLL_S)
    return busy


def idle(backend: Backend, limit_s: float, say: Callable[[str], None] = silent) -> str:
    """Wait at most `limit_s` seconds until nobody else uses what the backend times on. Returns the remaining use (see
    `Backend.occupied`), empty if there is none."""
    until = monotonic() + limit_s
    while (busy := backend.occupied()) and monotonic() < until:
        say(f"{WAITING_TEXT}, at most {limit_s:.0f} s: {busy}")
        sleep(min(POLL_S, max(until - monotonic(), 0.0)))
    return busy


def judged(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes of one full measurement; all times count as disturbed if the reference's were unsteady."""
    reference = next((o.times for o in outcomes if o.config == ATEN and o.times), None)
    if reference is None or reference.spread <= NOISY:
        return list(outcomes)
    return [replace(one, disturbed=True) if one.times else one for one in outcomes]
