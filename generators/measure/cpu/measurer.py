"""CPU backend of the generator. Its Measurer first compiles in parallel processes, then times in one process alone."""

from __future__ import annotations

import fcntl
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gemmdb.devices import detect, load, speed
from gemmdb.devices.detect import cpu, last_level_cache_bytes
from gemmdb.errors import InputError
from gemmdb.generators.backend import Backend, Job, Measurer, Outcome, Space, ignore, silent
from gemmdb.generators.effort import Effort
from gemmdb.generators.measure.candidates import CachedSpace
from gemmdb.generators.measure.cpu import compiled
from gemmdb.generators.measure.cpu.space import CpuSpace
from gemmdb.generators.measure.quiet import Watch
from gemmdb.generators.measure.tolerance import acceptable, tolerance
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain, installed
from gemmdb.processes.child import RemoteModule, Reply, Task
from gemmdb.processes.fork_server import ForkServer
from gemmdb.processes.pool import IsolatedProcess, Limits, Stopped, spread
from gemmdb.settings import data_home
from gemmdb.table import file_locks, stats
from gemmdb.table.measurement import MAX_DETAIL, Protocol, Status, Times

if TYPE_CHECKING:
    from gemmdb.generators.measure.cpu import session
    from gemmdb.inductor.lower.adapter import vector_units
else:
    session = RemoteModule("gemmdb.generators.measure.cpu.session")
    vector_units = RemoteModule("gemmdb.inductor.lower.adapter.vector_units")
IMPORTS = ("torch._dynamo", "torch._inductor.compile_fx", "gemmdb.generators.measure.cpu.session")
"""Modules preloaded by the fork server: seconds of imports, done once for all processes."""
LOAD_S = 1.5
"""Seconds over which it looks at other programs before it says how long a build takes."""
POLL_S = 0.1
"""Seconds between retries while the machine is busy."""
MAX_COMPILES = 200
"""Compile processes are replaced after this many compilations, since they never free what they have loaded."""
VERSION = 3
"""Of the CPU's protocol; 2 was that of trials. docs/contributing/measuring.md lists what changed."""
MAX_LOADED_BYTES = 2 * 2**30
"""Most memory of candidates that are timed together. Each holds its own packed copy of the weight."""


