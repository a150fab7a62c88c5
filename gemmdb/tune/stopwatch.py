"""Times each call of a program's compiled graphs for `gemmdb tune`, without or with gemmdb.

Each process writes a file `times-<process id>.json` to a folder, at exit and every few seconds before:

    {"graphs": [{"products": ["mm 16x64x32", ...], "kernels": 1, "calls": 12, "us": [103.2, ...]}]}

`products`: the names of the GEMMs, with the sizes of the calls: calls of different sizes have times of their own.
`kernels`: how many of the GEMMs do not run ATen. `us`: microseconds of single calls.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.files import replacing
from gemmdb.inductor.decide.session import ForcedSession
from gemmdb.inductor.entry import active
from gemmdb.inductor.entry.enable import enable, install
from gemmdb.inductor.observe.calls import SizeReader
from gemmdb.inductor.observe.journal import JOURNAL, SEARCH, Event
from gemmdb.inductor.observe.recording import at_child_exit
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.workload.seen import MAX_SEEN, Sizes

log = logging.getLogger("gemmdb")
INTERVAL_S = 10.0
"""Maximum seconds between two writes while the program runs. Writes are more frequent at the start: killed workers do
not write at exit."""
FIRST_INTERVAL_S = 0.5
WARMUP_CALLS = 2
"""Warmup calls of a graph, which load kernels and fill caches and are not timed."""
MAX_TIMED_CALLS = 1_000
"""Maximum number of timed calls of a graph, right after the warmup."""


@dataclass
class GraphTimes:
    """The calls of one compiled graph with the same sizes. `all_sizes`: those of the same graph with any sizes;
    `waiting`: pairs of CUDA events that have not been read."""

    products: list[str]
    kernels: int
    on_gpu: bool
    all_sizes: Mapping[tuple[int, ...], GraphTimes]
    calls: int = 0
    us: list[float] = field(default_factory=list)
    waiting: deque[tuple[Any, Any]] = field(default_factory=deque)

    def __call__(self, run: Callable[[Any], Any], inputs: Any) -> Any:
        """Run a call of the graph."""
        self.calls += 1
        if self._is_warmup() or len(self.us) + len(self.waiting) >= MAX_TIMED_CALLS:
            return run(inputs)
        if self.on_gpu:
            return self._on_gpu(run, inputs)
        start = time.perf_counter()
        result = run(inputs)
        self.us.append((time.perf_counter() - start) * 1e6)
        return result

    def _is_warmup(self) -> bool:
        return self.calls <= WARMUP_CALLS and sum(one.calls for one in self.all_sizes.values()) <= WARMUP_CALLS

    def _on_gpu(self, run: Callable[[Any], Any], inputs: Any) -> Any:
        import torch

        place = next((one.device for one in inputs if isinstance(one, torch.Tensor) and one.is_cuda), None)
        with torch.cuda.device(place):  # None keeps the current device.
            if _capturing():
                return run(inputs)  # Otherwise the events would become part of the program's CUDA graph.
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            result = run(inputs)
            end.record()
            self.waiting.append((start, end))
            self.read(wait=False)
            return result

    def read(self, wait: bool) -> None:
        """Read the events of finished calls; with `wait`, of all calls. Nothing is read during a CUDA graph capture,
        since a query would end it."""
        if self.waiting and _capturing():
            return
        while self.waiting and (wait or self.waiting[0][1].query()):
            start, end = self.waiting.popleft()
            end.synchronize()
            self.us.append(start.elapsed_time(end) * 1e3)


def _capturing() -> bool:
    import torch

    return bool(torch.cuda.is_current_stream_capturing())


class Stopwatch:
    """Listens to the journal and times each graph that becomes ready."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._graphs: list[GraphTimes] = []
        self._lock = threading.RLock()
        self._started = self._written = time.monotonic()

    def __call__(self, events: list[Event], artefact: Any) -> None:
        """Time one graph that became ready; the Journal calls this."""
        if artefact is None:
            return
        # Imported here because they import torch: the program must import it first.
        from gemmdb.inductor.lower.adapter import hooks

        known = [event for event in events if event.rung != "uncovered"]
        kernels = sum(event.config not in ("", ATEN.text, SEARCH) for event in known)
        on_gpu = any(Device.parse(event.device).kind == "cuda" for event in known if event.device)
        reader = SizeReader(events, hooks.places_of(artefact))
        graphs: dict[tuple[int, ...], GraphTimes] = {}

        def of(values: tuple[int, ...]) -> GraphTimes:
            with self._lock:
                values = values if values in graphs or len(graphs) < MAX_SEEN else ()
                if values not in graphs:
                    products = sorted(map(_name, events, reader.of(values)))
                    self._graphs.append(graphs.setdefault(values, GraphTimes(products, kernels, on_gpu, graphs)))
                return graphs[values]

        def call(run: Callable[[Any], Any], inputs: Any) -> Any:
            values = reader.read(inputs)
            graph = graphs.get(values) or of(values)
            result = graph(run, inputs)
            if self._is_due():
                self.write(wait=False)
            return result

        hooks.around_calls(artefact, call)

    def forget(self) -> None:
        """Discard the calls so far. Used in a forked child: they belong to the parent."""
        self._lock = threading.RLock()
        for graph in self._graphs:
            graph.calls, graph.us, graph.waiting = 0, [], deque()

    def _is_due(self) -> bool:
        now = time.monotonic()
        return now - self._written > min(INTERVAL_S, FIRST_INTERVAL_S + (now - self._started) / 4)

    def write(self, wait: bool = True) -> None:
        """Write the times. A failure is only a warning: it must not end the program."""
        with self._lock:
            self._written = time.monotonic()
            try:
                for graph in self._graphs:
                    graph.read(wait)
                names = ("products", "kernels", "calls", "us")
                graphs = [{name: getattr(graph, name) for name in names} for graph in self._graphs]
                with replacing(self._folder / f"times-{os.getpid()}.json") as part:
                    part.write_text(json.dumps({"graphs": graphs}))
            except Exception as error:
                log.warning("gemmdb cannot write the times of graphs: %s", error)


def start(folder: str, with_gemmdb: bool) -> Stopwatch:
    """Time every graph of this process and write the times to `folder`. `with_gemmdb`: all compiles use gemmdb,
    otherwise none."""
    if with_gemmdb:
        enable()
    else:
        install()
        active.pin(ForcedSession(None, "record"))
    watch = Stopwatch(Path(folder))
    JOURNAL.listeners.append(watch)
    atexit.register(watch.write)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=watch.forget)
    at_child_exit(watch, Stopwatch.write)
    return watch


def _name(event: Event, sizes: Sizes = ()) -> str:
    """Return the GEMM's name without the parts that a lowering may change: operand layouts, casts and fusions. `sizes`:
    those of a call, empty for the recorded ones."""
    if event.rung == "uncovered":
        return event.problem.partition(":")[0]
    try:
        problem = Problem.parse(event.problem)
    except InputError:
        return event.problem
    m, n, k = ({"m": problem.m, "n": problem.n, "k": problem.k} | dict(sizes)).values()
    return f"{problem.op} {problem.batch}x{m}x{n}x{k}"
