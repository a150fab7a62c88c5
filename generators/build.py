"""`build`: problems -> candidates -> race -> rows -> verdicts, as a resumable queue in the output file."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Any

from gemmdb.device import Device
from gemmdb.errors import InputError
from gemmdb.generators import backends, effort, queue, shapes, target
from gemmdb.generators.interfaces import Backend, Job, Measurer, row
from gemmdb.generators.lane import Confirmed, Ended, Finished, Lane, Message, Phase
from gemmdb.generators.progress import Progress, Silent, Tracker
from gemmdb.generators.store import Store
from gemmdb.settings import data_home


@dataclass(frozen=True)
class BuildRequest:
    """What to build. `arch`: `native`, `cpu` or a GPU's arch. `ops`, `dtypes` (of the activation): only these, empty
    for all. `shapes`: a preset's name or a file (see `shapes.load`), None for the default preset of the device.
    `out`: the table, None for the user's own. `gpus`: how many at most. `ray`, `modelled`: not in this version.
    """

    arch: str = "native"
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    shapes: str | None = None
    effort: str = "quick"
    out: Path | None = None
    gpus: int | None = None
    ray: str | None = None
    modelled: bool = False


@dataclass(frozen=True)
class BuildReport:
    """What became of a build. `problems` asked for; `jobs` they make; `before`: jobs that were in the table already;
    `measured`: jobs done now; `elsewhere`: done meanwhile by another build; `rows` added; `statuses` of these rows.
    `interrupted`: stopped by Ctrl-C, everything finished until then is in the table. `warnings`: lines to show."""

    out: Path
    device: Device
    problems: int
    jobs: int
    before: int
    measured: int
    elsewhere: int
    rows: int
    statuses: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    interrupted: bool = False
    warnings: tuple[str, ...] = ()


def build(request: BuildRequest, progress: Progress | None = None, backend: Backend | None = None) -> BuildReport:
    """Measure what the table does not hold yet, and derive its verdicts.

    `backend` measures; default: that of the requested arch. A candidate's failure is a row. Ctrl-C ends the build in
    good order and is told in the report. Raises InputError for a request that cannot be met, TableError for an output
    file that is no table.
    """
    chosen = effort.named(request.effort)
    warnings: tuple[str, ...] = ()
    if backend is None:
        backend, warnings = _backend(request)
    problems = shapes.select(shapes.load(request.shapes, backend.device.kind), request.ops, request.dtypes)
    if not problems:
        raise InputError("no problem is left to build: --ops or --dtypes exclude all of the shapes")
    out = request.out or data_home() / f"{backend.device.slug}.db"
    with Store.open(out) as store:
        jobs = queue.jobs(problems, backend, chosen)
        run = _Run(request, backend, store, jobs, progress or Silent())
        run.execute()
        return replace(run.report(out, len(problems)), warnings=warnings)


class _Run:
    """The mutable state of one build."""

    def __init__(self, request: BuildRequest, backend: Backend, store: Store, jobs: Sequence[Job], progress: Progress):
        self.request, self.backend, self.store, self.jobs = request, backend, store, jobs
        self.effort = effort.named(request.effort)
        self.started = monotonic()
        self.pending = queue.left(jobs, store.path, backend)
        self.before = len(jobs) - len(self.pending)
        self.tracker = Tracker(progress, len(jobs), self.before)
        self.statuses: Counter[str] = Counter()
        self.rows = self.measured = self.elsewhere = 0
        self.run_id = ""
        self.interrupted = False
        self.unsaved: list[Finished | Confirmed] = []

    def execute(self) -> None:
        """Run the lanes to the end, then bring the verdicts up to date, also after an interrupt."""
        try:
            if self.pending:
                self._lanes()
        finally:
            self.store.refresh()
            self.tracker.say("finished")

    def report(self, out: Path, problems: int) -> BuildReport:
        """What became of it."""
        return BuildReport(
            out,
            self.backend.device,
            problems,
            len(self.jobs),
            self.before,
            self.measured,
            self.elsewhere,
            self.rows,
            dict(sorted(self.statuses.items())),
            monotonic() - self.started,
            self.interrupted,
        )

    def _lanes(self) -> None:
        with ExitStack() as stack:
            claims = stack.enter_context(queue.Claims(self.store.path))
            work = queue.Work(self.pending, self.store.path, self.backend, claims)
            stack.callback(work.stop.set)
            messages: SimpleQueue[Message] = SimpleQueue()
            stack.callback(self.backend.close)
            count = min(self.backend.lanes, self.request.gpus or self.backend.lanes)
            measurers = [self.backend.measurer(lane, self.effort) for lane in range(count)]
            for measurer in measurers:
                stack.callback(measurer.close)
            lanes = [Lane(work, measurer, self.effort, messages) for measurer in measurers]
            for lane in lanes:
                lane.start()
            try:
                self._listen(messages, work, len(lanes))
            except KeyboardInterrupt:
                self.interrupted = True
                work.stop.set()
                self._stop(messages, measurers, lanes)

    def _listen(self, messages: SimpleQueue[Message], work: queue.Work, lanes: int) -> None:
        while lanes:
            message = messages.get()
            if isinstance(message, Ended):
                lanes -= 1
                if message.error is not None:
                    raise message.error
            elif isinstance(message, Phase):
                self.tracker.say(message.name, message.problem)
            else:
                self._keep(message)
            if isinstance(message, Finished):
                work.release(message.job)
                self.measured += 1
                self.tracker.finished(message.job.problem)
            for job in work.elsewhere[self.elsewhere :]:
                self.elsewhere += 1
                self.tracker.finished(job.problem)

    def _stop(self, messages: SimpleQueue[Message], measurers: Sequence[Measurer], lanes: Sequence[Lane]) -> None:
        for measurer in measurers:
            measurer.close()
        for lane in lanes:
            lane.join()
        late, self.unsaved = [*self.unsaved], []
        while not messages.empty():
            message = messages.get()
            if isinstance(message, Finished | Confirmed):
                late.append(message)
        for message in late:
            self._keep(message)
            self.measured += isinstance(message, Finished)

    def _keep(self, message: Finished | Confirmed) -> None:
        # An interrupt in the middle of this leaves the message to `_stop`; adding the same rows again changes nothing.
        self.unsaved.append(message)
        if not self.run_id:
            self.run_id = self.store.begin_run(self._provenance())
        rows = [row(message.job, outcome, self.backend, self.run_id) for outcome in message.outcomes]
        self.rows += self.store.add(rows)
        self.statuses.update(row.status.value for row in rows)
        self.unsaved.remove(message)

    def _provenance(self) -> dict[str, Any]:
        asked = {name: value for name, value in asdict(self.request).items() if value not in (None, (), False)}
        return {
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "request": {name: str(value) if isinstance(value, Path) else value for name, value in asked.items()},
            "effort": asdict(self.effort),
            "toolchain": self.backend.toolchain.text,
            "device": self.backend.device.text,
            "readings": self.backend.provenance(),
        }


def _backend(request: BuildRequest) -> tuple[Backend, tuple[str, ...]]:
    """The backend that the request asks for, and what to warn of."""
    if request.modelled:
        raise InputError("--modelled: tables from the cost model are not available in this version")
    if request.ray is not None:
        raise InputError("--ray: building on several hosts is not available in this version; build on each, then merge")
    if request.gpus is not None and request.gpus < 1:
        raise InputError(f"--gpus {request.gpus}: must be at least 1")
    device, warnings = target.choose(request.arch, request.shapes)
    if request.gpus is not None and device.kind == "cpu":
        raise InputError("--gpus: a table for a CPU is measured on the CPU")
    return backends.backend_for(device), warnings
