"""`build`: problems -> candidates -> race -> rows -> verdicts, as a resumable queue in the output file."""

from __future__ import annotations

from dataclasses import replace

from gemmdb.errors import InputError
from gemmdb.generators import effort
from gemmdb.generators.build import candidate_filter, queue, target
from gemmdb.generators.build.run import Run
from gemmdb.generators.interfaces.backend import Backend
from gemmdb.generators.interfaces.progress import Progress, Silent
from gemmdb.generators.interfaces.request import BuildReport, BuildRequest
from gemmdb.generators.measure import backends
from gemmdb.generators.shapes import loading
from gemmdb.settings import data_home
from gemmdb.table.writer import Store

__all__ = ["BuildReport", "BuildRequest", "build"]


def build(request: BuildRequest, progress: Progress | None = None, backend: Backend | None = None) -> BuildReport:
    """Measure what the table does not hold yet, and derive its verdicts.

    `backend` measures; default: that of the requested arch. A candidate's failure is a row. Ctrl-C ends the build in
    good order, and the report says so. With `modelled` and no such device here, the rows are the cost model's. Raises
    InputError for a request that cannot be met, TableError for an output file that is no table.
    """
    effort.named(request.effort)  # Reject bad input before looking for a device, and before a file is made.
    candidate_filter.compiled(request.allow, request.deny)
    warnings: tuple[str, ...] = ()
    if backend is None and request.modelled and not backends.is_here(request.arch):
        from gemmdb.generators.modelled import table as modelled  # Needs the renderer; a measured build does not.

        return modelled.build(request, progress)
    if backend is None:
        backend, warnings = _backend(request)
    chosen = effort.named(request.effort, backend.device.kind)
    request = replace(request, effort=chosen.name)
    listed = loading.load(request.shapes, backend.device.kind)
    problems = loading.select(listed, request.ops, request.dtypes)
    if not problems:
        raise InputError(loading.nothing_left("build", listed, request.shapes))
    out = request.out or data_home() / f"{backend.device.slug}.db"
    with Store.open(out) as store:
        jobs = candidate_filter.select(queue.jobs(problems, backend, chosen), request.allow, request.deny)
        run = Run(request, backend, store, jobs, progress or Silent())
        run.execute()
        report = run.report(out, len(problems))
        return replace(report, warnings=(*warnings, *report.warnings))


def _backend(request: BuildRequest) -> tuple[Backend, tuple[str, ...]]:
    """The backend for the request, and warnings."""
    if request.ray is not None:
        raise InputError("--ray: building on several hosts is not available in this version; build on each, then merge")
    if request.gpus is not None and request.gpus < 1:
        raise InputError(f"--gpus {request.gpus}: must be at least 1")
    if request.minutes is not None and not request.minutes > 0:
        raise InputError(f"--minutes {request.minutes:g}: must be more than 0")
    device, warnings = target.choose(request.arch, request.shapes)
    if request.gpus is not None and device.kind == "cpu":
        raise InputError("--gpus: a CPU table uses no GPUs")
    return backends.backend_for(device), warnings
