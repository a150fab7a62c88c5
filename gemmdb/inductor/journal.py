"""Journal: which products were compiled, and what became of each. Right on warm caches too.

The events of a graph travel inside the compiled artefact (adapter.hook_artefacts), so that a graph that comes out of
the FX graph cache or the AOTAutograd cache reports the same events as the compile that made it.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gemmdb.hit import RUNGS
from gemmdb.kernels.config import ATEN


@dataclass
class Event:
    """One product of one graph. `rung`: where the answer came from, `aten` and `live` for a miss, `uncovered` for a
    GEMM that gemmdb does not steer (`problem` is then its name). `config`: canonical text of what was lowered. `note`:
    why it is not what the table said."""

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

    def refuse(self, why: str) -> None:
        """ATen is lowered instead of `config`: say so, and expect of it what ATen was measured at."""
        if self.expected_us is not None and self.speedup is not None:
            self.expected_us, self.speedup = self.expected_us * self.speedup, 1.0
        self.config, self.note = ATEN.text, why


class Journal:
    """All events of the process. `pending` are those of the graph that this thread is compiling."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._local = threading.local()
        self.events: list[Event] = []
        self.errors: list[str] = []
        self.listeners: list[Callable[[list[Event], Any], None]] = []

    def pending(self) -> list[Event]:
        """The events of the graph being compiled in this thread, not yet part of the journal."""
        if not hasattr(self._local, "pending"):
            self._local.pending = []
        events: list[Event] = self._local.pending
        return events

    def take(self) -> str:
        """The pending events as JSON; nothing is pending afterwards."""
        events = self.pending()
        self._local.pending, self._local.provisional = [], False
        return json.dumps([asdict(event) for event in events], default=str)

    def drop(self) -> None:
        """Forget what is pending: its compile failed."""
        self._local.pending, self._local.provisional = [], False

    @property
    def provisional(self) -> bool:
        """Whether the graph being compiled in this thread is to be compiled anew next time: what was decided for some
        of its products is only what could be decided now, or what was made of its constants holds for these alone."""
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
        for listener in list(self.listeners):
            listener(events, artefact)

    def error(self, text: str) -> None:
        """Note a failure inside gemmdb; the compile went on without it."""
        with self._lock:
            self.errors.append(text)

    def clear(self) -> None:
        """Start over."""
        with self._lock:
            self.events.clear()
            self.errors.clear()


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
    """Forget every event and start counting benchmarks anew."""
    JOURNAL.clear()
    BENCHMARKS.clear()


def stats() -> dict[str, Any]:
    """What was compiled since the start or `reset_stats`, JSON-ready, also when graphs came from a warm cache.

    `products`: one entry per distinct outcome with `problem`, `rung`, `backend`, `kernel`, `config`, `expected_us`,
    `speedup_vs_aten`, `table`, `evidence`, `ranges`, `note` and `count`; `rungs`: products per rung; `hits`, `misses`;
    `uncovered`: GEMMs by name that gemmdb does not steer; `benchmarked`: times that Inductor benchmarked a choice list
    or a padding; `errors`: failures inside gemmdb, which never fail a compile.
    """
    rungs: Counter[str] = Counter()
    uncovered: Counter[str] = Counter()
    merged: dict[tuple[str, ...], dict[str, Any]] = {}
    for event in list(JOURNAL.events):
        if event.rung == "uncovered":
            uncovered[event.problem] += 1
            continue
        rungs[event.rung] += 1
        identity = (event.problem, event.rung, event.config, event.note, event.device)
        entry = merged.setdefault(identity, _entry(event))
        entry["count"] += 1
    hits = sum(rungs[rung] for rung in (*RUNGS, "forced"))
    return {
        "products": list(merged.values()),
        "rungs": dict(rungs),
        "hits": hits,
        "misses": sum(rungs.values()) - hits,
        "uncovered": dict(uncovered),
        "benchmarked": BENCHMARKS.tick(),
        "errors": list(JOURNAL.errors),
    }


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
