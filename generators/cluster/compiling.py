"""Compiles as tasks of a Ray cluster, on the nodes that can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, WorkerCrashedError

from gemmdb.errors import GemmdbError
from gemmdb.generators.cluster import delivery
from gemmdb.generators.cluster.resources import SHARE
from gemmdb.generators.measure.cuda.artifacts import Artifact, Built, Emission

RETRIES = 2
"""How often Ray begins a task anew whose worker or node went away."""
APART = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""The environment of the processes that compile. Having one of their own, they never become actors that measure."""


@dataclass
class ClusterExecutor(Executor):
    """Runs `build(artifact, capability)` as a task of a node that can; anything else does nothing. `kind`: what
    compiles, unless the artifact needs Inductor. `resources`: see `resources.compilers`. `elsewhere`: compiled files
    have to be taken to other nodes. `files`: references to them by artifact."""

    kind: str
    resources: Mapping[str, str]
    elsewhere: bool
    files: dict[str, Any]
    _running: set[Any] = field(default_factory=set)

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """See `Executor.submit`. A compiler that crashed its worker raises BrokenProcessPool."""
        future: Future[Any] = Future()
        if not arguments:
            future.set_result(None)
            return future
        artifact: Artifact = arguments[0]
        kind = "inductor" if isinstance(artifact, Emission) else self.kind
        if kind not in self.resources:
            future.set_exception(GemmdbError(f"no node of the cluster compiles with {kind}"))
            return future
        task = ray.remote(delivery.built).options(
            num_cpus=1, num_returns=2, resources={self.resources[kind]: SHARE}, max_retries=RETRIES,
            scheduling_strategy="SPREAD", runtime_env={"env_vars": APART},
        )  # fmt: skip
        done, files = task.remote(*arguments, self.elsewhere)
        self._running.add(done)
        if self.elsewhere:
            self.files[artifact.key] = files
        done.future().add_done_callback(lambda came: self._pass_on(came, done, future))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel what runs and waits."""
        for reference in list(self._running):
            ray.cancel(reference, force=True)

    def _pass_on(self, came: Future[Built], reference: Any, future: Future[Any]) -> None:
        self._running.discard(reference)
        error = came.exception()
        if error is None:
            future.set_result(came.result())
        elif isinstance(error, WorkerCrashedError | NodeDiedError | OutOfMemoryError):
            future.set_exception(BrokenProcessPool(str(error)))
        else:
            future.set_exception(error)
