"""Device backends for builds: a space of candidates, and measurers that time them.

The modules of `generators.build` are device-independent and use only these interfaces. To support a new kind of device,
write a `Backend` and register it in `gemmdb.generators.measure.backends`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol as Interface

from gemmdb.errors import GemmdbError
from gemmdb.generators.effort import Effort
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.rejected import Rejected
from gemmdb.table.measurement import EMITTED, Measurement, Protocol, Status, Times, marks


@dataclass(frozen=True)
class Outcome:
    """Result for one candidate: the measured fields of a Measurement, with the same rules on status and times.
    `disturbed`: other programs kept the machine busy meanwhile, or the reference was unsteady."""

    config: Config
    status: Status
    times: Times | None = None
    error: float | None = None
    compile_s: float | None = None
    detail: str = ""
    disturbed: bool = False


class Lost(GemmdbError):
    """The device went away during a measurement; a retry may succeed. `status`: status of the candidates if no retry
    does. It is not CRASH, which would bar them for good: nodes are preempted, and processes are killed for lack of
    memory."""

    def __init__(self, detail: str, status: Status = Status.OOM) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(frozen=True)
class Candidate:
    """A config to try on a problem. `rejected`: the legality rule that excludes it; it then becomes a row of status
    `illegal` and never runs. `estimated`: an estimate selected it, and a better estimate might not."""

    config: Config
    rejected: Rejected | None = None
    estimated: bool = False


def any_config(_config: Config) -> bool:
    """True for every config."""
    return True


@dataclass(frozen=True)
class Job:
    """All work on one problem under one protocol: the unit that is claimed, measured and stored as a whole. `searched`:
    outcomes of a stored search whose confirmations are incomplete. `confirmed`: existing confirmations. `accepts`:
    which configs may be tried besides the candidates."""

    problem: Problem
    protocol: Protocol
    candidates: tuple[Candidate, ...]
    searched: tuple[Outcome, ...] = ()
    confirmed: tuple[Outcome, ...] = ()
    accepts: Callable[[Config], bool] = any_config

    @property
    def legal(self) -> tuple[Config, ...]:
        return tuple(c.config for c in self.candidates if not c.rejected)


class Space(Interface):
    """Search space of candidate configs. Pure: uses no clock, device, environment or disk."""

    def candidates(self, problem: Problem, device: Device, effort: Effort) -> Sequence[Candidate]:
        """Return the distinct candidates of a problem, ATen first; none if the effort excludes the problem. Must be
        deterministic, so that builds can be resumed."""


def ignore(_job: Job) -> None:
    """No-op callback for callers that do not need to know when a job is ready."""


def silent(_text: str) -> None:
    """Says nothing."""


class Measurer(Interface):
    """Times candidates on one device, in isolated processes. The defaults suit a measurer that is always available,
    compiles nothing ahead and only times emitted code."""

    def prepare(self, jobs: Sequence[Job], ready: Callable[[Job], None] = ignore) -> None:
        """Compile what these jobs need, for all measurers of the backend, here or in the background. Calls `ready` with
        each job, from any thread, once it can be measured without waiting. A compile failure becomes the candidate's
        outcome."""

    def measure(
        self, problem: Problem, configs: Sequence[Config], protocol: Protocol, samples: int
    ) -> Sequence[Outcome]:
        """Return one outcome per config, in order. Each is checked for correctness, then timed with `samples` samples,
        interleaved with the other configs and with ATen, which is always measured.

        A candidate that fails to compile, raises, crashes, hangs, runs out of memory or computes wrong results gets a
        failure outcome, and the others are still measured. Raises Lost if the device goes away.
        """

    def proposed(self, problem: Problem) -> Sequence[Config]:
        """Return legal configs to try besides the space's, which only a library on the device can name."""
        return ()

    def near(self, problem: Problem, estimates: Sequence[Outcome]) -> Sequence[Config]:
        """Return legal configs to try after the first estimates, which resemble the best of a library's configs."""
        return ()

    def available(self) -> bool:
        """Whether the device is available now; False if a remote device is busy or gone. Does not block. Raises
        GemmdbError if it will never be available."""
        return True

    def ready(self, limit_s: float) -> bool:
        """Wait at most `limit_s` seconds for the timing process, and return whether it is ready."""
        return True

    def compiled(self, problem: Problem, config: Config) -> bool:
        """Whether `measure` can run a config without waiting for compilation: it is compiled, or that failed."""
        return True

    def expect(self, problem: Problem, configs: Sequence[Config]) -> None:
        """Announce upcoming measurements, which may be prepared in the background. Does not block."""
        return

    def emitted(self, config: Config) -> Config:
        """Return the config to pass to `measure` to time the code that the compiler emits for `config`. It equals no
        other config, except that it is `config` itself if the measurer only times emitted code."""
        return config

    def fresh(self) -> Measurer:
        """Return a measurer for the same device that uses another process. Closing this measurer closes it too."""

    @property
    def busy_s(self) -> float | None:
        """Seconds that the device has spent in timed calls so far, including `fresh` measurers; None if unknown."""
        return None

    def close(self) -> None:
        """End all isolated processes. Idempotent. Another thread may call it to abort a `measure`."""


