"""The Measurer of a GPU: a pool of processes compiles, one isolated process times."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

from gemmdb.config import ATEN, Config
from gemmdb.generators.cuda import session
from gemmdb.generators.cuda.compile import parts, warm
from gemmdb.generators.cuda.part import Built
from gemmdb.generators.cuda.session import Loaded
from gemmdb.generators.effort import Effort
from gemmdb.generators.interfaces import Job, Outcome
from gemmdb.generators.pool import Worker
from gemmdb.generators.stats import times
from gemmdb.measurement import Protocol, Status, one_line
from gemmdb.problem import Problem


@dataclass
class CompilePool:
    """Processes that fill the on-disk caches of compiled kernels, shared by all lanes of a build.

    `capability`: 90 for sm90.
    """

    capability: int
    shared_bytes: int
    processes: int = max((os.cpu_count() or 2) - 2, 1)
    _executor: ProcessPoolExecutor | None = None
    _futures: dict[str, Future[Built]] = field(default_factory=dict)

    def submit(self, problem: Problem, config: Config) -> None:
        """Begin compiling what a config needs on a problem, unless that has been begun."""
        for part in parts(problem, config):
            if part.key not in self._futures:
                self._futures[part.key] = self._pool().submit(warm, part, self.capability)

    def failure(self, problem: Problem, config: Config, limit_s: float) -> tuple[Status, str, float] | None:
        """Wait for a config's parts: the status, reason and seconds of the one that failed, None when all are there."""
        self.submit(problem, config)
        for part in parts(problem, config):
            try:
                built = self._futures[part.key].result(limit_s)
            except TimeoutError:
                return Status.TIMEOUT, f"not compiled within {limit_s:g} s", limit_s
            except BrokenProcessPool:
                # The compiler took its process down. Which part did is unknown: the worker compiles these itself.
                self._restart()
                return None
            if built.failure:
                memory = "OutOfMemory" in built.failure or "MemoryError" in built.failure
                return Status.OOM if memory else Status.ERROR, one_line(built.failure), built.seconds
            if built.shared > self.shared_bytes:
                reason = f"needs {built.shared} bytes of shared memory, {self.shared_bytes} are there"
                return Status.ERROR, reason, built.seconds
        return None

    def seconds(self, problem: Problem, config: Config) -> float:
        """What compiling a config's parts cost."""
        return sum(self._futures[part.key].result().seconds for part in parts(problem, config))

    def close(self) -> None:
        """End the processes."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def _pool(self) -> ProcessPoolExecutor:
        if self._executor is None:
            # Not forked: a forked process would share the parent's CUDA state.
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(self.processes, context, max_tasks_per_child=500)
        return self._executor

    def _restart(self) -> None:
        self.close()
        self._futures = {key: f for key, f in self._futures.items() if f.done() and f.exception() is None}


@dataclass
class CudaMeasurer:
    """Times candidates on one GPU in a worker process of its own; see `interfaces.Measurer`."""

    lane: int
    effort: Effort
    pool: CompilePool
    worker: Worker = field(init=False)

    def __post_init__(self) -> None:
        self.worker = Worker({"CUDA_VISIBLE_DEVICES": _visible(self.lane), "CUDA_MODULE_LOADING": "LAZY"})

    def prepare(self, jobs: Sequence[Job]) -> None:
        """Begin compiling what the jobs need, in the background."""
        for job in jobs:
            for config in job.legal:
                self.pool.submit(job.problem, config)

    def measure(
        self, problem: Problem, configs: Sequence[Config], protocol: Protocol, samples: int
    ) -> Sequence[Outcome]:
        """See `interfaces.Measurer.measure`."""
        wanted = [ATEN, *(config for config in configs if config != ATEN)]
        loads = {config: self._load(problem, config, protocol) for config in wanted}
        if any(load.status in (Status.CRASH, Status.TIMEOUT, Status.OOM) for load in loads.values()):
            # The worker that died took the others with it.
            loads |= {c: self._load(problem, c, protocol) for c in wanted if loads[c].status is Status.OK}
        timed = self._time(problem, [c for c in wanted if loads[c].status is Status.OK], protocol, samples, loads)
        aten_us = timed.get(ATEN)
        outcomes = []
        for config in configs:
            load = loads[config]
            if load.status is Status.OK and (aten_us is None or config not in timed):
                load = Loaded(Status.ERROR, load.error, load.compile_s, "the reference could not be measured")
            found = times(timed[config], aten_us) if load.status is Status.OK and aten_us else None
            outcomes.append(Outcome(config, load.status, found, load.error, load.compile_s, load.detail))
        return outcomes

    def floor(self, problem: Problem, protocol: Protocol, samples: int) -> list[float] | None:
        """Samples in microseconds of a streaming read of the weight's bytes, None when that failed."""
        reply = self.worker.call(self.effort.measure_s, session.floor_us, problem, protocol, samples)
        return list(reply.value) if reply.status is Status.OK else None

    def renew(self) -> None:
        """The next `measure` runs in a new process."""
        self.worker.end()

    def close(self) -> None:
        """End the worker for good."""
        self.worker.close()

    def _load(self, problem: Problem, config: Config, protocol: Protocol) -> Loaded:
        failure = self.pool.failure(problem, config, self.effort.compile_s)
        if failure is not None:
            return Loaded(failure[0], None, failure[2], failure[1])
        reply = self.worker.call(self.effort.compile_s, session.load, problem, config, protocol)
        if reply.status is not Status.OK:
            return Loaded(reply.status, detail=reply.detail)
        load: Loaded = reply.value
        if load.fatal:
            self.worker.end()
        if load.status is not Status.OK:
            return load
        return Loaded(load.status, load.error, self.pool.seconds(problem, config))

    def _time(
        self,
        problem: Problem,
        configs: list[Config],
        protocol: Protocol,
        samples: int,
        loads: dict[Config, Loaded],
    ) -> dict[Config, list[float]]:
        """Samples by config; a config that fails while it is timed gets its status in `loads`."""
        reply = self._round(problem, configs, protocol, samples)
        if isinstance(reply, dict):
            return reply
        # Something failed in the round, or the worker was renewed since an earlier load: each one alone tells which.
        found: dict[Config, list[float]] = {}
        for config in configs:
            pair = [ATEN] if config == ATEN else [ATEN, config]
            again = [self._load(problem, one, protocol) for one in pair]
            alone = self._round(problem, pair, protocol, samples)
            if isinstance(alone, dict):
                found[config] = alone[config]
            else:
                failed = next((load for load in again if load.status is not Status.OK), alone)
                loads[config] = Loaded(failed.status, None, None, failed.detail)
        return found

    def _round(
        self, problem: Problem, configs: Sequence[Config], protocol: Protocol, samples: int
    ) -> dict[Config, list[float]] | Loaded:
        if ATEN not in configs:
            return Loaded(Status.ERROR, detail="the reference did not load")
        reply = self.worker.call(self.effort.measure_s, session.time_round, problem, tuple(configs), protocol, samples)
        if reply.status is Status.OK:
            return dict(reply.value)
        self.worker.end()
        return Loaded(reply.status, detail=reply.detail)


def _visible(lane: int) -> str:
    """What CUDA_VISIBLE_DEVICES names as GPU number `lane` here, when it is set."""
    outer = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return outer.split(",")[lane] if outer else str(lane)
