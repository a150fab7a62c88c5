"""Record mode: the compiled GEMMs of a program as lines of JSON, appended under a file lock.

What was compiled is written at once, so that a server that is killed has recorded it; how often it ran is added at the
end, and now and then before, as lines with a count of 0. A reader adds the lines of a product up.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gemmdb.inductor.journal import JOURNAL, Event
from gemmdb.workload.appending import append_lines

log = logging.getLogger("gemmdb")
INTERVAL_S = 10.0
"""Calls are written at most this often while the program runs."""


class Recording:
    """Writes the products of the graphs that become ready, and how often each graph runs, until `stop`, the end of a
    `with` block, or the end of the program."""

    def __init__(self, path: Path, on_stop: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self._graphs: list[tuple[list[Event], list[int]]] = []
        self._lock = threading.Lock()
        self._on_stop = on_stop
        self._stopped = False
        self._written = time.monotonic()
        _recordings.add(self)
        JOURNAL.listeners.append(self)
        atexit.register(self.write)

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop listening, and write."""
        with contextlib.suppress(ValueError):
            JOURNAL.listeners.remove(self)
        atexit.unregister(self.write)
        self._on_stop()
        self.write()
        self._stopped = True

    def __call__(self, events: list[Event], artefact: Any) -> None:
        """Write down one graph that became ready; a listener of the Journal."""
        self._append(lines([(events, 1, 0)]))
        if artefact is None:
            return
        from gemmdb.inductor.adapter import hooks

        calls = [0]

        def called() -> None:
            if self._stopped:
                return
            calls[0] += 1
            if time.monotonic() - self._written > INTERVAL_S:
                self.write()

        hooks.count_calls(artefact, called)
        with self._lock:
            self._graphs.append((events, calls))

    def write(self) -> None:
        """Append the calls since the last time."""
        with self._lock:
            self._written = time.monotonic()
            seen = [(events, 0, calls[0]) for events, calls in self._graphs if calls[0]]
            for _, calls in self._graphs:
                calls[0] = 0
        self._append(lines(seen))

    def forget(self) -> None:
        """Drop the calls since the last time: in a forked child, they are its parent's to write."""
        self._lock = threading.Lock()
        for _, calls in self._graphs:
            calls[0] = 0

    def _append(self, text: list[str]) -> None:
        """A workload that cannot be written is one warning, never the end of the program that is recorded."""
        try:
            if text:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                append_lines(self.path, text)
        except OSError as error:
            log.warning("gemmdb cannot record to %s: %s", self.path, error.strerror)


_recordings: weakref.WeakSet[Recording] = weakref.WeakSet()


def _forget() -> None:
    for recording in _recordings:
        recording.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def lines(graphs: Iterable[tuple[list[Event], int, int]]) -> list[str]:
    """One JSON object per distinct product of (events, count, calls): `problem`, `count` (occurrences in compiled
    graphs), `calls` (times it ran), `device`, `ranges`; GEMMs that gemmdb does not steer have `uncovered` in place of
    `problem`."""
    merged: dict[tuple[str, str, str, str], list[int]] = {}
    for events, count, calls in graphs:
        for event in events:
            kind = "uncovered" if event.rung == "uncovered" else "problem"
            ranges = json.dumps(dict(event.ranges), sort_keys=True)
            entry = merged.setdefault((kind, event.problem, event.device, ranges), [0, 0])
            entry[0] += count
            entry[1] += calls
    return [
        json.dumps({kind: text, "count": n, "calls": calls, "device": device, "ranges": json.loads(ranges)})
        for (kind, text, device, ranges), (n, calls) in merged.items()
    ]
