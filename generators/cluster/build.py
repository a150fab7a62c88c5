"""`build` over a Ray cluster: one build for each kind of device that the nodes offer, all at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from gemmdb.errors import InputError
from gemmdb.generators import effort
from gemmdb.generators.backend import silent
from gemmdb.generators.build import build as plain
from gemmdb.generators.build import target
from gemmdb.generators.cluster import connection
from gemmdb.generators.cluster.node import Site
from gemmdb.generators.progress import Progress, Silent, State
from gemmdb.generators.request import BuildReport, BuildRequest

if TYPE_CHECKING:
    from gemmdb.generators.cluster.backend import ClusterBackend

HERE = Site()
POLL_S = 0.2
"""How often, in seconds, builds that run at the same time are looked at."""


def build(
    request: BuildRequest,
    progress: Progress | None = None,
    say: Callable[[str], None] = silent,
    site: Site = HERE,
    late_s: float | None = None,
) -> list[BuildReport]:
    """Measure on the nodes of the cluster `request.ray` what the tables do not hold yet, as `build.build` does on one
    host. A report per kind of device, in the order of their names.

    Results are written here as they come in, so neither a lost node nor the end of this process loses them. What a lost
    worker was measuring is measured by another one, and set aside with a status after the third. `site`: how nodes
    find their devices. `late_s`: the most seconds that one request to a device may take; None: by the
    effort. Raises InputError for a request or a cluster that cannot be used.
    """
    if request.ray is None:
        raise InputError("a build over a cluster needs its address")
    if request.modelled:
        raise InputError("--ray: a modelled build measures nothing")
    effort.named(request.effort)
    plain.check(request)
    with connection.connected(request.ray):
        builds = _builds(request, site, late_s, say)
        shared = Shared(progress or Silent())
        for one in builds:
            one.progress = shared.part()
        if len(builds) == 1:
            builds[0].run()
        else:
            _together(builds)
    return [one.outcome() for one in builds]


@dataclass
class DeviceBuild:
    """The build of one kind of device. `interrupted`: set to end it as Ctrl-C does."""

    request: BuildRequest
    backend: ClusterBackend
    warnings: tuple[str, ...]
    say: Callable[[str], None]
    interrupted: Event
    progress: Progress = field(default_factory=Silent)
    done: Event = field(default_factory=Event)
    report: BuildReport | None = None
    error: BaseException | None = None

    def run(self) -> None:
        """Build, and keep the report or the error."""
        try:
            report = plain.build(self.request, self.progress, self.backend, self.say)
            self._keep(report)
        except BaseException as error:
            self.error = error
        finally:
            self.done.set()

    def _keep(self, report: BuildReport) -> None:
        lost = self.backend.lost
        gone = (f"workers of the cluster lost: {lost}; what they were measuring went to others",) if lost else ()
        self.report = replace(report, warnings=(*self.warnings, *report.warnings, *gone))

    def outcome(self) -> BuildReport:
        """The report. Raises what ended the build."""
        if self.error is not None:
            raise self.error
        assert self.report is not None
        return self.report


def _builds(request: BuildRequest, site: Site, late_s: float | None, say: Callable[[str], None]) -> list[DeviceBuild]:
    import ray

    from gemmdb.generators.cluster.backend import ClusterBackend, described  # Only now it is known that ray is there.

    found = []
    for offer in connection.offers(ray.nodes(), request.arch):
        description = described(offer, request.effort, site)
        if description is None:
            continue
        if request.gpus is not None and description.device.kind == "cpu":
            raise InputError("--gpus: a CPU table uses no GPUs")
        device, warnings = target.fitted(description.device, request.arch, request.shapes)
        interrupted = Event()
        backend = ClusterBackend(offer, replace(description, device=device), site, interrupted, late_s)
        # An address does not belong into a table.
        mine = replace(request, arch=device.arch, ray=None)
        found.append(DeviceBuild(mine, backend, warnings, say, interrupted))
    if not found:
        raise InputError("--ray: the nodes with such a device have just gone away")
    return found


def _together(builds: Sequence[DeviceBuild]) -> None:
    """Run builds at once. Ctrl-C ends all of them in good order; if one fails, the others go on."""
    for one in builds:
        Thread(target=one.run).start()
    # Not by joining: an interrupted `join` of Python 3.11 takes its thread for ended.
    while not all(one.done.is_set() for one in builds):
        try:
            for one in builds:
                one.done.wait(POLL_S)
        except KeyboardInterrupt:
            for one in builds:
                one.interrupted.set()


class Shared:
    """Adds up the progress of builds that run at the same time."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._states, self._lock = progress, list[State](), Lock()

    def part(self) -> Progress:
        """The progress of one more build."""
        self._states.append(State(0, 0))
        return _Part(self, len(self._states) - 1)

    def update(self, number: int, state: State) -> None:
        """Note and report the state of a build."""
        with self._lock:
            self._states[number] = state
            known = [one.eta_s for one in self._states if one.eta_s is not None]
            total, done, before = (sum(numbers) for numbers in zip(*map(_numbers, self._states), strict=True))
            eta_s = max(known, default=None)
            self._progress.update(State(total, done, before, state.phase, state.current, eta_s))


def _numbers(state: State) -> tuple[int, int, int]:
    return state.total, state.done, state.before


@dataclass(frozen=True)
class _Part:
    shared: Shared
    number: int

    def update(self, state: State) -> None:
        self.shared.update(self.number, state)
