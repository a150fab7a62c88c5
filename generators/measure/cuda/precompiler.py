"""Compile artifacts of candidates to disk before the timing process needs them, and track which are finished."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from time import monotonic

from gemmdb.generators.backend import Job
from gemmdb.generators.measure.cuda.artifacts import Artifact, Built, Emitted, compiler, required
from gemmdb.generators.measure.cuda.compile_pool import CompilePool, Priority
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem
from gemmdb.processes.child import out_of_memory
from gemmdb.processes.pool import Stopped
from gemmdb.table.measurement import Status, one_line

POLL_S = 0.2
WARM_PROCESSES = 6
"""Processes to start ahead of time: for the candidates of one problem, and the kernels around ATen."""
MAX_CRASHES = 2
"""An artifact whose compile process died this many times is left to the timing process: a crash there costs only one
row."""


@dataclass
class Precompiler:
    """Fill the on-disk caches of compiled kernels, for all workers of a build and from all their threads. `capability`:
    90 for sm90. `processes`: number of parallel compile processes. `needs`: the artifacts of a config on a problem.
    `make`: see `CompilePool`."""

    capability: int
    shared_bytes: int
    processes: int = max((os.cpu_count() or 2) - 2, 1)
    needs: Callable[[Problem, Config], Sequence[Artifact]] = required
    make: Callable[[str], Executor] | None = None
    _futures: dict[str, Future[Built]] = field(default_factory=dict)
    _keys: dict[tuple[Problem, Config], tuple[str, ...]] = field(default_factory=dict)
    _lost: Counter[str] = field(default_factory=Counter)
    _optional: set[Future[Built]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    def __post_init__(self) -> None:
        self._pool = CompilePool(self.capability, self.processes, self.make)

    def warm(self, artifact: Artifact) -> None:
        """Start processes that compile Triton kernels before there is anything else to compile, and build an artifact
        that everything needs."""
        with self._lock:
            if artifact.key not in self._futures and not self._closed:
                self._futures[artifact.key] = self._pool.submit(artifact, "triton", Priority.URGENT)
        self._pool.warm("triton", min(self.processes, WARM_PROCESSES))

    def submit(self, problem: Problem, config: Config, priority: Priority = Priority.NORMAL) -> list[Future[Built]]:
        """Start compiling what a config needs on a problem, unless that has started; return its artifacts' futures.
        Raises Stopped after `close`."""
        with self._lock:
            keys = self._keys.get((problem, config))
            new = keys is None or any(self._to_begin(key) for key in keys)
        made = self.needs(problem, config) if new else ()  # Takes a millisecond; others need the lock meanwhile.
        begun = set()
        with self._lock:
            if self._closed:
                raise Stopped("the compilers are closed")
            for artifact in made:
                if self._to_begin(artifact.key):
                    self._futures[artifact.key] = self._pool.submit(artifact, compiler(config, artifact), priority)
                    begun.add(artifact.key)
                    if artifact.optional:
                        self._optional.add(self._futures[artifact.key])
            if new or keys is None:
                keys = self._keys[problem, config] = tuple(artifact.key for artifact in made)
            found = {key: self._futures[key] for key in keys if key in self._futures}
        for key, future in found.items():
            if key not in begun and not future.done():
                self._pool.hurry(key, priority)
        return list(found.values())

    def prepare(self, job: Job, ready: Callable[[Job], None]) -> None:
        """Start compiling what a job needs; calls `ready` with the job, from any thread, when everything is finished.
        If the job waits for nvcc, its other artifacts come after those of jobs that do not. Winners' code comes first,
        except for winners of an earlier build, of which there may be thousands."""
        slow = [config for config in job.legal if compiler(config) == "cutlass"]
        won = not job.searched and any(isinstance(config, Emitted) for config in job.legal)
        first = Priority.URGENT if won else Priority.NORMAL
        futures = {future for config in slow for future in self.submit(job.problem, config, first)}
        rest = Priority.LATER if any(not future.done() for future in futures) else first
        futures |= {f for config in job.legal if config not in slow for f in self.submit(job.problem, config, rest)}
        unfinished = iter(futures)

        def proceed(_done: Future[Built] | None = None) -> None:
            for future in unfinished:
                if not future.done():
                    future.add_done_callback(proceed)
                    return
            ready(job)

        proceed()

    def begin(self, jobs: Iterable[Job]) -> None:
        """Start nvcc on what these jobs need, beginning with the artifacts that most jobs wait for."""
        uses: Counter[str] = Counter()
        example: dict[str, tuple[Problem, Config]] = {}
        pairs = ((job.problem, config) for job in jobs for config in job.legal if compiler(config) == "cutlass")
        for pair in pairs:
            for artifact in self.needs(*pair):
                if compiler(pair[1], artifact) == "cutlass":
                    uses[artifact.key] += 1
                    example.setdefault(artifact.key, pair)
        for key, _ in uses.most_common():
            self.submit(*example[key])

    def failure(self, problem: Problem, config: Config, limit_s: float) -> tuple[Status, str, float] | None:
        """Wait for a config's artifacts, and return the status, reason and seconds of the one that failed, or None if
        all succeeded. An artifact fails if compiling it takes longer than `limit_s` seconds. Raises Stopped if the pool
        is closed meanwhile."""
        for future in self.submit(problem, config):
            try:
                built = self._wait(future, limit_s)
            except BrokenProcessPool:
                # A compiler crashed its process, and it is unknown on which artifact: the process that times compiles
                # these itself.
                self._forget_broken()
                return None
            if future in self._optional:
                continue
            if built is None:
                return Status.TIMEOUT, f"not compiled within {limit_s:g} s", limit_s
            if built.failure:
                status = Status.OOM if out_of_memory(built.failure) else Status.ERROR
                return status, one_line(built.failure), built.seconds
            if built.shared > self.shared_bytes:
                reason = f"needs {built.shared} bytes of shared memory, {self.shared_bytes} are there"
                return Status.ERROR, reason, built.seconds
        return None

    def keys(self, problem: Problem, config: Config) -> tuple[str, ...]:
        """Return the keys of the artifacts of a submitted config."""
        with self._lock:
            return self._keys.get((problem, config), ())

    def seconds(self, problem: Problem, config: Config) -> float:
        """Return the seconds that compiling a config's artifacts took, counting only those compiled here."""
        done = [future for future in self.submit(problem, config) if future.done() and not future.cancelled()]
        return sum(future.result().seconds for future in done if future.exception() is None)

    def close(self) -> None:
        """End the processes and all waits for them. Idempotent."""
        with self._lock:
            self._closed = True
        self._pool.close()

    def _to_begin(self, key: str) -> bool:
        return key not in self._futures and self._lost[key] < MAX_CRASHES

    def _wait(self, future: Future[Built], limit_s: float) -> Built | None:
        """Return the result, or None if compiling takes longer than `limit_s`; time in the queue does not count."""
        until: float | None = None
        while True:
            if until is None and future.running():
                until = monotonic() + limit_s
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
            if until is not None and monotonic() > until:
                return None

    def _forget_broken(self) -> None:
        with self._lock:
            done = {key: future for key, future in self._futures.items() if future.done() and not future.cancelled()}
            broken = {key for key, future in done.items() if isinstance(future.exception(), BrokenProcessPool)}
            self._lost.update(broken)
            for key in broken:
                del self._futures[key]