@dataclass
class CpuMeasurer(Measurer):
    """Time candidates with `threads` threads. `compilers`: number of parallel compile processes. All builds of this
    user on this machine take turns at timing, and none compiles while another one times. `watch` monitors the load from
    other programs. `note` gets the candidates that were compiled."""

    effort: Effort
    threads: int
    compilers: int
    limits: Limits = field(default_factory=Limits)
    watch: Watch = field(default_factory=Watch)
    note: Callable[[Sequence[tuple[Problem, Config]]], None] = lambda _: None
    _compiled: dict[tuple[Problem, Config], Outcome] = field(default_factory=dict)
    _failed: dict[tuple[Problem, Config], Outcome] = field(default_factory=dict)
    _loaded: dict[Config, float] = field(default_factory=dict)
    _current: Problem | None = None
    _closed: bool = False
    _learnt: bool = False
    _since_start: int = 0

    def __post_init__(self) -> None:
        self.watch.given_up = lambda: self._closed
        threads = {"OMP_NUM_THREADS": str(self.threads), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        self._server = ForkServer({**threads, "GEMMDB_DISABLE": ""}, IMPORTS)
        self._timer, *self._compilers = (
            IsolatedProcess({}, self.limits, self._server) for _ in range(1 + self.compilers)
        )

    def prepare(self, jobs: Sequence[Job], ready: Callable[[Job], None] = ignore) -> None:
        """Compile all candidates of the jobs into the compiler's on-disk cache, and wait for that."""
        pairs = dict.fromkeys((job.problem, config) for job in jobs for config in job.legal)
        wanted = [pair for pair in pairs if pair not in self._compiled]
        tasks = [Task(session.compile_only, (*pair, self.threads)) for pair in wanted]
        with machine(exclusive=False, given_up=lambda: self._closed):
            replies = spread(self._compilers, self.effort.compile_s, tasks)
            if not self._learnt and any(reply.status is Status.OK for reply in replies):
                # Pass the vector units that one compile process detected on to future processes.
                if self._compilers[-1].call(self.effort.compile_s, vector_units.all_usable).value:
                    for process in (self._timer, *self._compilers):
                        process.first = Task(vector_units.trust)
                self._learnt = True
        self._since_start += len(tasks)
        if self._since_start > MAX_COMPILES:
            for process in self._compilers:
                process.end()
            self._since_start = 0
        for pair, reply in zip(wanted, replies, strict=True):
            seconds = reply.value if reply.status is Status.OK else None
            self._compiled[pair] = Outcome(pair[1], reply.status, compile_s=seconds, detail=reply.detail)
            if reply.status is not Status.OK:
                self._failed[pair] = self._compiled[pair]
        self.note([pair for pair in wanted if pair not in self._failed])
        for job in jobs:
            ready(job)

    def measure(
        self, problem: Problem, configs: Sequence[Config], protocol: Protocol, samples: int
    ) -> Sequence[Outcome]:
        others = [config for config in dict.fromkeys(configs) if config != ATEN]
        size = max(2, MAX_LOADED_BYTES // max(problem.bytes, 1))
        batches = [others[start : start + size] for start in range(0, len(others), size)] or [[]]
        outcomes: dict[Config, Outcome] = {}
        with machine(exclusive=True, given_up=lambda: self._closed):
            for batch in batches:
                ready = [config for config in (ATEN, *batch) if self._load(problem, config)]
                timed, disturbed = self.watch.timed(partial(self._time, problem, ready, protocol, samples))
                for config, times in timed.items():
                    error, compiled = self._loaded.get(config), self._compiled.get((problem, config))
                    seconds = compiled.compile_s if compiled else None
                    outcomes[config] = Outcome(config, Status.OK, times, error, seconds, disturbed=disturbed)
        reference = self._failed.get((problem, ATEN))
        if reference is not None:
            lost = f"no reference: {reference.status}: {reference.detail}"[:MAX_DETAIL]
            # Retry all of them after a failure that other programs can cause.
            status = reference.status if reference.status in (Status.OOM, Status.TIMEOUT) else Status.ERROR
            return [self._failed.get((problem, c), Outcome(c, status, detail=lost)) for c in configs]
        return [self._failed.get((problem, config)) or outcomes[config] for config in configs]

    def compiled(self, problem: Problem, config: Config) -> bool:
        return (problem, config) in self._compiled

    def fresh(self) -> CpuMeasurer:
        # Two processes would keep two sets of packed weights.
        self._timer.end()
        self._loaded, self._current = {}, None
        return self

    def close(self) -> None:
        self._closed = True
        for process in (self._timer, *self._compilers):
            process.close()
        self._server.close()

    def _load(self, problem: Problem, config: Config) -> bool:
        """Load the candidate in the process, and return whether its result is correct."""
        if self._current != problem:
            self._loaded, self._current = {}, problem
        if (problem, config) in self._failed or config in self._loaded:
            return (problem, config) not in self._failed
        reply = self._call(self.effort.compile_s, session.load, problem, config, self.threads)
        if reply.status is Status.OK and not acceptable(problem, reply.value, self._loaded.get(ATEN, math.inf)):
            reply = Reply(reply.value, Status.WRONG, f"error {reply.value:.3g}, tolerated {tolerance(problem):.3g}")
        if reply.status is not Status.OK:
            self._fail(problem, config, reply)
            return False
        self._loaded[config] = reply.value
        return True

    def _time(self, problem: Problem, configs: list[Config], protocol: Protocol, samples: int) -> dict[Config, Times]:
        """Return times by config. If a round with several candidates fails, each gets its own round, to find the faulty
        one."""
        if ATEN not in configs:
            return {}
        budget = self.effort.measure_s / 2
        lost = [config for config in configs if not self._load(problem, config)]
        if lost:
            return self._time(problem, [config for config in configs if config not in lost], protocol, samples)
        arguments = (problem, configs, protocol, samples, budget)
        reply = self._call(self.effort.measure_s, session.time_round, *arguments)
        if reply.status is Status.OK:
            self._loaded = {config: self._loaded[config] for config in configs}
            return {config: stats.times(reply.value[config], reply.value[ATEN]) for config in configs}
        if len(configs) <= 2:
            self._fail(problem, configs[-1], reply)
            return self._time(problem, configs[:-1], protocol, samples)
        times: dict[Config, Times] = {}
        for config in configs[1:]:
            times |= self._time(problem, [ATEN, config], protocol, samples)
        return times

    def _call(self, limit_s: float, function: Callable[..., Any], *arguments: Any) -> Reply:
        reply = self._timer.call(limit_s, function, *arguments)
        if self._timer.pid is None:
            self._loaded = {}
        return reply

    def _fail(self, problem: Problem, config: Config, reply: Reply) -> None:
        error = reply.value if reply.status is Status.WRONG and math.isfinite(reply.value) else None
        self._failed[problem, config] = Outcome(config, reply.status, error=error, detail=reply.detail)


@contextmanager
def machine(exclusive: bool, given_up: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Lock this machine: exclusively (`exclusive`) to time, or shared to compile. Waits for the lock; raises Stopped if
    `given_up` returns true meanwhile."""
    with _lock_file() as file:
        while True:
            try:
                fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if given_up():
                    raise Stopped("the measurer is closed") from None
                time.sleep(POLL_S)
            except OSError as error:
                why = f"{file.name} cannot be locked ({error.strerror})"
                raise InputError(f"{why}; set TMPDIR to a local folder") from error
        yield


def _lock_file() -> IO[bytes]:
    """Open the lock file: in the folder of temporary files, or in the user's own folder if another user has put a file
    or link at that path."""
    places = Path(tempfile.gettempdir()), data_home()
    for folder in places:
        path = folder / f"gemmdb-{os.getuid()}.lock"
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            file = os.fdopen(file_locks.open_lock_file(path, 0o600, writable=True), "rb+")
            if os.fstat(file.fileno()).st_uid == os.getuid():
                return file
            file.close()
    raise InputError(f"no file can be locked in {' or '.join(map(str, places))}; set TMPDIR to a folder of your own")


class CpuBackend(Backend):
    """This machine's CPU with the threads that torch would use. It does not compile while it times, which would disturb
    the timings. Raises InputError without torch."""

    workers = 1
    chunk = 4
    overlap = False

    def __init__(self, device: Device | None = None) -> None:
        toolchain = installed("cpu")
        if toolchain is None:
            raise InputError("building a table needs torch: pip install torch")
        self.device: Device = device or cpu()
        self.toolchain: Toolchain = toolchain
        self.space: Space = CachedSpace(CpuSpace())
        self.say: Callable[[str], None] = silent

    def protocols(self, effort: Effort) -> Sequence[Protocol]:
        return [Protocol("host", state, 1, effort.samples, version=VERSION) for state in effort.states]

    def measurer(self, worker: int, effort: Effort) -> Measurer:
        """The measurer compiles in one process per usable core, at most 8, and starts nothing before its first use."""
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        watch = Watch(self.device.units, say=lambda text: self.say(text))
        return CpuMeasurer(effort, self.device.units, min(usable, 8), watch=watch, note=self._note)

    def _note(self, pairs: Sequence[tuple[Problem, Config]]) -> None:
        compiled.note(pairs, self.toolchain)

    def occupied(self) -> str:
        found = load.now(threads=self.device.units)
        return found.text if found is not None and found.disturbs else ""

    def cold(self) -> bool:
        return compiled.is_empty()

    def compiled(self, problem: Problem, config: Config) -> bool:
        return compiled.noted(problem, config, self.toolchain)

    def slowdown(self) -> float:
        found = load.now(LOAD_S, self.device.units)
        if found is None or not found.disturbs:
            return 1.0
        return 1 + max(found.others / detect.cores(), load.queued())

    def slowness(self) -> float:
        return speed.slowness()

    def provenance(self) -> dict[str, object]:
        # The frequency governor determines how steady the clock is.
        steady = "unknown"
        with suppress(OSError):
            steady = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
        return {"last_level_cache_bytes": last_level_cache_bytes(), "governor": steady}
