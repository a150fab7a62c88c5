"""GPU measurer: a process pool compiles, one isolated process times candidates, another one confirms winners."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from threading import Thread
from typing import Any

from gemmdb.errors import GemmdbError
from gemmdb.generators.backend import Job, Measurer, Outcome, ignore
from gemmdb.generators.effort import Effort
from gemmdb.generators.measure.cuda.artifacts import Emitted, generated
from gemmdb.generators.measure.cuda.precompiler import Precompiler
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.processes.child import RemoteModule, out_of_memory
from gemmdb.processes.pool import IsolatedProcess
from gemmdb.table.measurement import Protocol, Status
from gemmdb.table.stats import times

SEARCHED, MAX_BEHIND = 2, 1.2
"""Number of cuBLASLt's best algorithms whose neighbours are tried, and how many times slower than the best config they
may be."""
SESSION = RemoteModule("gemmdb.generators.measure.cuda.session")


@dataclass(frozen=True)
class Loaded:
    """Result of loading a candidate. `fatal`: the process can no longer use the GPU."""

    status: Status
    error: float | None = None
    compile_s: float | None = None
    detail: str = ""
    fatal: bool = False


@dataclass(frozen=True)
class Round:
    """Results of loading some candidates, and samples in microseconds of the correct ones. `busy_us`: microseconds of
    all replays on the GPU."""

    loads: dict[Config, Loaded]
    samples: dict[Config, list[float]] = field(default_factory=dict)
    busy_us: float = 0.0

    @property
    def fatal(self) -> bool:
        """Whether the process can no longer use the GPU; candidates without a load were not tried."""
        return any(load.fatal for load in self.loads.values())


@dataclass
class CudaMeasurer(Measurer):
    """Time candidates on GPU number `gpu` in an isolated process; see `generators.backend.Measurer`. `functions`: a
    module with the functions of `session`, which run in that process."""

    gpu: int
    effort: Effort
    precompiler: Precompiler
    functions: Any = SESSION
    process: IsolatedProcess = field(init=False)
    _other: CudaMeasurer | None = None
    _starting: Thread | None = None
    _inductor: bool = False
    _busy_us: float = 0.0

    def __post_init__(self) -> None:
        self.process = IsolatedProcess({"CUDA_VISIBLE_DEVICES": visible(self.gpu), "CUDA_MODULE_LOADING": "LAZY"})

    def prepare(self, jobs: Sequence[Job], ready: Callable[[Job], None] = ignore) -> None:
        """Start compiling what the jobs need, in the background, and loading Inductor if they need it."""
        if self._starting is not None and any(generated(job.problem, config) for job in jobs for config in job.legal):
            self._start(inductor=True)
        for job in jobs:
            self.precompiler.prepare(job, ready)

    def start(self, confirms: bool = True) -> CudaMeasurer:
        """Start the timing process, which takes seconds, and return this measurer without waiting. With `confirms`,
        also start the process of `fresh`, and load Inductor, which confirming winners needs."""
        for measurer in (self, self.fresh()) if confirms else (self,):
            measurer._start(confirms)
        return self

    def measure(
        self, problem: Problem, configs: Sequence[Config], protocol: Protocol, samples: int
    ) -> Sequence[Outcome]:
        """See `Measurer`. Raises GemmdbError if the GPU is gone: otherwise its absence would be recorded as permanent
        errors."""
        loads = {config: self._compiled(problem, config) for config in dict.fromkeys((ATEN, *configs))}
        loads, timed = self._round(problem, loads, protocol, samples)
        if loads[ATEN].status in (Status.ERROR, Status.CRASH):
            self._check()
        aten_us = timed.get(ATEN)
        outcomes = []
        for config in configs:
            load = loads[config]
            if load.status is Status.OK and (aten_us is None or config not in timed):
                load = replace(load, status=Status.ERROR, detail="the reference could not be measured")
            found = times(timed[config], aten_us) if load.status is Status.OK and aten_us else None
            outcomes.append(Outcome(config, load.status, found, load.error, load.compile_s, load.detail))
        return outcomes

    def proposed(self, problem: Problem) -> Sequence[Config]:
        """Return what cuBLASLt's heuristics propose."""
        return self._answered(self.functions.proposed, problem, self.effort.proposals) if self.effort.proposals else ()

    def near(self, problem: Problem, estimates: Sequence[Outcome]) -> Sequence[Config]:
        """Return algorithms of cuBLASLt like its best two, unless other kernels are much faster."""
        ranked = sorted((one.times.ratio, one.config.text, one.config) for one in estimates if one.times)
        limit = MAX_BEHIND * ranked[0][0] if ranked else 0.0
        best = [config for ratio, _, config in ranked if config.backend == "cublaslt" and ratio <= limit][:SEARCHED]
        if not (best and self.effort.neighbours):
            return ()
        known = {one.config for one in estimates}
        return self._answered(self.functions.near, problem, best, known, self.effort.neighbours)

    def ready(self, limit_s: float) -> bool:
        if self._starting is not None:
            self._starting.join(max(limit_s, 0.0))
        return self._starting is None or not self._starting.is_alive()

    def compiled(self, problem: Problem, config: Config) -> bool:
        return all(future.done() for future in self.precompiler.submit(problem, config))

    def expect(self, problem: Problem, configs: Sequence[Config]) -> None:
        """Load emitted code, which takes a tenth of a second per kernel."""
        emitted = tuple(c for c in configs if isinstance(c, Emitted) and generated(problem, c))
        if emitted:
            self._call_later(self.effort.measure_s, self.functions.expect, problem, emitted, vital=False)

    def emitted(self, config: Config) -> Config:
        """ATen stays unchanged: default mode runs exactly that."""
        return config if config == ATEN else Emitted.code_of(config)

    def fresh(self) -> CudaMeasurer:
        """Return a measurer with another process on the same GPU. The process is kept, since starting one takes
        seconds."""
        if self._other is None:
            self._other = CudaMeasurer(self.gpu, self.effort, self.precompiler, self.functions)
        return self._other

    @property
    def busy_s(self) -> float | None:
        """Seconds of replayed graphs, by the GPU's clock."""
        return self._busy_us / 1e6 + ((self._other.busy_s or 0.0) if self._other else 0.0)

    def close(self) -> None:
        """End the processes for good."""
        self.process.close()
        if self._other is not None:
            self._other.close()

    def _start(self, inductor: bool) -> None:
        """Start the process, and load Inductor in it, each once and without blocking."""
        if self._starting is None or inductor > self._inductor:
            self._inductor = inductor
            self._call_later(self.effort.compile_s, self.functions.begin, inductor)

    def _call_later(self, limit_s: float, function: Any, *arguments: Any, vital: bool = True) -> None:
        """Queue a call of a function in the process. Not `vital`: if it fails, the process ends, and measuring reports
        why."""
        before = self._starting

        def run() -> None:
            if before is not None:
                before.join()
            with contextlib.suppress(GemmdbError):  # The first measurement will fail the same way.
                if self.process.call(limit_s, function, *arguments).status is not Status.OK and not vital:
                    self.process.end()

        self._starting = Thread(target=run, daemon=True)
        self._starting.start()

    def _answered(self, function: Any, *arguments: Any) -> Sequence[Config]:
        """Return the configs that a function in the process returns; none if it fails."""
        if self._starting is not None:
            self._starting.join()  # Requests must not mix.
        reply = self.process.call(self.effort.measure_s, function, *arguments)
        if reply.status is not Status.OK:
            self.process.end()
            return ()
        found: Sequence[Config] = reply.value
        return found

    def _compiled(self, problem: Problem, config: Config) -> Loaded:
        failure = self.precompiler.failure(problem, config, self.effort.compile_s)
        if failure is not None:
            return Loaded(failure[0], None, failure[2], failure[1])
        return Loaded(Status.OK, None, self.precompiler.seconds(problem, config))

    def _check(self) -> None:
        """Raise GemmdbError unless a new process can compute on the GPU."""
        self.process.end()
        reply = self.process.call(self.effort.compile_s, self.functions.begin, False)
        if reply.status is not Status.OK and not (reply.status is Status.OOM or out_of_memory(reply.detail)):
            raise GemmdbError(
                f"GPU {visible(self.gpu)} no longer works ({reply.detail});"
                " all measurements so far are stored: run the same command when the GPU is back"
            )

    def _ask(self, problem: Problem, configs: Iterable[Config], protocol: Protocol, samples: int) -> Round | Loaded:
        """Run one round in the process; return a Loaded if the process crashed or hung, and was ended."""
        reply = self.process.call(
            self.effort.measure_s, self.functions.measure, problem, tuple(configs), protocol, samples
        )
        if reply.status is not Status.OK:
            self.process.end()
            return Loaded(reply.status, detail=reply.detail)
        done: Round = reply.value
        self._busy_us += done.busy_us
        if done.fatal:
            self.process.end()
        return done

    def _round(
        self, problem: Problem, compiled: dict[Config, Loaded], protocol: Protocol, samples: int
    ) -> tuple[dict[Config, Loaded], dict[Config, list[float]]]:
        """Return the result of loading each config, and the samples by config: in one request, as long as no config
        crashes the process, then with ATen and one candidate at a time, to find those that do."""
        if self._starting is not None:
            self._starting.join()  # Requests must not mix.
        loads = dict(compiled)
        while True:
            able = [config for config, load in loads.items() if load.status is Status.OK]
            if ATEN not in able:
                return loads, {}
            done = self._ask(problem, able, protocol, samples)
            if isinstance(done, Loaded):
                break
            found = {config: replace(load, compile_s=compiled[config].compile_s) for config, load in done.loads.items()}
            if not done.fatal:
                return loads | found, done.samples
            # The candidate that broke the process is known. The others are loaded again.
            loads |= {config: load for config, load in found.items() if load.status is not Status.OK}
        timed: dict[Config, list[float]] = {}
        for config in able:
            done = self._ask(problem, dict.fromkeys((ATEN, config)), protocol, samples)
            if not isinstance(done, Loaded):
                loads[config] = replace(done.loads[config], compile_s=compiled[config].compile_s)
                timed |= {one: us for one, us in done.samples.items() if one == config}
                continue
            loads[config] = done
            if config == ATEN:
                break  # Nothing is timed without a reference.
        return loads, timed


def visible(gpu: int) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES for GPU number `gpu` of this process."""
    outer = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return outer.split(",")[gpu] if outer else str(gpu)
