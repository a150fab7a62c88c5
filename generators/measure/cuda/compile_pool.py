"""Pool of compile processes: several kinds share the processors, and artifacts that a measurement waits for go
first."""

from __future__ import annotations

import contextlib
import functools
import importlib
import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import product

from gemmdb.generators.measure.cuda.artifacts import Artifact, Built

WEIGHTS = {"cutlass": 0.7, "inductor": 0.15, "triton": 0.15}
"""Each kind's share of the processes while artifacts of all kinds wait: at the start of a build, nine of ten problems
wait for nvcc, which takes half a minute per artifact. Other kinds use what one kind does not need."""
URGENT_WEIGHT = 1.4
"""Share of a kind whose next artifact a winner waits for, unless nvcc compiles it. Such an artifact takes a second or
two, and then a GPU has work. With 0.15, three GPUs idled for 94% of seven minutes while 64 processors compiled."""
PRELOAD = "gemmdb.generators.measure.cuda.preload"


class Priority(IntEnum):
    """Compile priority. `URGENT`: a winner waits to be confirmed. `LATER`: its job waits for something slower
    anyway."""

    URGENT = 0
    NORMAL = 1
    LATER = 2


@dataclass(frozen=True)
class _Item:
    """An artifact that waits for a process or is being compiled. `work`: see `Artifact.work`."""

    artifact: Artifact
    kind: str
    work: str
    future: Future[Built] = field(default_factory=Future)


class CompilePool:
    """Compile artifacts for compute capability `capability` in at most `processes` parallel processes, which start on
    demand and stay. If one dies, the pool of its kind breaks, as in ProcessPoolExecutor: artifacts that were being
    compiled raise BrokenProcessPool, and waiting artifacts go to a new pool. `make`: makes the executor of a kind,
    default: local processes."""

    def __init__(self, capability: int, processes: int, make: Callable[[str], Executor] | None = None) -> None:
        self.capability, self.processes = capability, processes
        self._make = make or functools.partial(_local, processes)
        self._executors: dict[str, Executor] = {}
        self._waiting: dict[tuple[str, Priority], dict[str, _Item]] = {key: {} for key in product(WEIGHTS, Priority)}
        self._running: Counter[str] = Counter()
        self._running_work: set[str] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, artifact: Artifact, kind: str, priority: Priority) -> Future[Built]:
        """Queue an artifact; `kind` is a key of WEIGHTS."""
        item = _Item(artifact, kind, artifact.work)
        with self._changed:
            if self._closed:
                item.future.cancel()
                return item.future
            self._waiting[kind, priority][artifact.key] = item
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()
        return item.future

    def warm(self, kind: str, count: int) -> None:
        """Start `count` processes of a kind and preload their imports, which takes a second or two."""
        with contextlib.suppress(Exception):  # The first artifact will fail the same way.
            executor = self._executor(kind)
            for _ in range(count):
                executor.submit(preload_triton)

    def hurry(self, key: str, priority: Priority) -> None:
        """Raise the priority of a waiting artifact; never lower it."""
        with self._changed:
            for (kind, before), items in self._waiting.items():
                if priority < before and key in items:
                    self._waiting[kind, priority][key] = items.pop(key)
                    self._changed.notify_all()
                    return

    def close(self) -> None:
        """End the processes and cancel everything uncompiled. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            waiting = [item for items in self._waiting.values() for item in items.values()]
        for item in waiting:
            item.future.cancel()
        # An artifact in submission may still start a process.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._changed:
            executors, self._executors = list(self._executors.values()), {}
        for executor in executors:
            running = list((getattr(executor, "_processes", None) or {}).values())
            executor.shutdown(wait=False, cancel_futures=True)
            # Running compilations are no longer needed, and the interpreter would wait for them at exit.
            for process in running:
                process.terminate()

    def _run(self) -> None:
        # A separate thread hands artifacts over: an executor that breaks runs its callbacks with its locks held.
        while True:
            with self._changed:
                while not self._closed and (item := self._choose()) is None:
                    self._changed.wait()
                if self._closed:
                    return
            assert item is not None
            self._hand_over(item)

    def _choose(self) -> _Item | None:
        """Return the next artifact, which counts as running from now on. Call it with the lock held."""
        if self._running.total() >= self.processes:
            return None
        first = {kind: found for kind in WEIGHTS if (found := self._first(kind)) is not None}
        if not first:
            return None

        def load(kind: str) -> float:
            urgent = first[kind][0] is Priority.URGENT and kind != "cutlass"
            return self._running[kind] / (URGENT_WEIGHT if urgent else WEIGHTS[kind])

        kind = min(first, key=load)
        priority, item = first[kind]
        del self._waiting[kind, priority][item.artifact.key]
        self._running[kind] += 1
        self._running_work.add(item.work)
        return item

    def _first(self, kind: str) -> tuple[Priority, _Item] | None:
        """Return the first waiting artifact of a kind that shares no work with a running one: otherwise its process
        would only wait."""
        for priority in Priority:
            for item in self._waiting[kind, priority].values():
                if not item.work or item.work not in self._running_work:
                    return priority, item
        return None

    def _hand_over(self, item: _Item) -> None:
        item.future.set_running_or_notify_cancel()
        inner: Future[Built] = Future()
        try:
            try:
                inner = self._executor(item.kind).submit(build, item.artifact, self.capability)
            except BrokenProcessPool:
                with self._changed:
                    self._executors.pop(item.kind, None)
                inner = self._executor(item.kind).submit(build, item.artifact, self.capability)
        except Exception as error:  # Closed meanwhile, or no process can be started.
            inner.set_exception(error)
        inner.add_done_callback(lambda done: self._finished(item, done))

    def _finished(self, item: _Item, inner: Future[Built]) -> None:
        with self._changed:
            self._running[item.kind] -= 1
            self._running_work.discard(item.work)
            self._changed.notify_all()
        if error := CancelledError() if inner.cancelled() else inner.exception():
            item.future.set_exception(error)
        else:
            item.future.set_result(inner.result())

    def _executor(self, kind: str) -> Executor:
        with self._changed:
            if self._closed:
                raise CancelledError
            if kind not in self._executors:
                self._executors[kind] = self._make(kind)
            return self._executors[kind]


def _local(processes: int, kind: str) -> Executor:
    """Return this host's processes for a kind. They are not forked from this process, whose CUDA state they would
    share. Those for Triton import little and start fresh; the other kinds fork from a server that has preloaded their
    imports."""
    context = multiprocessing.get_context("spawn" if kind == "triton" else "forkserver")
    if kind != "triton":
        context.set_forkserver_preload([PRELOAD])
    # No limit of tasks per process: a pool whose processes all reach it at once hangs forever (python/cpython#115634).
    return ProcessPoolExecutor(processes, context, initializer=_background)


def build(artifact: Artifact, capability: int) -> Built:
    """Build an artifact, in another process or on another host."""
    return artifact.build(capability)


def preload_triton() -> None:
    """Import everything that compiling a Triton kernel needs."""
    with contextlib.suppress(Exception):  # The first kernel reports it.
        importlib.import_module("triton.compiler")
        importlib.import_module("gemmdb.generators.measure.cuda.compilers")


def _background() -> None:
    """Set up a compile process: lower its priority below the timing processes', ignore interrupts, and end it when its
    parent ends, even if the parent crashes."""
    os.nice(10)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def follow_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow_parent, daemon=True).start()
