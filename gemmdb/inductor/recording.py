"""Record mode: the compiled GEMMs of a program as lines of JSON, appended under a file lock."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gemmdb.inductor.journal import JOURNAL, Event


class Recording:
    """Collects the products of the graphs that become ready, and how often each graph runs, until `stop`, the end of a
    `with` block, or the end of the program."""

    def __init__(self, path: Path, on_stop: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self._graphs: list[tuple[list[Event], list[int]]] = []
        self._lock = threading.Lock()
        self._on_stop = on_stop
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

    def __call__(self, events: list[Event], artefact: Any) -> None:
        """Take note of one graph; a listener of the Journal."""
        calls = [0]
        if artefact is not None:
            from gemmdb.inductor.adapter import hooks

            def called() -> None:
                calls[0] += 1

            hooks.count_calls(artefact, called)
        with self._lock:
            self._graphs.append((events, calls))

    def lines(self) -> list[str]:
        """One JSON object per distinct product: `problem`, `count` (occurrences in compiled graphs), `calls` (times
        it ran), `device`, `ranges`; GEMMs that gemmdb does not steer have `uncovered` in place of `problem`."""
        merged: dict[tuple[str, str, str, str], list[int]] = {}
        with self._lock:
            for events, calls in self._graphs:
                for event in events:
                    kind = "uncovered" if event.rung == "uncovered" else "problem"
                    ranges = json.dumps(dict(event.ranges), sort_keys=True)
                    entry = merged.setdefault((kind, event.problem, event.device, ranges), [0, 0])
                    entry[0] += 1
                    entry[1] += calls[0]
        return [
            json.dumps({kind: text, "count": n, "calls": calls, "device": device, "ranges": json.loads(ranges)})
            for (kind, text, device, ranges), (n, calls) in merged.items()
        ]

    def write(self) -> None:
        """Append what was seen, once."""
        lines = self.lines()
        with self._lock:
            self._graphs.clear()
        if lines:
            append(self.path, lines)


def append(path: Path, lines: list[str]) -> None:
    """Append whole lines to `path` in one write under an exclusive lock, so that concurrent writers lose nothing."""
    data = "".join(line + "\n" for line in lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file, _locked(file):
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _locked(file: Any) -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    import fcntl

    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
