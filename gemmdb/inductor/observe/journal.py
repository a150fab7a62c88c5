"""Journal: the compiled GEMMs and the outcome for each.

A graph's events are stored in its compiled artifact (`lower.adapter.hooks`), so a graph loaded from the FX graph cache
or the AOTAutograd cache reports the same events as the compile that made it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gemmdb import outcome
from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN
from gemmdb.outcome import ONLY_ATEN, Outcome
from gemmdb.rejected import Rejected

log = logging.getLogger("gemmdb")
SEARCH = "inductor:search"
"""The config of an event whose GEMM Inductor autotunes because the user's settings ask for it."""


@dataclass(frozen=True)
class Event:
    """One GEMM of one graph. `rung`: the source of the answer; `aten` and `live` for a miss, `uncovered` for a GEMM
    that gemmdb does not handle (`problem` is then its name). `config`: canonical text of the lowered config. `note`:
    why it differs from the table's config. `module`, `source`: the GEMM's location in the user's code, as in a
    workload's Origin. A graph from the cache keeps the location in the program that first compiled it. `disturbed`:
    the time was taken only on a busy machine; it is good enough to weigh what may be saved, but never shown.
    `batch_invariant`: the compile asked for batch invariance. `computed`: as in a Query. `symbols`: of each
    symbolic size that is a product of inputs of the graph, its constant factor and their symbols."""

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
    disturbed: bool = False
    batch_invariant: bool = False
    computed: bool = False
    symbols: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def shown(self) -> tuple[float | None, float | None]:
        """`expected_us` and `speedup` as they are shown: None for what is no expectation. A kernel's speedup over ATen
        comes from quiet times."""
        if not self.disturbed:
            return self.expected_us, self.speedup
        return None, None if self.config == ATEN.text else self.speedup

    @property
    def outcome(self) -> Outcome:
        """What serves the GEMM, and why."""
        return outcome.of(self.rung, self.config, self.note, self.evidence, self.disturbed)

    @property
    def identity(self) -> tuple[str, ...]:
        """The fields that identify one entry of `stats`."""
        return self.problem, self.rung, self.config, self.note, self.device

    @property
    def only_aten(self) -> bool:
        """Whether only ATen can run the GEMM, so it does not count as a miss."""
        return self.rung == "aten" and ONLY_ATEN in self.note

    def succeeded(self, new: Event) -> Event:
        """Return a new event of the same GEMM, with what the pass knew of it."""
        return replace(
            new, device=self.device, ranges=self.ranges, module=self.module, source=self.source, computed=self.computed,
            symbols=self.symbols,
        )  # fmt: skip

    def answered(self, hit: Hit) -> Event:
        """Return the event for a lookup's answer."""
        return replace(
            self, rung=hit.rung, config=hit.config.text, table=hit.table, expected_us=hit.expected_us,
            speedup=hit.speedup, evidence=hit.evidence,
        )  # fmt: skip

    def refused(self, why: str | Rejected) -> Event:
        """Return the event of a GEMM that is lowered to ATen instead of `config`, with ATen's expected time."""
        aten_us, speedup = self.expected_us, self.speedup
        if aten_us is not None and speedup is not None:
            aten_us, speedup = aten_us * speedup, 1.0
        return replace(self, expected_us=aten_us, speedup=speedup, config=ATEN.text, note=str(why))


