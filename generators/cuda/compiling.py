"""The processes that compile: what candidates need is on disk before the process that times asks for it."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from time import monotonic

from gemmdb.config import Config
from gemmdb.generators.cuda.background import background, warm
from gemmdb.generators.cuda.compile import compiler, parts
from gemmdb.generators.cuda.part import Built, Part
from gemmdb.generators.interfaces import Job
from gemmdb.generators.pool import Stopped
from gemmdb.measurement import Status, one_line
from gemmdb.problem import Problem

SHARES = {"triton": 1.0, "inductor": 1.0, "cutlass": 0.5}
"""What takes nvcc half a minute, or Inductor seconds, has processes of its own, or quick compilers would wait behind
it. Together there are more than processors, so that none idles while one kind has nothing to do; a process of nvcc
needs gigabytes."""
POLL_S = 0.2
SUSPECT = 2
"""A part that was unfinished when that many pools broke is left to the process that times: there it costs one row."""


@dataclass
class CompilePool:
    """Processes that fill the on-disk caches of compiled kernels, shared by all lanes of a build, in all their threads.

    `capability`: 90 for sm90.
    """

    capability: int
    shared_bytes: int
    processes: int = max((os.cpu_count() or 2) - 2, 1)
    _executors: dict[str, ProcessPoolExecutor] = field(default_factory=dict)
    _futures: dict[str, Future[Built]] = field(default_factory=dict)
    _needs: dict[tuple[Problem, Config], tuple[str, ...]] = field(default_factory=dict)
    _lost: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    def submit(self, problem: Problem, config: Config) -> list[Future[Built]]:
        """Begin compiling what a config needs on a problem, unless that has been begun; its parts, as futures.

        Raises Stopped after `close`.
        """
        with self._lock:
            keys = self._needs.get((problem, config))
            if keys is None or any(key not in self._futures and self._lost[key] < SUSPECT for key in keys):
                found = parts(problem, config)
                keys = self._needs[problem, config] = tuple(part.key for part in found)
                for part in found:
                    self._begin(part, compiler(config))
            return [self._futures[key] for key in keys if key in self._futures]

    def begin(self, jobs: Iterable[Job]) -> None:
        """Begin with all that takes nvcc for these jobs, what most of them wait for first."""
        uses: Counter[str] = Counter()
        example: dict[str, tuple[Problem, Config]] = {}
        for job in jobs:
            for config in job.legal:
                if compiler(config) == "cutlass":
                    for part in parts(job.problem, config):
                        uses[part.key] += 1
                        example.setdefault(part.key, (job.problem, config))
        for key, _ in uses.most_common():
            self.submit(*example[key])

    def failure(self, problem: Problem, config: Config, limit_s: float) -> tuple[Status, str, float] | None:
        """Wait for a config's parts: the status, reason and seconds of the one that failed, None when all are there.

        Raises Stopped when the pool is closed meanwhile.
        """
        for future in self.submit(problem, config):
            try:
                built = self._wait(future, limit_s)
            except BrokenProcessPool:
                # The compiler took its process down. Which part did is unknown: the worker compiles these itself.
                self._mend()
                return None
            if built is None:
                return Status.TIMEOUT, f"not compiled within {limit_s:g} s", limit_s
            if built.failure:
                memory = "OutOfMemory" in built.failure or "MemoryError" in built.failure
                return Status.OOM if memory else Status.ERROR, one_line(built.failure), built.seconds
            if built.shared > self.shared_bytes:
                reason = f"needs {built.shared} bytes of shared memory, {self.shared_bytes} are there"
                return Status.ERROR, reason, built.seconds
        return None

    def seconds(self, problem: Problem, config: Config) -> float:
        """What compiling a config's parts cost, as far as they were compiled here."""
        done = [future for future in self.submit(problem, config) if future.done() and not future.cancelled()]
        return sum(future.result().seconds for future in done if future.exception() is None)

    def close(self) -> None:
        """End the processes, and every wait for them. Idempotent."""
        with self._lock:
            self._closed = True
            executors, self._executors = list(self._executors.values()), {}
        for executor in executors:
            running = list((executor._processes or {}).values())
            executor.shutdown(wait=False, cancel_futures=True)
            # What is being compiled is of no use any more, and the interpreter would wait for it when it exits.
            for process in running:
                process.terminate()

    def _begin(self, part: Part, kind: str) -> None:
        """Submit a part that is new or was lost. Call it with the lock held."""
        if part.key in self._futures or self._lost[part.key] >= SUSPECT:
            return
        if self._closed:
            raise Stopped("the compilers are closed")
        try:
            self._futures[part.key] = self._executor(kind).submit(warm, part, self.capability)
        except BrokenProcessPool:
            self._drop_broken()
            self._futures[part.key] = self._executor(kind).submit(warm, part, self.capability)

    def _executor(self, kind: str) -> ProcessPoolExecutor:
        if kind not in self._executors:
            # Not forked: a forked process would share the parent's CUDA state. And no limit of tasks per process: a
            # pool whose processes all reach it at once stands still for ever (python/cpython#115634).
            context = multiprocessing.get_context("spawn")
            count = max(int(self.processes * SHARES[kind]), 1)
            self._executors[kind] = ProcessPoolExecutor(count, context, initializer=background)
        return self._executors[kind]

    def _wait(self, future: Future[Built], limit_s: float) -> Built | None:
        until = monotonic() + limit_s
        while True:
            try:
                return future.result(POLL_S)
            except CancelledError:
                raise Stopped("the compilers are closed") from None
            except BrokenProcessPool:
                if self._closed:
                    raise Stopped("the compilers are closed") from None
                raise
            except Exception as error:
                if future.done():
                    return Built(f"{type(error).__name__}: {error}", 0.0)
            if self._closed:
                raise Stopped("the compilers are closed")
            if monotonic() > until:
                return None

    def _mend(self) -> None:
        with self._lock:
            self._drop_broken()

    def _drop_broken(self) -> None:
        """Forget what broken pools have not finished. Call it with the lock held."""
        broken = {key for key, future in self._futures.items() if _is_broken(future)}
        self._lost.update(broken)
        for key in broken:
            del self._futures[key]
        for kind, executor in list(self._executors.items()):
            try:
                executor.submit(os.getpid)
            except BrokenProcessPool:
                del self._executors[kind]


def _is_broken(future: Future[Built]) -> bool:
    return future.done() and not future.cancelled() and isinstance(future.exception(), BrokenProcessPool)
