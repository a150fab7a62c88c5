"""`build`: problems -> candidates -> race -> rows -> verdicts, as a resumable queue in the output file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

from gemmdb.errors import InputError
from gemmdb.generators import effort, shapes
from gemmdb.generators.backend import Backend, silent
from gemmdb.generators.build import asked, candidate_filter, queue, target
from gemmdb.generators.build.asked import Recorded
from gemmdb.generators.build.run import Run
from gemmdb.generators.effort import Effort
from gemmdb.generators.measure import backends
from gemmdb.generators.progress import Progress, Silent
from gemmdb.generators.request import BuildReport, BuildRequest, together
from gemmdb.key.problem import Problem
from gemmdb.settings import data_home
from gemmdb.table.writer import Store

__all__ = ["BuildReport", "BuildRequest", "build"]


def build(
    request: BuildRequest,
    progress: Progress | None = None,
    backend: Backend | None = None,
    say: Callable[[str], None] = silent,
) -> BuildReport:
    """Measure what the table does not hold yet, and derive its verdicts.

    `backend` measures; default: that of the requested arch. `say` is told what a person should know before the end. A
    candidate's failure is a row. Ctrl-C ends the build in good order, and the report says so. With `modelled` and no
    such device here, the rows are the cost model's. Raises InputError for a request that cannot be met, TableError for
    an output file that is no table.
    """
    effort.named(request.effort)  # Reject bad input before looking for a device, and before a file is made.
    candidate_filter.compiled(request.allow, request.deny)
    warnings: tuple[str, ...] = ()
    if backend is None and request.modelled and not backends.is_here(request.arch):
        from gemmdb.generators.modelled import table as modelled  # Needs the renderer; a measured build does not.

        return modelled.build(request, progress)
    given = backend
    if backend is None:
        backend, warnings = _backend(request)
    device = backend.device
    chosen = effort.named(request.effort, backend.device.kind)
    request = replace(request, effort=chosen.name)
    listed = shapes.load(request.shapes, backend.device.kind)
    problems = shapes.select(listed, request.ops, request.dtypes)
    if not problems:
        raise InputError(shapes.nothing_left("build", listed, request.shapes))
    out = request.out or data_home() / f"{backend.device.slug}.db"
    builder = Builder(request, chosen, out, progress or Silent(), say, lambda: given or backends.backend_for(device))
    with Store.open(out) as store:
        workload = asked.recorded(request.shapes, problems, backend.device)
        if workload is None:
            report = builder.build(backend, store, problems)
        else:
            report = _recorded(builder, backend, store, workload, problems)
    return replace(report, warnings=(*warnings, *report.warnings))


@dataclass(frozen=True)
class Builder:
    """What all rounds of one build have in common. `renew`: makes a backend for a further round, since a round closes
    its own."""

    request: BuildRequest
    effort: Effort
    out: Path
    progress: Progress
    say: Callable[[str], None]
    renew: Callable[[], Backend]
    started: float = field(default_factory=monotonic)

    def build(self, backend: Backend, store: Store, problems: Sequence[Problem]) -> BuildReport:
        """Measure what the table does not hold of these problems."""
        request = self.request
        if request.minutes is not None:
            request = replace(request, minutes=max(request.minutes - (monotonic() - self.started) / 60, 1e-9))
        jobs = candidate_filter.select(queue.jobs(problems, backend, self.effort), request.allow, request.deny)
        run = Run(request, backend, store, jobs, self.progress)
        run.execute()
        return run.report(self.out, len(problems))


def check(request: BuildRequest) -> None:
    """Reject numbers that mean nothing, with an InputError."""
    if request.gpus is not None and request.gpus < 1:
        raise InputError(f"--gpus {request.gpus}: must be at least 1")
    if request.minutes is not None and not request.minutes > 0:
        raise InputError(f"--minutes {request.minutes:g}: must be more than 0")


def _recorded(
    builder: Builder, backend: Backend, store: Store, workload: Recorded, problems: Sequence[Problem]
) -> BuildReport:
    """Measure what the ladder will ask of a workload, and say what is left out."""
    effort, every, left_out = builder.effort, builder.request.every, Counter[str]()
    with asked.Tables.opened(builder.out) as tables:
        wanted = asked.first(workload, backend, effort, tables)
        begun = problems if every else wanted.problems
        if not every:
            left_out += wanted.left_out
        for reason, number in left_out.items():
            builder.say(_told(number, reason))
        report = builder.build(backend, store, list(dict.fromkeys((*begun, *wanted.problems))))
        for _ in range(asked.ROUNDS - 1 if wanted.ranged else 0):
            more = asked.further(wanted.ranged, backend, effort, tables)
            if not more or report.interrupted or report.left:
                break
            builder.say(f"{len(more)} more sizes of symbolic ranges are measured")
            backend = builder.renew()
            report = together(report, builder.build(backend, store, more))
        in_vain = asked.in_vain(wanted.ranged, backend, tables) if wanted.ranged and not report.disturbed else 0
    if in_vain:
        left_out[asked.NO_KERNEL] = in_vain
        builder.say(_told(in_vain, asked.NO_KERNEL))
    return replace(report, left_out=dict(left_out))


def _told(number: int, reason: str) -> str:
    return f"{number} {'product is' if number == 1 else 'products are'} left to ATen: {reason}"


def _backend(request: BuildRequest) -> tuple[Backend, tuple[str, ...]]:
    """The backend for the request, and warnings."""
    if request.ray is not None:
        raise InputError("--ray: gemmdb.generators.cluster.build builds over a cluster")
    check(request)
    device, warnings = target.choose(request.arch, request.shapes)
    if request.gpus is not None and device.kind == "cpu":
        raise InputError("--gpus: a CPU table uses no GPUs")
    return backends.backend_for(device), warnings
