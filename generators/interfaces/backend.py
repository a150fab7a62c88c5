"""What a device backend gives to a build: a space of candidates, and measurers that time them.

`build`, `search`, `queue` and `pool` know no device: everything they need of one is in these protocols. A backend for
a new kind of device is one `Backend`, registered in `gemmdb.generators.measure.backends`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol as Interface

from gemmdb.generators.effort import Effort
from gemmdb.kernels import sources
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.table.measurement import Measurement, Protocol, Status, Times


@dataclass(frozen=True)
class Outcome:
    """What became of one candidate: the measured part of a Measurement, with the same rules on status and times."""

    config: Config
    status: Status
    times: Times | None = None
    error: float | None = None
    compile_s: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class Candidate:
    """A config to try on a problem; `illegal` is the reason of the legality rule that excludes it, empty when none
    does. An illegal candidate becomes a row and is never run. `estimated`: it was let in by an estimate that others of
    its kind failed; with a better estimate it might not have been."""

    config: Config
    illegal: str = ""
    estimated: bool = False


@dataclass(frozen=True)
class Job:
    """All the work on one problem under one protocol: the unit that is claimed, measured and stored as a whole.

    `raced`: the outcomes of a race that was stored without all its confirmations, of which there are those that are
    `confirmed`; then only the others are left to do."""

    problem: Problem
    protocol: Protocol
    candidates: tuple[Candidate, ...]
    raced: tuple[Outcome, ...] = ()
    confirmed: tuple[Outcome, ...] = ()

    @property
    def legal(self) -> tuple[Config, ...]:
        """The configs to run, in order."""
        return tuple(c.config for c in self.candidates if not c.illegal)


class Space(Interface):
    """Which configs to try. Pure: no clock, device, environment or disk of its own."""

    def candidates(self, problem: Problem, device: Device, effort: Effort) -> Sequence[Candidate]:
        """The candidates of a problem, without repeats, ATen first. Equal arguments give equal answers, on which
        resuming a build rests."""


def ignore(_job: Job) -> None:
    """For whoever need not know when a job is ready."""


class Measurer(Interface):
    """Times candidates on one device, in isolated processes."""

    def prepare(self, jobs: Sequence[Job], ready: Callable[[Job], None] = ignore) -> None:
        """Compile what these jobs will need, on whichever measurer of the backend they will be measured. May block or
        work in the background; `measure` waits for what it needs. Calls `ready` with each job, from whichever thread,
        when measuring it would wait for nothing. A failure to compile is not raised here: it is the outcome of the
        candidate."""

    def measure(
        self, problem: Problem, configs: Sequence[Config], protocol: Protocol, samples: int
    ) -> Sequence[Outcome]:
        """One outcome per config, in order: checked for correctness, then timed with `samples` samples each,
        interleaved with each other and with ATen, which is measured along even when it is not asked for.

        Never raises for a candidate: one that fails to compile, raises, crashes, hangs, runs out of memory or
        computes wrong results has an outcome that says so, and the others are measured all the same.
        """

    def expect(self, problem: Problem, configs: Sequence[Config]) -> None:
        """These will be measured soon, after what is measured now: whatever can be made ready in the background, while
        another measurer times, may be. Returns at once."""

    def emitted(self, config: Config) -> Config:
        """What to `measure` for the time of the code that the compiler emits for `config`: equal to no other config;
        `config` itself where nothing else is ever measured."""

    def fresh(self) -> Measurer:
        """A measurer of the same device whose `measure` runs in another process than any `measure` of this one before.
        Closing this one closes it."""

    @property
    def busy_s(self) -> float | None:
        """Seconds that the device has spent in timed calls so far, `fresh` ones included; None when nothing is known
        of that."""

    def close(self) -> None:
        """End all isolated processes. Idempotent, and may be called from another thread to stop a `measure`."""


class Backend(Interface):
    """Everything a build needs to know of a kind of device."""

    device: Device
    toolchain: Toolchain
    space: Space
    workers: int
    """How many measurers may work at the same time: one per GPU, one for a CPU."""
    chunk: int
    """How many jobs are claimed and prepared at a time."""
    overlap: bool
    """Whether jobs may be prepared while others are measured: `prepare` then returns at once, and compiling leaves
    timings undisturbed."""

    def protocols(self, effort: Effort) -> Sequence[Protocol]:
        """The protocols that each problem is measured under."""

    def begin(self, jobs: Sequence[Job]) -> None:
        """Told of all work of a build before its first worker starts: what takes longest to compile may begin."""

    def measurer(self, worker: int, effort: Effort, confirms: bool = True) -> Measurer:
        """The measurer of worker 0 to `workers` - 1, which may start what measuring waits for; what its `fresh` one
        waits for only where the caller `confirms` winners."""

    def worker_of(self, gpu: int) -> int:
        """The worker that measures on GPU number `gpu` of the host; the first where there is no such."""

    def close(self) -> None:
        """End what the measurers share, after they are closed. Idempotent."""

    def provenance(self) -> dict[str, object]:
        """JSON-ready device readings for the run's record: clocks, caches, power caps."""


def row(job: Job, outcome: Outcome, backend: Backend, run: str) -> Measurement:
    """The Measurement of an outcome, its toolchain with the source of the kernel where that is ours. Raises InputError
    when its status and times do not go together."""
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
        outcome.detail,
    )


def toolchain(base: Toolchain, config: Config) -> Toolchain:
    """`base` for a row of `config`: with the digest of the template that its kernel is rendered from, so that the row
    holds for as long as that stays the same."""
    source = sources.digest(config)
    return replace(base, source=source) if source else base
