"""Journal: which GEMMs were compiled, and what became of each.

The events of a graph travel inside the compiled artefact (`lower.adapter.hooks`), so that a graph from the FX graph
cache or the AOTAutograd cache reports the same events as the compile that made it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN
from gemmdb.rejected import Rejected

log = logging.getLogger("gemmdb")
SEARCH = "inductor:search"
"""The config of an event whose GEMM Inductor searches, because the user's own settings ask for it."""
ONLY_ATEN = "ATen is the only kernel for it"
"""How a note begins that says that no other kernel can serve a GEMM."""


@dataclass(frozen=True)
class Event:
    """One GEMM of one graph. `rung`: where the answer came from, `aten` and `live` for a miss, `uncovered` for a GEMM
    that gemmdb does not handle (`problem` is then its name). `config`: canonical text of what was lowered. `note`: why
    it is not what the table said. `module`, `source`: where it comes from in the user's code, as an Origin of a
    workload says it; the first program that compiled the graph says so for all that get it from the cache."""

    problem: str
    rung: str
    config: str = ""
    device: str = ""
    expected_us: float | None = None
    speedup: float | None = None
    table: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    ranges: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    module: str = ""
    source: str = ""

    @property
    def outcome(self) -> tuple[str, ...]:
        """What GEMMs have in common that `stats` counts as one entry."""
        return self.problem, self.rung, self.config, self.note, self.device

    @property
    def only_aten(self) -> bool:
        """Whether no kernel but ATen can serve it, so that it is no miss."""
        return self.rung == "aten" and ONLY_ATEN in self.note

    def answered(self, hit: Hit) -> Event:
        """The event with a lookup's answer."""
        return replace(
            self, rung=hit.rung, config=hit.config.text, table=hit.table, expected_us=hit.expected_us,
            speedup=hit.speedup, evidence=hit.evidence,
        )  # fmt: skip

    def refused(self, why: str | Rejected) -> Event:
        """The event of a GEMM that is lowered to ATen instead of `config`. It expects the time of ATen."""
        aten_us, speedup = self.expected_us, self.speedup
        if aten_us is not None and speedup is not None:
            aten_us, speedup = aten_us * speedup, 1.0
        return replace(self, expected_us=aten_us, speedup=speedup, config=ATEN.text, note=str(why))


class Journal:
    """All events of the process. `graphs`: how many graphs they are of. `pending`: those of the graph that this thread
    is compiling."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._local = threading.local()
        self.events: list[Event] = []
        self.errors: list[str] = []
        self.graphs = 0
        self.listeners: list[Callable[[list[Event], Any], None]] = []

    def pending(self) -> list[Event]:
        """The events of the graph being compiled in this thread, not yet part of the journal."""
        return list(self._entries().values())

    def enter(self, event: Event, entry: object = None) -> None:
        """Add the event of one GEMM of the graph that this thread compiles. `entry`: its name for `correct`, None for
        an event that stays as it is."""
        self._entries()[object() if entry is None else entry] = event

    def correct(self, entry: object, change: Callable[[Event], Event]) -> None:
        """Replace a pending event by `change(event)`. Without such an entry nothing happens."""
        entries = self._entries()
        if entry in entries:
            entries[entry] = change(entries[entry])

    def put(self, entry: object, event: Event) -> None:
        """Replace a pending event by another. Without such an entry nothing happens."""
        self.correct(entry, lambda _: event)

    def read(self, entry: object) -> Event | None:
        """The pending event of that entry."""
        return self._entries().get(entry)

    def take(self) -> str:
        """The pending events as JSON; nothing is pending afterwards."""
        events = self.pending()
        self.drop()
        return json.dumps([asdict(event) for event in events], default=str)

    def entries(self) -> Mapping[object, Event]:
        """What is pending now, for `restore`."""
        return dict(self._entries())

    def restore(self, entries: Mapping[object, Event]) -> None:
        """Make these the pending events again: what came since belongs to an attempt that failed."""
        self._local.entries, self._local.provisional = dict(entries), False

    def drop(self) -> None:
        """Forget what is pending: its compile failed."""
        self._local.entries, self._local.provisional = {}, False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, another graph is compiled in this thread, of which nothing is kept."""
        entries, provisional = self._entries(), self.provisional
        self.drop()
        try:
            yield
        finally:
            self._local.entries, self._local.provisional = entries, provisional

    def _entries(self) -> dict[object, Event]:
        if not hasattr(self._local, "entries"):
            self._local.entries = {}
        entries: dict[object, Event] = self._local.entries
        return entries

    @property
    def provisional(self) -> bool:
        """Whether no cache may keep the graph being compiled in this thread: live tuning ran out of time for one of its
        GEMMs, or its code is only right for the values of its constants."""
        return bool(getattr(self._local, "provisional", False))

    @provisional.setter
    def provisional(self, value: bool) -> None:
        self._local.provisional = value

    def add(self, text: str | None, artefact: Any = None) -> None:
        """Enter the events of a compiled graph, cold or from a cache; `artefact` is the graph, None for AOTInductor."""
        events = [Event(**item) for item in json.loads(text or "[]")]
        if not events:
            return
        with self._lock:
            self.events.extend(events)
            self.graphs += 1
        for listener in list(self.listeners):
            listener(events, artefact)

    def error(self, text: str) -> None:
        """Note a failure inside gemmdb; the compile went on without it."""
        with self._lock:
            self.errors.append(text)

    def failure(self, where: str, error: Exception) -> None:
        """Note an exception inside gemmdb, here and in the log; the compile goes on without gemmdb."""
        text = f"{where}: {type(error).__name__}: {error}"
        self.error(text)
        log.warning("gemmdb failed, Inductor goes on without it: %s", text, exc_info=log.isEnabledFor(logging.DEBUG))

    def clear(self) -> None:
        """Start over."""
        with self._lock:
            self.events.clear()
            self.errors.clear()
            self.graphs = 0


JOURNAL = Journal()


def only_aten_reason(note: str) -> str:
    """The first reason of a note if it says that ATen is the only kernel; empty if it does not."""
    first = note.partition("; ")[0]
    return first if first.startswith(ONLY_ATEN) else ""
