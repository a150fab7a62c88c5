"""`build`: problems -> candidates -> race -> rows -> verdicts, as a resumable queue in the output file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

from gemmdb.errors import InputError
from gemmdb.generators import effort, proposals, shapes
from gemmdb.generators.backend import Backend, Job, silent
from gemmdb.generators.build import queue, recorded, target
from gemmdb.generators.build.recorded import Recorded
from gemmdb.generators.build.run import Run
from gemmdb.generators.effort import Effort
from gemmdb.generators.measure import backends
from gemmdb.generators.progress import Progress
from gemmdb.generators.proposals import Proposals
from gemmdb.generators.request import BuildReport, BuildRequest, together
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.outcome import NO_KERNEL
from gemmdb.settings import data_home
from gemmdb.table.writer import Store

__all__ = ["BuildReport", "BuildRequest", "build"]


def build(
    request: BuildRequest,
    progress: Progress | None = None,
    backend: Backend | None = None,
    say: Callable[[str], None] = silent,
) -> BuildReport:
    """Measure what the table lacks, and derive its verdicts.

    `backend` measures; default: the backend for the requested arch. `say` receives messages for the user during the
    build. A candidate's failure is a row. Ctrl-C ends the build cleanly, and the report records it. With `modelled` and
    no such device here, the rows come from the cost model. Raises InputError for an invalid request, TableError for an
    output file that is not a table.
    """
    effort.check(request.effort)  # Reject bad input before looking for a device, and before a file is made.
    select((), request.allow, request.deny)
    proposed = proposals.read(request.propose) if request.propose else None
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
    if proposed is not None:
        proposed.check(problems)
    out = request.out or data_home() / f"{backend.device.slug}.db"
    builder = Builder(request, chosen, out, progress, say, lambda: given or backends.backend_for(device), proposed)
    with Store.open(out) as store:
        workload = recorded.read(request.shapes, problems, backend.device)
        if workload is None:
            report = builder.build(backend, store, problems)
        else:
            report = _build_workload(builder, backend, store, workload, problems)
    return replace(report, warnings=(*warnings, *report.warnings))


@dataclass(frozen=True)
class Builder:
    """State shared by all rounds of one build. `renew`: makes a backend for another round, since each round closes its
    own. `proposed`: further candidates. `waits_s`: seconds that the rounds waited for a quiet machine."""

    request: BuildRequest
    effort: Effort
    out: Path
    progress: Progress | None
    say: Callable[[str], None]
    renew: Callable[[], Backend]
    proposed: Proposals | None = None
    started: float = field(default_factory=monotonic)
    waits_s: list[float] = field(default_factory=list)

    def build(
        self, backend: Backend, store: Store, problems: Sequence[Problem], more: Sequence[Problem] = (),
        before: BuildReport | None = None,
    ) -> BuildReport:  # fmt: skip
        """Measure problems. `more`: problems of further rounds that may follow; `before`: the report of the rounds so
        far, which the result includes, and whose pace is expected."""
        request = self.request if before is None else self.request.after(before)
        if request.minutes is not None:
            spent_s = monotonic() - self.started - sum(self.waits_s)
            request = replace(request, minutes=max(request.minutes - spent_s / 60, 1e-9))
        backend.expect(problems, self.effort)
        jobs = queue.jobs(problems, backend, self.effort)
        if self.proposed is not None:
            jobs = self.proposed.add(jobs, backend.device)
        jobs = select(jobs, request.allow, request.deny)
        run = Run(request, backend, store, jobs, self.progress, more)
        run.execute()
        self.waits_s.append(run.waited_s)
        report = run.report(self.out, len(problems))
        return report if before is None else together(before, report)


def select(jobs: Sequence[Job], allow: str, deny: str) -> list[Job]:
    """Return the jobs with only the candidates whose text matches `allow` and does not match `deny` (regular
    expressions; an empty one has no effect), consistent with how a Policy with them serves. ATen, the reference, always
    stays. Raises InputError for an invalid expression."""
    allowed, denied = _pattern("--allow", allow), _pattern("--deny", deny)

    def accepts(config: Config) -> bool:
        matches = (not allowed or allowed.search(config.text)) and not (denied and denied.search(config.text))
        return config == ATEN or bool(matches)

    def selected(job: Job) -> Job:
        return replace(job, candidates=tuple(c for c in job.candidates if accepts(c.config)), accepts=accepts)

    return list(map(selected, jobs))


def _pattern(option: str, pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern) if pattern else None
    except re.error as error:
        raise InputError(f"{option} {pattern!r}: not a regular expression ({error})") from error


def check(request: BuildRequest) -> None:
    """Raise InputError for invalid numbers."""
    if request.gpus is not None and request.gpus < 1:
        raise InputError(f"--gpus {request.gpus}: must be at least 1")
    if request.minutes is not None and not request.minutes > 0:
        raise InputError(f"--minutes {request.minutes:g}: must be more than 0")


def _build_workload(
    builder: Builder, backend: Backend, store: Store, workload: Recorded, problems: Sequence[Problem]
) -> BuildReport:
    """Measure what lookups need for a workload, and report what is left out."""
    left_out = Counter[str]()

    def leave_out(number: int, reason: str) -> None:
        left_out[reason] = number
        builder.say(f"{number} {'GEMM is' if number == 1 else 'GEMMs are'} left to ATen: {reason}")

    with recorded.tables_with(builder.out) as tables:
        rounds = recorded.Rounds(backend, builder.effort, tables)
        first = rounds.first(workload)
        for reason, number in () if builder.request.every else first.left_out.items():
            leave_out(number, reason)
        more = [one for one in rounds.further(first.ranged) if one not in set(first.problems)]
        if more:
            builder.say(
                f"up to {len(more)} more sizes of symbolic ranges follow, if a kernel may serve the ranges: sizes that"
                " the program used come first"
            )
        begun = problems if builder.request.every else ()
        report = builder.build(backend, store, list(dict.fromkeys((*begun, *first.problems))), more)
        for _ in range(recorded.ROUNDS - 1 if first.ranged else 0):
            more = rounds.further(first.ranged)
            if not more or report.interrupted or report.stopped or report.left:
                break
            builder.say(f"{len(more)} more sizes of symbolic ranges are measured")
            report = builder.build(builder.renew(), store, more, before=report)
        if first.ranged and not report.disturbed and (number := rounds.without_kernel(first.ranged)):
            leave_out(number, NO_KERNEL)
    return replace(report, left_out=dict(left_out))


def _backend(request: BuildRequest) -> tuple[Backend, tuple[str, ...]]:
    if request.ray is not None:
        raise InputError("--ray: gemmdb.generators.cluster.build builds over a cluster")
    check(request)
    device, warnings = target.choose(request.arch, request.shapes)
    if request.gpus is not None and device.kind == "cpu":
        raise InputError("--gpus: a CPU table uses no GPUs")
    return backends.backend_for(device), warnings
