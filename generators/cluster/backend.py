"""Backend for the devices of one kind in a Ray cluster, used by builds over the cluster. Kernels are compiled as
cluster tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import Any

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError, TaskUnschedulableError, WorkerCrashedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import gemmdb
from gemmdb.errors import GemmdbError, InputError
from gemmdb.generators.backend import Backend, Job, silent
from gemmdb.generators.cluster import connection, delivery, node, resources
from gemmdb.generators.cluster.connection import Offer
from gemmdb.generators.cluster.measurer import Link, RemoteMeasurer
from gemmdb.generators.cluster.node import Description, Measuring, Site
from gemmdb.generators.effort import Effort
from gemmdb.generators.measure.cuda.artifacts import Artifact, Built, Emission
from gemmdb.generators.measure.cuda.precompiler import Precompiler
from gemmdb.table.measurement import Protocol, one_line

NODE_LOST_ERRORS = (NodeDiedError, TaskUnschedulableError, WorkerCrashedError)
"""Errors of a task whose node went away; a cluster notices that after some seconds."""
LATE_FACTOR = 4
"""A request is late after this many times the limits of compiling one candidate and of one timing round."""
DESCRIBE_S = 120.0
"""Seconds that a node may take to describe its device; it starts a process for that."""
RETRIES = 2
"""Ray's retries for a task whose worker or node went away."""
COMPILE_ENVIRONMENT = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""Environment of the compile processes. Because it is a separate one, they are never reused as measuring actors."""


def described(offer: Offer, effort: str | None, site: Site) -> Description | None:
    """Return the device of an offer, as described by its first reachable node, or None if no node is. Raises InputError
    if a node cannot measure, or if its gemmdb version differs from this one."""
    for name in offer.nodes:
        placed = NodeAffinitySchedulingStrategy(name, soft=False)
        task = ray.remote(node.describe).options(num_cpus=0, scheduling_strategy=placed, max_retries=0)
        try:
            found: Description = ray.get(task.remote(offer.name, effort, site), timeout=DESCRIBE_S)
        except NODE_LOST_ERRORS:
            continue
        except RayError as error:
            cause = getattr(error, "cause", None) or error
            raise InputError(f"--ray: a node with {offer.name!r} cannot measure: {one_line(str(cause))}") from None
        if found.toolchain.gemmdb and found.toolchain.gemmdb != gemmdb.__version__:
            other, here = found.toolchain.gemmdb, gemmdb.__version__
            raise InputError(
                f"--ray: a node with {offer.name!r} has gemmdb {other}, this host {here}: install the same"
            )
        return found
    return None


@dataclass
class ClusterBackend(Backend):
    """The devices of an offer. `late_s`: when a request counts as late; None: derived from the effort. `interrupted`:
    ends the build as Ctrl-C does."""

    offer: Offer
    description: Description
    site: Site
    interrupted: Event
    late_s: float | None = None
    chunk = 8
    overlap = True

    def __post_init__(self) -> None:
        self.device, self.toolchain = self.description.device, self.description.toolchain
        self.space = self.description.space
        self.say: Callable[[str], None] = silent
        self.links: list[Link] = []
        self._compilers: Precompiler | None = None
        self._files: dict[str, Any] = {}

    @property
    def workers(self) -> int:
        return self.offer.devices

    def protocols(self, effort: Effort) -> Sequence[Protocol]:
        return self.description.protocols

    def begin(self, jobs: Sequence[Job]) -> None:
        """Start nvcc on the kernels of all jobs, as tasks."""
        if self.device.kind != "cuda":
            return
        nodes = [one for one in ray.nodes() if one["Alive"]]
        ours = [one for one in nodes if any(name.startswith(resources.PREFIX) for name in one["Resources"])]
        names = self.description.compilers
        room = max((connection.processors(nodes, name) for name in set(names.values())), default=0)
        self._compilers = Precompiler(
            self.device.capability, int(self.device.figures.get("smem_bytes", 48 * 1024)),
            max(room - self.workers, 1),
            make=lambda kind: ClusterExecutor(kind, names, len(ours) != 1, self._files),
        )  # fmt: skip
        self._compilers.begin(jobs)

    def measurer(self, worker: int, effort: Effort) -> RemoteMeasurer:
        late_s = self.late_s or LATE_FACTOR * (effort.compile_s + effort.measure_s)
        link = Link(partial(self._actor, effort), late_s, self.interrupted, lambda text: self.say(text))
        self.links.append(link)
        return RemoteMeasurer(link, effort, self._compilers, self._files)

    def close(self) -> None:
        if self._compilers is not None:
            self._compilers.close()
        self._compilers = None
        self._files.clear()

    def provenance(self) -> dict[str, object]:
        return dict(self.description.readings)

    @property
    def lost(self) -> int:
        return sum(link.lost for link in self.links)

    def _actor(self, effort: Effort) -> tuple[Any, Any]:
        one: dict[str, Any] = {"num_cpus": 1, "num_gpus": 1}
        if self.device.kind == "cpu":
            one = {"num_cpus": max(self.offer.cpus, 1)}  # All of them: anything else there would disturb the times.
        held = {resources.arch(self.device): 1, self.offer.name: 1}
        actor = ray.remote(Measuring).options(resources=held, **one).remote()
        return actor, actor.begin.remote(self.device, self.toolchain, effort, self.site)


@dataclass
class ClusterExecutor(Executor):
    """Run `build(artifact, capability)` as a task on a capable node; other calls are no-ops. `kind`: the compiler,
    unless the artifact needs Inductor. `nodes`: see `resources.compilers`. `elsewhere`: compiled files must be copied
    to other nodes. `files`: references to them by artifact."""

    kind: str
    nodes: Mapping[str, str]
    elsewhere: bool
    files: dict[str, Any]
    _running: set[Any] = field(default_factory=set)

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Raises BrokenProcessPool in the future if a compiler crashed its worker."""
        future: Future[Any] = Future()
        if not arguments:
            future.set_result(None)
            return future
        artifact: Artifact = arguments[0]
        kind = "inductor" if isinstance(artifact, Emission) else self.kind
        if kind not in self.nodes:
            future.set_exception(GemmdbError(f"no node of the cluster compiles with {kind}"))
            return future
        task = ray.remote(delivery.built).options(
            num_cpus=1, num_returns=2, resources={self.nodes[kind]: resources.SHARE}, max_retries=RETRIES,
            scheduling_strategy="SPREAD", runtime_env={"env_vars": COMPILE_ENVIRONMENT},
        )  # fmt: skip
        done, files = task.remote(*arguments, self.elsewhere)
        self._running.add(done)
        if self.elsewhere:
            self.files[artifact.key] = files
        done.future().add_done_callback(lambda ended: self._pass_on(ended, done, future))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for reference in list(self._running):
            ray.cancel(reference, force=True)

    def _pass_on(self, ended: Future[Built], reference: Any, future: Future[Any]) -> None:
        self._running.discard(reference)
        error = ended.exception()
        if error is None:
            future.set_result(ended.result())
        elif isinstance(error, WorkerCrashedError | NodeDiedError | OutOfMemoryError):
            future.set_exception(BrokenProcessPool(str(error)))
        else:
            future.set_exception(error)