class Journal:
    """All events of the process. `graphs`: the number of compiled graphs. `frozen`: what the latest compile was frozen
    to, None if it was not. `pending`: events of the graph that this thread is compiling."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._local = threading.local()
        self.events: list[Event] = []
        self.errors: list[str] = []
        self.graphs = 0
        self.frozen: Mapping[str, Any] | None = None
        self.listeners: list[Callable[[list[Event], Any], None]] = []

    def pending(self) -> list[Event]:
        """The events of the graph this thread is compiling; not in the journal yet."""
        return list(self._entries().values())

    def enter(self, event: Event, entry: object = None) -> None:
        """Add the event of one GEMM of the graph this thread is compiling. `entry`: the key for `correct`, None for an
        event that never changes."""
        self._entries()[object() if entry is None else entry] = event

    def correct(self, entry: object, change: Callable[[Event], Event]) -> None:
        """Replace a pending event by `change(event)`. Does nothing without such an entry."""
        entries = self._entries()
        if entry in entries:
            entries[entry] = change(entries[entry])

    def put(self, entry: object, event: Event) -> None:
        """Replace a pending event by another. Does nothing without such an entry."""
        self.correct(entry, lambda _: event)

    def read(self, entry: object) -> Event | None:
        """Return the entry's pending event."""
        return self._entries().get(entry)

    def take(self, batch_invariant: bool = False) -> str:
        """Return the pending events as JSON and clear them. `batch_invariant`: whether the compile asked for that."""
        events = [replace(event, batch_invariant=batch_invariant) for event in self.pending()]
        self.drop()
        return json.dumps([asdict(event) for event in events], default=str)

    def entries(self) -> Mapping[object, Event]:
        """Return the pending events, for `restore`."""
        return dict(self._entries())

    def restore(self, entries: Mapping[object, Event]) -> None:
        """Restore these pending events after a failed attempt and drop those added since."""
        self.drop()
        self._local.entries = dict(entries)

    def drop(self) -> None:
        """Discard the pending events of a failed compile."""
        self._local.entries, self._local.provisional, self._local.bound = {}, False, False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Context manager for a nested compile in this thread: discard its events."""
        pending = self._entries(), self.provisional, self.bound
        self.drop()
        try:
            yield
        finally:
            self._local.entries, self._local.provisional, self._local.bound = pending

    def _entries(self) -> dict[object, Event]:
        if not hasattr(self._local, "entries"):
            self._local.entries = {}
        entries: dict[object, Event] = self._local.entries
        return entries

    @property
    def provisional(self) -> bool:
        """Whether caches must skip the graph that this thread is compiling, since another compile may do better: live
        tuning timed out on one of its GEMMs, or one of its kernels failed to compile."""
        return bool(getattr(self._local, "provisional", False))

    @provisional.setter
    def provisional(self, value: bool) -> None:
        self._local.provisional = value

    @property
    def bound(self) -> bool:
        """Whether the code of the graph that this thread is compiling relies on the alignment of its constants, so that
        nothing may store it: the keys of caches say nothing of that."""
        return bool(getattr(self._local, "bound", False))

    @bound.setter
    def bound(self, value: bool) -> None:
        self._local.bound = value

    def add(self, text: str | None, artefact: Any = None) -> None:
        """Add the events of a compiled graph, cold or from a cache. `artefact`: the graph, None for AOTInductor."""
        events = [Event(**item) for item in json.loads(text or "[]")]
        if not events:
            return
        with self._lock:
            self.events.extend(events)
            self.graphs += 1
        for listener in list(self.listeners):
            listener(events, artefact)

    def error(self, text: str) -> None:
        """Record a failure inside gemmdb; the compile continues without gemmdb."""
        with self._lock:
            self.errors.append(text)

    def failure(self, where: str, error: Exception) -> None:
        """Record and log an exception inside gemmdb; the compile continues without gemmdb."""
        text = f"{where}: {type(error).__name__}: {error}"
        self.error(text)
        log.warning("gemmdb failed; Inductor continues without it: %s", text, exc_info=log.isEnabledFor(logging.DEBUG))

    def clear(self) -> None:
        """Start over."""
        with self._lock:
            self.events.clear()
            self.errors.clear()
            self.graphs, self.frozen = 0, None


JOURNAL = Journal()


def only_aten_reason(note: str) -> str:
    """Return the first reason in a note that names ATen as the only kernel, else an empty string."""
    first = note.partition("; ")[0]
    return first if first.startswith(ONLY_ATEN) else ""
