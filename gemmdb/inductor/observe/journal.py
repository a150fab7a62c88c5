"""Journal: which products were compiled, and what became of each. Right on warm caches too.

The events of a graph travel inside the compiled artefact (adapter.hook_artefacts), so that a graph that comes out of
the FX graph cache or the AOTAutograd cache reports the same events as the compile that made it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gemmdb.hit import RUNGS, Hit
from gemmdb.inductor.observe.notebook import Stats
from gemmdb.inductor.observe.phases import PHASES
from gemmdb.kernels.config import ATEN

log = logging.getLogger("gemmdb")
SEARCH = "inductor:search"
"""The config of an event whose product Inductor searches, because the user's own settings ask for it."""


@dataclass(frozen=True)
class Event:
    """One product of one graph. `rung`: where the answer came from, `aten` and `live` for a miss, `uncovered` for a
    GEMM that gemmdb does not steer (`problem` is then its name). `config`: canonical text of what was lowered. `note`:
    why it is not what the table said. `module`, `source`: where it comes from in the user's code, as an Origin of a
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
        """What products have in common that `stats` counts as one entry."""
        return self.problem, self.rung, self.config, self.note, self.device

    def answered(self, hit: Hit) -> Event:
        """The event with a lookup's answer."""
        return replace(
            self, rung=hit.rung, config=hit.config.text, table=hit.table, expected_us=hit.expected_us,
            speedup=hit.speedup, evidence=hit.evidence,
        )  # fmt: skip

    def refused(self, why: str) -> Event:
        """The event of a product that is lowered to ATen instead of `config`. It expects the time of ATen."""
        aten_us, speedup = self.expected_us, self.speedup
        if aten_us is not None and speedup is not None:
            aten_us, speedup = aten_us * speedup, 1.0
        return replace(self, expected_us=aten_us, speedup=speedup, config=ATEN.text, note=why)


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
        """Add the event of one product of the graph being compiled in this thread. `entry`: what `correct` names it by;
        None for an event that stays as it is."""
        self._entries()[object() if entry is None else entry] = event

    def correct(self, entry: object, change: Callable[[Event], Event]) -> None:
        """Replace a pending event by `change(event)`. Without such an entry nothing happens."""
        entries = self._entries()
        if entry in entries:
            entries[entry] = change(entries[entry])

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
        """Let that be pending which was: what came since belongs to an attempt that failed."""
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
        products, or its code holds for the values of its constants only."""
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


class Benchmarks:
    """How often Inductor has benchmarked since `clear`. Inductor's own counter can be reset by anyone at any time
    (torch._dynamo.reset does), so its rises are added up at every compile."""

    def __init__(self) -> None:
        self.reader: Callable[[], int] = int
        self._seen = 0
        self._total = 0

    def tick(self) -> int:
        """Read the counter; returns the total."""
        now = self.reader()
        self._total += now - self._seen if now >= self._seen else now
        self._seen = now
        return self._total

    def clear(self) -> None:
        """Start over."""
        self.tick()
        self._total = 0


BENCHMARKS = Benchmarks()


def reset_stats() -> None:
    """Forget every event, and start counting benchmarks and seconds anew."""
    JOURNAL.clear()
    BENCHMARKS.clear()
    PHASES.clear()


def stats() -> Stats:
    """What was compiled since the start or `reset_stats`, as a dict, JSON-ready, also of graphs from a warm cache.

    `products`: one entry per distinct outcome with `problem`, `rung`, `backend`, `kernel`, `config`, `expected_us`,
    `speedup_vs_aten`, `table`, `evidence`, `ranges`, `note` and `count`; `rungs`: products per rung; `hits`, `misses`;
    `uncovered`: GEMMs by name that gemmdb does not steer; `benchmarked`: times that Inductor benchmarked a choice list
    or a padding; `errors`: failures inside gemmdb, which never fail a compile; `seconds`: of gemmdb's share in the
    compiles, by phase (gemmdb.inductor.observe.phases).
    """
    rungs: Counter[str] = Counter()
    uncovered: Counter[str] = Counter()
    merged: dict[tuple[str, ...], dict[str, Any]] = {}
    for event in list(JOURNAL.events):
        if event.rung == "uncovered":
            uncovered[event.problem] += 1
            continue
        rungs[event.rung] += 1
        entry = merged.setdefault(event.outcome, _entry(event))
        entry["count"] += 1
    hits = sum(rungs[rung] for rung in (*RUNGS, "forced"))
    found = {
        "products": list(merged.values()),
        "rungs": dict(rungs),
        "hits": hits,
        "misses": sum(rungs.values()) - hits,
        "uncovered": dict(uncovered),
        "benchmarked": BENCHMARKS.tick(),
        "errors": list(JOURNAL.errors),
        "seconds": PHASES.seconds(),
    }
    return Stats(found)


def _entry(event: Event) -> dict[str, Any]:
    backend, _, rest = event.config.partition(":")
    return {
        "problem": event.problem,
        "rung": event.rung,
        "backend": backend,
        "kernel": rest.partition(" ")[0],
        "config": event.config,
        "expected_us": event.expected_us,
        "speedup_vs_aten": event.speedup,
        "table": event.table,
        "evidence": dict(event.evidence),
        "ranges": dict(event.ranges),
        "device": event.device,
        "note": event.note,
        "count": 0,
    }
