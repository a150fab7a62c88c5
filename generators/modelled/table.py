"""`build --modelled`: a table for a GPU that this machine lacks, from the cost model instead of measurements.

Every row is marked: the clock of its protocol is `model`. If triton is installed, the candidates are compiled for the
arch, and those that do not fit or spill registers are left out. Nothing is ever run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import metadata
from time import monotonic
from typing import Any

from gemmdb.cost import data
from gemmdb.cost.machine import machine
from gemmdb.cost.model import FITTED
from gemmdb.devices import registry
from gemmdb.errors import InputError
from gemmdb.generators import shapes
from gemmdb.generators.backend import toolchain
from gemmdb.generators.modelled import CUDA, PROTOCOL, cross_compile, space
from gemmdb.generators.modelled.cross_compile import CrossCompiler
from gemmdb.generators.progress import Progress, Tracker
from gemmdb.generators.request import BuildReport, BuildRequest, command
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.lookup.ranking import uncovered
from gemmdb.settings import data_home
from gemmdb.table.measurement import Measurement, Status, Times
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

MAX_CONFIGS = 4
"""Configs per problem besides ATen."""
MAX_COMPILED = 12
"""Most candidates per problem that are compiled to find these."""


def device_for(name: str) -> Device:
    """Return the known GPU of that arch or SKU. Raises InputError if the model has no figures for it."""
    found = registry.find(name)
    if found is None or machine(found) is None:
        known = sorted({device.arch for device in registry.KNOWN if machine(device)})
        raise InputError(f"--modelled: unknown device {name!r}; known archs: {', '.join(known)}")
    return found


def build(request: BuildRequest, progress: Progress | None = None) -> BuildReport:
    """Predict the best configs of every problem and store them as modelled rows. Problems that the table already has
    under this model version stay unchanged. A warning counts the problems that the model does not cover.

    Raises InputError for an invalid request, TableError if the output file is not a table.
    """
    device = device_for(request.arch)
    for flag, value in (("--gpus", request.gpus), ("--ray", request.ray), ("--minutes", request.minutes)):
        if value is not None:
            raise InputError(f"{flag}: a modelled build measures nothing; the same command continues a stopped one")
    if request.allow or request.deny or request.propose:
        options = "--allow, --deny, --propose"
        raise InputError(f"{options}: these choose what is measured; for a modelled table, the cost model chooses")
    listed = shapes.load(request.shapes, device.kind)
    requested = shapes.select(listed, request.ops, request.dtypes)
    problems = [problem for problem in requested if uncovered(problem) is None]
    if not requested:
        raise InputError(shapes.nothing_left("model", listed, request.shapes))
    if not problems:
        raise InputError(f"no problem is left to model: {uncovered(requested[0])}; measure on such a GPU instead")
    compiler = None
    if cross_compile.available():
        compiler = CrossCompiler(device.capability, int(device.figures["smem_bytes"]))
    report = _model(request, device, problems, compiler, progress)
    return replace(report, warnings=_warnings(len(requested) - len(problems), compiler is not None))


def _model(
    request: BuildRequest, device: Device, problems: Sequence[Problem], compiler: CrossCompiler | None,
    progress: Progress | None,
) -> BuildReport:  # fmt: skip
    """Model the problems that the table lacks one by one, then update the verdicts."""
    out = request.out or data_home() / f"{device.slug}.db"
    started, rows, interrupted = monotonic(), 0, False
    with Store.open(out) as store:
        with Table.open(out) as table:
            missing = [p for p in problems if all(one.protocol != PROTOCOL for one in table.verdicts(p, device))]
        tracker = Tracker(progress, len(problems), len(problems) - len(missing))
        try:
            base = Toolchain(triton=_version("triton") if compiler else "", cuda=CUDA, gemmdb=_version("gemmdb"))
            run = store.begin_run(_provenance(request, device, compiler is not None)) if missing else ""
            for problem in missing:
                tracker.say("compiling" if compiler else "modelling", problem)
                rows += store.add(_measurements(problem, device, base, run, compiler))
                tracker.finished(problem)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            store.refresh()
            tracker.say("finished")
    return BuildReport(
        out=out, device=device, problems=len(problems), jobs=len(problems), before=tracker.before,
        measured=tracker.done - tracker.before, elsewhere=0, rows=rows, statuses={"ok": rows} if rows else {},
        seconds=monotonic() - started, interrupted=interrupted, modelled=True,
    )  # fmt: skip


def _measurements(
    problem: Problem, device: Device, base: Toolchain, run: str, compiler: CrossCompiler | None
) -> Iterator[Measurement]:
    setting = space.setting_of(problem, device)
    aten_us = FITTED.predict_aten(setting)
    times = {ATEN: aten_us} | dict(_kept(problem, device, compiler))
    for config, us in times.items():
        yield Measurement(
            problem, config, device, PROTOCOL, toolchain(base, config), run, Status.OK, Times(us, us, us, 1, aten_us)
        )


def _kept(problem: Problem, device: Device, compiler: CrossCompiler | None) -> list[tuple[Config, float]]:
    """Return the configs to keep, with their expected microseconds, fastest first."""
    ranked = space.rank(problem, device)
    if compiler is None:
        return [(one.config, one.us) for one in ranked[:MAX_CONFIGS]]
    setting = space.setting_of(problem, device)
    kept = []
    for one in ranked[:MAX_COMPILED]:
        needs = compiler.resources(problem, one.config)
        if needs.rejected is None:
            again = space.compiled(one, setting, needs.registers, needs.shared)
            kept.append((again.config, again.us))
        if len(kept) == MAX_CONFIGS:
            break
    return sorted(kept, key=lambda pair: pair[1])


def _provenance(request: BuildRequest, device: Device, compiled: bool) -> dict[str, Any]:
    return {
        "command": command(),
        "request": replace(request, out=None).recorded(),
        "device": device.text,
        "model": {"version": PROTOCOL.version, "fitted": dict(data.PROVENANCE)},
        "compiled": compiled,
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _warnings(left_out: int, compiled: bool) -> tuple[str, ...]:
    found = ["these rows are modelled, not measured; a build on such a GPU replaces them"]
    if left_out:
        many = f"{left_out:,} problems are" if left_out > 1 else "1 problem is"
        found.append(f"{many} left out: modelled tables cover only 16-bit and int8 GEMMs with aligned rows")
    if not compiled:
        found.append(
            "triton is not installed, so nothing was compiled; the rows may contain kernels that spill registers"
        )
    return tuple(found)
