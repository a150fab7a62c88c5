"""Code that runs on the nodes of a cluster: the description of a device, and the actor that measures on it. Does not
import ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gemmdb.devices import detect
from gemmdb.errors import GemmdbError
from gemmdb.generators import effort as efforts
from gemmdb.generators.backend import Backend, Candidate, Job, Measurer, Outcome, Space
from gemmdb.generators.cluster import delivery, resources
from gemmdb.generators.effort import Effort
from gemmdb.generators.measure import backends, quiet
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.table.measurement import Protocol, Status

Failure = tuple[Status, str, float]


@dataclass(frozen=True)
class Description:
    """What the driver needs to know about a device: the driver's host may lack such a device and its toolchain.
    `compilers`: see `resources.compilers`."""

    device: Device
    toolchain: Toolchain
    space: Space
    protocols: tuple[Protocol, ...]
    compilers: Mapping[str, str]
    readings: Mapping[str, object]


def found(name: str) -> Device | None:
    threads = resources.threads(name)
    return detect.cuda() if threads is None else detect.cpu(threads)


@dataclass(frozen=True)
class Site:
    """How a node finds its device by resource name, and makes its backend."""

    find: Callable[[str], Device | None] = found
    make: Callable[[Device], Backend] = backends.backend_for


def describe(name: str, effort: str | None, site: Site) -> Description:
    delivery.show_gpus()
    device = site.find(name)
    if device is None:
        raise GemmdbError(f"a node offers {name!r}, and has no such device")
    backend = site.make(device)
    protocols = tuple(backend.protocols(efforts.named(effort, device.kind)))
    compilers = resources.compilers() if device.kind == "cuda" else {}
    return Description(backend.device, backend.toolchain, backend.space, protocols, compilers, backend.provenance())


@dataclass(frozen=True)
class Compiled:
    """Result of the compile tasks for some configs. `failures`: by config, for those that failed; `seconds`: by config,
    for all. `files`: references to the packed files by artifact."""

    failures: Mapping[Config, Failure | None]
    seconds: Mapping[Config, float]
    files: Mapping[str, Any] = field(default_factory=dict)


class Delivered:
    """Replaces the Precompiler if compile tasks compile: it knows the results delivered last."""

    def __init__(self) -> None:
        self.last = Compiled({}, {})

    def failure(self, problem: Problem, config: Config, limit_s: float) -> Failure | None:
        """Return why a config cannot be measured (status, compiler message, seconds), or None if it compiled."""
        return self.last.failures.get(config)

    def seconds(self, problem: Problem, config: Config) -> float:
        return self.last.seconds.get(config, 0.0)

    def close(self) -> None:
        """Do nothing."""


class Measuring:
    """The actor with exclusive use of a device. The device's measurers run in its process."""

    def begin(self, device: Device, toolchain: Toolchain, effort: Effort, site: Site) -> None:
        """Start the measurer, and wait briefly while others use the device. Raises GemmdbError if this node has another
        device, or other software than `toolchain`; drivers may differ."""
        os.environ.pop("OMP_NUM_THREADS", None)  # Set by Ray to the actor's number of processors.
        backend = site.make(device)
        self._delivered = Delivered()
        if hasattr(backend, "compilers"):
            backend.compilers = self._delivered
        if replace(backend.toolchain, driver="") != replace(toolchain, driver=""):
            raise GemmdbError(f"its software differs from another node: {backend.toolchain.text}, not {toolchain.text}")
        if not backend.workers:
            raise GemmdbError(f"a node offers {resources.sku(device)!r}, and its GPU is another one")
        self._busy, self._compiles_here = bool(quiet.wait(backend)), device.kind != "cuda"
        self._measurers: dict[int, Measurer] = {0: backend.measurer(0, effort)}

    def measure(
        self,
        which: int,
        problem: Problem,
        configs: Sequence[Config],
        protocol: Protocol,
        samples: int,
        compiled: Compiled,
    ) -> tuple[Sequence[Outcome], float | None]:  # fmt: skip
        """See `Measurer.measure`. `which`: 0 for the device's measurer, another number for its `fresh` one: a new
        number creates a new one. `compiled`: compile results for the configs, unless they are compiled here. Also
        returns the device's seconds in timed calls since the actor started."""
        measurer = self._of(which)
        if self._compiles_here:
            measurer.prepare([Job(problem, protocol, tuple(map(Candidate, dict.fromkeys((ATEN, *configs)))))])
        else:
            self._take(compiled)
        outcomes = measurer.measure(problem, configs, protocol, samples)
        if self._busy:
            outcomes = [replace(one, disturbed=True) if one.times else one for one in outcomes]
        return outcomes, self._measurers[0].busy_s

    def proposed(self, which: int, problem: Problem) -> Sequence[Config]:
        return self._of(which).proposed(problem)

    def near(self, which: int, problem: Problem, estimates: Sequence[Outcome]) -> Sequence[Config]:
        return self._of(which).near(problem, estimates)

    def expect(self, which: int, problem: Problem, configs: Sequence[Config], compiled: Compiled) -> None:
        self._take(compiled)
        self._of(which).expect(problem, configs)

    def _of(self, which: int) -> Measurer:
        if which not in self._measurers:
            self._measurers = {0: self._measurers[0], which: self._measurers[0].fresh()}
        return self._measurers[which]

    def _take(self, compiled: Compiled) -> None:
        self._delivered.last = compiled
        delivery.place(compiled.files)
