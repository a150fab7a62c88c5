"""Compile-time overhead of gemmdb in a process, in seconds per phase.

    with PHASES("lookup"):
        ...

Phases may nest: each one excludes its inner phases, so their sum is gemmdb's total overhead. Time from several threads
is added up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

NAMES = {
    "load": "importing gemmdb's part of Inductor",
    "tables": "opening the tables",
    "key": "adding to Inductor's cache keys",
    "passes": "walking the graphs",
    "lookup": "looking up GEMMs in the tables",
    "live": "live tuning",
    "generate": "generating code for trials",
    "compile": "compiling trials, or waiting for that",
    "trial": "benchmarking trials",
    "store": "storing trial results",
    "report": "events and log lines for compiled graphs",
}
"""The phases, in the order they run during a compile."""


class Phases:
    """Seconds per phase since the last `clear`, over all threads, by `clock`."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._local = threading.local()
        self._spent: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Charge the time inside the block to the phase `name`."""
        outer, self._local.inner = getattr(self._local, "inner", 0.0), 0.0
        start = self.clock()
        try:
            yield
        finally:
            took = self.clock() - start
            with self._lock:
                self._spent[name] = self._spent.get(name, 0.0) + took - self._local.inner
            self._local.inner = outer + took

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase that ran, in compile order."""
        with self._lock:
            return {name: self._spent[name] for name in NAMES if name in self._spent}

    def clear(self) -> None:
        """Start over."""
        with self._lock:
            self._spent.clear()


PHASES = Phases()
