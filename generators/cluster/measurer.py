"""Measurer for a device of a Ray cluster: its calls go to an actor with exclusive use of the device."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Event
from time import monotonic
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from gemmdb.errors import GemmdbError
from gemmdb.generators.backend import Job, Lost, Measurer, Outcome, ignore, silent
from gemmdb.generators.cluster.node import Compiled
from gemmdb.generators.effort import Effort
from gemmdb.generators.measure.cuda.artifacts import Emitted
from gemmdb.generators.measure.cuda.precompiler import Precompiler
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.processes.pool import Stopped
from gemmdb.table.measurement import Protocol, Status, one_line

POLL_S = 0.2
PATIENCE_S = 10.0
"""Seconds that an actor may take to start before `say` reports the wait for a device."""
START_ATTEMPTS = 3
"""A build ends when a device's actor went away this many times in a row before it could measure anything."""


@dataclass
class Link:
    """Connection to the actor of a device. `start`: makes an actor and returns it with the reference to the end of its
    setup; Ray places it once a node has room. `late_s`: when a request counts as late, and its actor is given up.
    `interrupted`: ends all waiting with KeyboardInterrupt. `say`: receives what the link is waiting for. `busy_s`:
    seconds of timed calls, `earlier_s` of them on lost actors."""

    start: Callable[[], tuple[Any, Any]]
    late_s: float
    interrupted: Event
    say: Callable[[str], None] = silent
    busy_s: float | None = None
    lost: int = 0
    earlier_s: float = 0.0
    _actor: Any = None
    _begun: Any = None
    _ready: bool = False
    _failed: int = 0
    _silent_until: float = math.inf
    _closed: bool = False

    def available(self) -> bool:
        self._check()
        if self._ready:
            return True
        if self._actor is None:
            self._actor, self._begun = self.start()
            self._silent_until = monotonic() + PATIENCE_S
        if not ray.wait([self._begun], timeout=0)[0]:
            if monotonic() > self._silent_until:
                self.say("waiting for a free device of the cluster")
                self._silent_until = math.inf
            return False
        try:
            ray.get(self._begun)
        except RayActorError as error:
            self._failed += 1
            self._kill()
            if self._failed >= START_ATTEMPTS:
                raise GemmdbError(f"the workers of the cluster end before they measure: {_cause(error)}") from None
            return False
        except RayError as error:
            raise GemmdbError(f"a worker of the cluster cannot measure: {_cause(error)}") from None
        self._ready, self._failed = True, 0
        return True

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method of the actor and return its result. Raises Lost if the actor, its process or its node went
        away, failed, or is late, and Stopped after `close`. The next actor then starts."""
        reference = self._method(name).remote(*arguments)
        until = monotonic() + self.late_s
        while not ray.wait([reference], timeout=POLL_S)[0]:
            self._check()
            if monotonic() > until:
                self._renew()
                raise Lost(f"no answer within {self.late_s:g} s", Status.TIMEOUT)
        try:
            return ray.get(reference)
        except RayError as error:
            self._check()
            self._renew()
            went_away = isinstance(error, RayActorError)
            raise Lost("its workers went away" if went_away else f"its workers failed: {_cause(error)}") from None

    def tell(self, name: str, *arguments: Any) -> None:
        self._method(name).remote(*arguments)

    def close(self) -> None:
        """End the actor for good. A call in another thread raises Stopped."""
        self._closed = True
        self._kill()

    def _method(self, name: str) -> Any:
        actor = self._actor
        if actor is None:
            raise Stopped("the measurer is closed")
        return getattr(actor, name)

    def _check(self) -> None:
        if self._closed:
            raise Stopped("the measurer is closed")
        if self.interrupted.is_set():
            raise KeyboardInterrupt

    def _renew(self) -> None:
        """Give up the current actor. `available` starts the next one."""
        self.lost += 1
        self.earlier_s, self._ready = self.busy_s or 0.0, False
        self._kill()

    def _kill(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            with contextlib.suppress(RayError):
                ray.kill(actor)


@dataclass
class RemoteMeasurer(Measurer):
    """Calls the actor of a link. `precompiler`: compiles as cluster tasks; None if the actor compiles locally. `files`:
    references to compiled files by artifact. `which`: see `node.Measuring.measure`."""

    link: Link
    effort: Effort
    precompiler: Precompiler | None
    files: dict[str, Any]
    which: int = 0
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def prepare(self, jobs: Sequence[Job], ready: Callable[[Job], None] = ignore) -> None:
        """Have the jobs' artifacts compiled by tasks; if the actor compiles locally, that waits until it measures."""
        for job in jobs:
            if self.precompiler is None:
                ready(job)
            else:
                self.precompiler.prepare(job, ready)

    def measure(
        self, problem: Problem, configs: Sequence[Config], protocol: Protocol, samples: int
    ) -> Sequence[Outcome]:
        compiled = self._compiled(problem, configs)
        outcomes: Sequence[Outcome]
        outcomes, busy_s = self.link.call("measure", self.which, problem, tuple(configs), protocol, samples, compiled)
        self.link.busy_s = None if busy_s is None else self.link.earlier_s + busy_s
        return outcomes

    def proposed(self, problem: Problem) -> Sequence[Config]:
        found: Sequence[Config] = ()
        if self.effort.proposals:
            found = self.link.call("proposed", self.which, problem)
        return found

    def near(self, problem: Problem, estimates: Sequence[Outcome]) -> Sequence[Config]:
        found: Sequence[Config] = ()
        if self.effort.neighbours:
            found = self.link.call("near", self.which, problem, tuple(estimates))
        return found

    def available(self) -> bool:
        return self.link.available()

    def ready(self, limit_s: float) -> bool:
        return self.link.available()

    def compiled(self, problem: Problem, config: Config) -> bool:
        return self.precompiler is None or all(one.done() for one in self.precompiler.submit(problem, config))

    def expect(self, problem: Problem, configs: Sequence[Config]) -> None:
        if self.precompiler is not None and all(self.compiled(problem, config) for config in (ATEN, *configs)):
            self.link.tell("expect", self.which, problem, tuple(configs), self._compiled(problem, configs))

    def emitted(self, config: Config) -> Config:
        return config if config == ATEN or self.precompiler is None else Emitted.code_of(config)

    def fresh(self) -> RemoteMeasurer:
        return replace(self, which=next(self._numbers))  # The actor creates it on first use.

    @property
    def busy_s(self) -> float | None:
        """Seconds of timed calls, including lost actors; None if unknown."""
        return self.link.busy_s

    def close(self) -> None:
        self.link.close()

    def _compiled(self, problem: Problem, configs: Sequence[Config]) -> Compiled:
        compilers = self.precompiler
        if compilers is None:
            return Compiled({}, {})
        wanted = tuple(dict.fromkeys((ATEN, *configs)))
        failures = {config: compilers.failure(problem, config, self.effort.compile_s) for config in wanted}
        keys = [key for config in wanted for key in compilers.keys(problem, config)] if self.files else []
        files = {key: self.files[key] for key in dict.fromkeys(keys) if key in self.files}
        return Compiled(failures, {config: compilers.seconds(problem, config) for config in wanted}, files)


def _cause(error: RayError) -> str:
    """Return the exception that a worker raised, in one line."""
    cause = getattr(error, "cause", None) or error
    return one_line(f"{type(cause).__name__}: {cause}".split("\n\n")[-1])
