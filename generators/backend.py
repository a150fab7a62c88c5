"""What a device backend provides to a build: a space of candidates, and measurers that time them.

The modules of `generators.build` know no device: everything that they need is in these interfaces. To support a new
kind of device, write a `Backend` and register it in `gemmdb.generators.measure.backends`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """The result of one candidate: the measured fields of a Measurement, with the same rules on status and times.
    `disturbed`: other programs kept the machine busy meanwhile, or the reference was unsteady."""

    config: Config
    status: Status
    times: Times | None = None
    error: float | None = None
    compile_s: float | None = None
    detail: str = ""
    disturbed: bool = False


class Lost(GemmdbError):
    """The device went away in the middle of a measurement; another try may succeed. `status`: that of the candidates if
    none does. It is not CRASH, which would bar them for good: nodes are taken away, and processes killed for lack of
    memory."""

    def __init__(self, detail: str, status: Status = Status.OOM) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(frozen=True)
class Candidate:
    """A config to try on a problem. `rejected`: why a legality rule excludes it; it then becomes a row of status
    `illegal` and is never run. `estimated`: an estimate let it in, and a better estimate might have left it out."""

    config: Config
    rejected: Rejected | None = None
    estimated: bool = False


@dataclass(frozen=True)
class Job:
    """All work on one problem under one protocol: the unit that is claimed, measured and stored as a whole. `searched`:
    the outcomes of a stored search whose confirmations are incomplete. `confirmed`: the confirmations that exist."""

    problem: Problem
    protocol: Protocol
    candidates: tuple[Candidate, ...]
    searched: tuple[Outcome, ...] = ()
    confirmed: tuple[Outcome, ...] = ()

    @property
    def legal(self) -> tuple[Config, ...]:
        return tuple(c.config for c in self.candidates if not c.rejected)


class Space(Interface):
    """Which configs to try. Pure: no clock, device, environment or disk of its own."""

    def candidates(self, problem: Problem, device: Device, effort: Effort) -> Sequence[Candidate]:
        """The candidates of a problem, without repeats, ATen first; none if the effort is not for it. Equal arguments
        must give equal results, or a build could not be resumed."""


def ignore(_job: Job) -> None:
    """A callback that does nothing, for callers that do not need to know when a job is ready."""


def silent(_text: str) -> None:
    """Says nothing."""


class Measurer(Interface):
    """Times candidates on one device, in isolated processes. The defaults are those of a measurer that is always
    available, compiles nothing ahead and only ever times emitted code."""

    def prepare(self, jobs: Sequence[Job], ready: Callable[[Job], None] = ignore) -> None:
        """Compile what these jobs need, for all measurers of the backend, here or in the background. Calls `ready` with
        each job, from any thread, when it can be measured without waiting. A failure to compile becomes the outcome of
        the candidate."""

    def measure(
        self, problem: Problem, configs: Sequence[Config], protocol: Protocol, samples: int
    ) -> Sequence[Outcome]:
        """One outcome per config, in order: checked for correctness, then timed with `samples` samples each,
        interleaved with each other and with ATen, which is always measured.

        A candidate that fails to compile, raises, crashes, hangs, runs out of memory or computes wrong results has an
        outcome that says so, and the others are still measured. Raises Lost if the device goes away.
        """

    def available(self) -> bool:
        """Whether the device is there now. False for one of another host that is busy or went away. Returns at once.
        Raises GemmdbError if it will never be."""
        return True

    def ready(self, limit_s: float) -> bool:
        """Wait at most `limit_s` seconds for the process that times; whether it can begin now."""
        return True

    def compiled(self, problem: Problem, config: Config) -> bool:
        """Whether `measure` need not wait for what a config needs: it is compiled, or that has failed."""
        return True

    def expect(self, problem: Problem, configs: Sequence[Config]) -> None:
        """Announces what will be measured soon, which may be prepared in the background. Returns at once."""
        return

    def emitted(self, config: Config) -> Config:
        """The config to pass to `measure` to time the code that the compiler emits for `config`. It equals no other
        config. It is `config` itself if the measurer only ever times emitted code."""
        return config

    def fresh(self) -> Measurer:
        """A measurer of the same device that measures in another process. Closing this one closes it."""

    @property
    def busy_s(self) -> float | None:
        """Seconds that the device has spent in timed calls so far, those of `fresh` included; None if unknown."""
        return None

    def close(self) -> None:
        """End all isolated processes. Idempotent. Another thread may call it to stop a `measure`."""


class Backend(Interface):
    """Everything that a build needs to know about a kind of device."""

    device: Device
    toolchain: Toolchain
    space: Space
    chunk: int
    """How many jobs are claimed and prepared at a time."""
    overlap: bool
    """Whether jobs may be prepared while others are measured: compiling does not disturb timings, and `prepare` returns
    at once."""
    say: Callable[[str], None]
    """Is told, in a phrase, when a measurement waits for something. A build replaces it."""

    def busy(self) -> str:
        """What other programs do on the devices now, in one phrase; empty if nothing, or if it is unknown."""
        return ""

    @property
    def workers(self) -> int:
        """How many measurers may work at the same time: one per GPU, one for a CPU."""

    def protocols(self, effort: Effort) -> Sequence[Protocol]:
        """The protocols that each problem is measured under."""

    def begin(self, jobs: Sequence[Job]) -> None:
        """Announces all jobs of a build before its first worker starts, so that slow compilations can start early."""
        return

    def measurer(self, worker: int, effort: Effort) -> Measurer:
        """The measurer of a worker (0 to `workers` - 1). It may start its process now, and that of its `fresh`
        measurer."""

    def prompt_measurer(self, gpu: int, effort: Effort) -> Measurer:
        """A measurer on GPU number `gpu` of the host for live tuning: all that it needs starts now, and it confirms no
        winners."""
        return self.measurer(0, effort)

    def close(self) -> None:
        """End what the measurers share. Call it after they are closed. Idempotent."""
        return

    def provenance(self) -> dict[str, object]:
        """JSON-ready device readings for the run's record: clocks, caches, power caps."""
        return {}


def outcome(row: Measurement) -> Outcome:
    detail = marks(row.emitted, False) if row.times else row.detail
    return Outcome(row.config, row.status, row.times, row.error, row.compile_s, detail, row.disturbed)


def row(job: Job, outcome: Outcome, backend: Backend, run: str) -> Measurement:
    """The Measurement of an outcome. For our own kernels its toolchain contains the digest of the source. Raises
    InputError if status and times do not fit."""
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
    """`base` for a row of `config`, with the digest of the source that its kernel is rendered from: the row is valid as
    long as this source is unchanged."""
    source = config.digest()
    return replace(base, source=source) if source else base
