"""`build` over a Ray cluster: one build per kind of device on the nodes, all in parallel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from threading import Event, Lock
from typing import TYPE_CHECKING

from gemmdb.errors import InputError
from gemmdb.generators import effort
from gemmdb.generators.backend import silent
from gemmdb.generators.build import build as plain
from gemmdb.generators.build import target
from gemmdb.generators.cluster import connection
from gemmdb.generators.cluster.node import Site
from gemmdb.generators.progress import Progress, State
from gemmdb.generators.request import BuildReport, BuildRequest

if TYPE_CHECKING:
    from gemmdb.generators.cluster.backend import ClusterBackend

LOCAL_SITE = Site()
POLL_S = 0.2
"""Seconds between checks of parallel builds."""


def build(
    request: BuildRequest,
    progress: Progress | None = None,
    say: Callable[[str], None] = silent,
    site: Site = LOCAL_SITE,
    late_s: float | None = None,
) -> list[BuildReport]:
    """Measure on the nodes of the cluster `request.ray` what the tables lack, as `build.build` does on one host.
    Returns a report per kind of device, in name order.

    Results are written on this host as they arrive, so neither a lost node nor the end of this process loses them.
    Another worker repeats what a lost worker was measuring; after the third loss the job is set aside with a status.
    `site`: how nodes find their devices. `late_s`: maximum seconds per request to a device; None: derived from the
    effort. Raises InputError for an unusable request or cluster.
    """
    if request.ray is None:
        raise InputError("a build over a cluster needs its address")
    if request.modelled:
        raise InputError("--ray: a modelled build measures nothing")
    effort.check(request.effort)
    plain.check(request)
    with connection.connected(request.ray):
        builds = _builds(request, SharedProgress(progress), site, late_s, say)
        return [builds[0].run()] if len(builds) == 1 else _together(builds)


@dataclass
class DeviceBuild:
    """The build for one kind of device."""

    request: BuildRequest
    backend: ClusterBackend
    progress: Progress
    warnings: tuple[str, ...]
    say: Callable[[str], None]

    def run(self) -> BuildReport:
        report = plain.build(self.request, self.progress, self.backend, self.say)
        lost = self.backend.lost
        gone = (f"workers of the cluster lost: {lost}; what they were measuring went to others",) if lost else ()
        return replace(report, warnings=(*self.warnings, *report.warnings, *gone))


def _builds(
    request: BuildRequest, progress: SharedProgress, site: Site, late_s: float | None, say: Callable[[str], None]
) -> list[DeviceBuild]:
    import ray

    from gemmdb.generators.cluster.backend import ClusterBackend, described  # Needs ray, which has been checked by now.

    found = []
    for offer in connection.offers(ray.nodes(), request.arch):
        description = described(offer, request.effort, site)
        if description is None:
            continue
        if request.gpus is not None and description.device.kind == "cpu":
            raise InputError("--gpus: a CPU table uses no GPUs")
        device, warnings = target.fitted(description.device, request.arch, request.shapes)
        backend = ClusterBackend(offer, replace(description, device=device), site, Event(), late_s)
        # Tables must not contain addresses.
        mine = replace(request, arch=device.arch, ray=None)
        found.append(DeviceBuild(mine, backend, replace(progress), warnings, say))
    if not found:
        raise InputError("--ray: the nodes with such a device are gone")
    return found


def _together(builds: Sequence[DeviceBuild]) -> list[BuildReport]:
    """Run builds in parallel. Ctrl-C ends all of them cleanly; if one fails, the others continue."""
    with ThreadPoolExecutor(len(builds)) as pool:
        futures: list[Future[BuildReport]] = [pool.submit(one.run) for one in builds]
        running = True
        while running:
            try:
                running = bool(wait(futures, POLL_S).not_done)
            except KeyboardInterrupt:
                for one in builds:
                    one.backend.interrupted.set()
    return [future.result() for future in futures]


@dataclass(eq=False)
class SharedProgress:
    """Progress of one of several parallel builds; shows their sum. A `replace` of it belongs to another build."""

    progress: Progress | None
    states: dict[int, State] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def update(self, state: State) -> None:
        with self.lock:
            self.states[id(self)] = state
            all_states = self.states.values()
            total, done, before = (sum(getattr(s, name) for s in all_states) for name in ("total", "done", "before"))
            eta_s = max((one.eta_s for one in all_states if one.eta_s is not None), default=None)
            most_s = max((one.most_s for one in all_states if one.most_s is not None), default=None)
            if self.progress is not None:
                self.progress.update(
                    State(total, done, before, state.phase, state.current, eta_s, most_s, state.slower)
                )