class Backend(Interface):
    """Everything that a build needs from a kind of device."""

    device: Device
    toolchain: Toolchain
    space: Space
    chunk: int
    """Number of jobs that are claimed and prepared together."""
    overlap: bool
    """Whether jobs may be prepared while others are measured: compiling does not disturb timings, and `prepare` does
    not block."""
    say: Callable[[str], None]
    """Called with a phrase when a measurement has to wait. A build replaces it."""

    def busy(self) -> str:
        """Return one phrase on other programs' use of the devices now; empty if there is none or it is unknown."""
        return ""

    def occupied(self) -> str:
        """Like `busy`, also if measurements notice a disturbance by themselves."""
        return self.busy()

    def slowdown(self) -> float:
        """Return how many times as long as on an idle machine a build takes now, because of other programs."""
        return 1.0

    def slowness(self) -> float:
        """Return how many times as long as on the machine of `estimate.RATES` work takes here on an idle machine. Only
        estimates ask, often."""
        return 1.0

    def cold(self) -> bool:
        """Return whether the compiler's cache on disk is empty. Only estimates ask."""
        return False

    def compiled(self, problem: Problem, config: Config) -> bool:
        """Return whether an earlier run probably left a compiled candidate on disk. Only estimates ask."""
        return False

    def awaited(self, jobs: Sequence[Job]) -> tuple[int, Collection[Problem]]:
        """Return how many times in a row nvcc must run before the last of some jobs can be measured, and the problems
        that wait for it. Only estimates ask."""
        return 0, ()

    @property
    def workers(self) -> int:
        """Number of measurers that may work in parallel: one per GPU, one for a CPU."""

    def protocols(self, effort: Effort) -> Sequence[Protocol]:
        """Return the protocols that each problem is measured under."""

    def expect(self, problems: Sequence[Problem], effort: Effort) -> None:
        """Announce the problems of a build before their candidates are asked for, so that those of many can be computed
        in parallel."""
        return

    def begin(self, jobs: Sequence[Job]) -> None:
        """Announce all jobs of a build before its first worker starts, so that slow compilations can start early."""
        return

    def measurer(self, worker: int, effort: Effort) -> Measurer:
        """Return the measurer of a worker (0 to `workers` - 1). It may start its process now, and that of its `fresh`
        measurer."""

    def prompt_measurer(self, gpu: int, effort: Effort) -> Measurer:
        """Return a measurer on GPU number `gpu` of the host for live tuning: it starts everything it needs now, and
        confirms no winners."""
        return self.measurer(0, effort)

    def close(self) -> None:
        """End what the measurers share. Call it after closing them. Idempotent."""
        return

    def provenance(self) -> dict[str, object]:
        """Return JSON-ready device readings for the run's record: clocks, caches, power caps."""
        return {}


def outcome(row: Measurement) -> Outcome:
    detail = marks(row.emitted, False) if row.times else row.detail
    return Outcome(row.config, row.status, row.times, row.error, row.compile_s, detail, row.disturbed)


def row(job: Job, outcome: Outcome, backend: Backend, run: str) -> Measurement:
    """Return the Measurement for an outcome. For our own kernels its toolchain contains the source digest. Raises
    InputError if status and times are inconsistent."""
    return Measurement(
        job.problem,
        outcome.config,
        backend.device,
        job.protocol,
        toolchain(backend.toolchain, outcome.config),
        run,
        outcome.status,
        outcome.times,
        outcome.error,
        outcome.compile_s,
        marks(outcome.detail == EMITTED, True) if outcome.disturbed and outcome.times else outcome.detail,
    )


def toolchain(base: Toolchain, config: Config) -> Toolchain:
    """Return `base` for a row of `config`, with the digest of its kernel's source: the row stays valid as long as that
    source is unchanged."""
    source = config.digest()
    return replace(base, source=source) if source else base
