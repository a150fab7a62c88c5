"""Record mode: write a program's compiled GEMMs to a workload file, one per line.

Each graph is written as soon as it is compiled, so a killed server keeps its recording. Call counts are written every
few seconds and at exit, as lines with a count of 0.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gemmdb.errors import InputError
from gemmdb.inductor.observe.calls import CallCounter, Calls, no_calls
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.workload import entries
from gemmdb.workload.entries import Origin, Ranges
from gemmdb.workload.seen import Seen, merged

log = logging.getLogger("gemmdb")
Owner = TypeVar("Owner")
INTERVAL_S = 10.0
"""Seconds between two writes of call counts while the program runs."""


class Recording:
    """Write the GEMMs of each graph that is ready, and its calls, until `stop`, the end of a `with` block, or program
    exit."""

    def __init__(self, path: Path, on_stop: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self._graphs: list[tuple[list[Event], CallCounter]] = []
        self._lock = threading.Lock()
        self._on_stop = on_stop
        self._stopped = False
        self._written = time.monotonic()
        _recordings.add(self)
        JOURNAL.listeners.append(self)
        atexit.register(self.write)
        at_child_exit(self, Recording.write)

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop recording and write the remaining calls."""
        with contextlib.suppress(ValueError):
            JOURNAL.listeners.remove(self)
        atexit.unregister(self.write)
        self._on_stop()
        self.write()
        self._stopped = True

    def __call__(self, events: list[Event], artefact: Any) -> None:
        """Write one graph that is ready. Called by the Journal."""
        self._append(lines([(events, 1, no_calls(events))]))
        if artefact is None:
            return
        from gemmdb.inductor.lower.adapter import hooks

        calls = CallCounter(events, hooks.places_of(artefact))

        def counted(run: Callable[[Any], Any], inputs: Any) -> Any:
            if not self._stopped:
                calls.count(inputs)
                if time.monotonic() - self._written > INTERVAL_S:
                    self.write()
            return run(inputs)

        hooks.around_calls(artefact, counted)
        with self._lock:
            self._graphs.append((events, calls))

    def write(self) -> None:
        """Append the calls since the last write."""
        with self._lock:
            self._written = time.monotonic()
            taken = [(events, 0, calls.take()) for events, calls in self._graphs]
        self._append(lines(one for one in taken if one[2].number))

    def forget(self) -> None:
        """Drop the calls since the last write. For a forked child: the parent writes them."""
        self._lock = threading.Lock()
        for _, calls in self._graphs:
            calls.clear()

    def _append(self, found: list[str]) -> None:
        """Append lines. Log a failure as a warning: it must not stop the recorded program."""
        try:
            if found:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                entries.write(self.path, found)
        except (OSError, InputError) as error:
            log.warning("gemmdb cannot record to %s: %s", self.path, error)


def at_child_exit(owner: Owner, write: Callable[[Owner], None]) -> None:
    """Call `write(owner)` when a forked multiprocessing process exits, which skips `atexit`."""
    from multiprocessing import util

    def in_child(of: Owner) -> None:
        util.Finalize(None, write, (of,), exitpriority=10)

    util.register_after_fork(owner, in_child)


_recordings: weakref.WeakSet[Recording] = weakref.WeakSet()


def _forget() -> None:
    for recording in _recordings:
        recording.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def lines(graphs: Iterable[tuple[list[Event], int, Calls]]) -> list[str]:
    """Return one line per distinct GEMM of (events, count, calls): `count` occurrences in compiled graphs, executed by
    these `calls`."""
    found: dict[tuple[str, str, str, Ranges], Counts] = {}
    for events, count, calls in graphs:
        for event, seen in zip(events, calls.seen, strict=True):
            kind = "uncovered" if event.rung == "uncovered" else "problem"
            ranges = tuple(sorted((name, low, high) for name, (low, high) in event.ranges.items()))
            # Origins are reported once, when the graph is compiled.
            origins = entries.merged_origins([Origin(event.module, event.source)] if count else [])
            new = Counts(count, calls.number, origins, seen, event.computed)
            key = kind, event.problem, event.device, ranges
            found[key] = found[key].plus(new) if key in found else new
    return [
        entries.line(kind, name, one.count, one.calls, device, ranges, one.origins, one.seen, one.computed)
        for (kind, name, device, ranges), one in found.items()
    ]


@dataclass(frozen=True, slots=True)
class Counts:
    """What is counted of a GEMM: the fields of a workload's Entry."""

    count: int
    calls: int
    origins: tuple[Origin, ...]
    seen: Seen
    computed: bool

    def plus(self, other: Counts) -> Counts:
        """Add what is counted of another occurrence."""
        return Counts(
            self.count + other.count, self.calls + other.calls, entries.merged_origins(self.origins, other.origins),
            merged(self.seen, other.seen), self.computed and other.computed,
        )  # fmt: skip
