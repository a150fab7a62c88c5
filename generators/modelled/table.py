"""`build --modelled`: a table for a GPU that this machine lacks, from the cost model instead of measurements.

Every row is marked: the clock of its protocol is `model`. If triton is installed, the candidates are compiled for the
arch, and those that do not fit or spill registers are left out. Nothing is ever run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
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
from gemmdb.generators.progress import Progress, Tracker
from gemmdb.generators.request import BuildReport, BuildRequest, command
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.lookup.model import uncovered
from gemmdb.settings import data_home
from gemmdb.table.measurement import Measurement, Status, Times
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

KEPT = 4
"""Configs per problem besides ATen."""
TRIED = 12
"""The most candidates per problem that are compiled to find these."""


def device_for(name: str) -> Device:
    """The known GPU of that arch or SKU. Raises InputError if the model has no figures for it."""
    found = registry.find(name)
    if found is None or machine(found) is None:
        known = sorted({device.arch for device in registry.KNOWN if machine(device)})
        raise InputError(f"--modelled: unknown device {name!r}; known archs: {', '.join(known)}")
    return found


def build(request: BuildRequest, progress: Progress | None = None) -> BuildReport:
    """Predict the best configs of every problem and store them as modelled rows. Problems that the table already holds
    under this version of the model stay unchanged. A warning counts the problems that the model does not cover.

    Raises InputError for a request that cannot be met, TableError if the output file is not a table.
    """
    device = device_for(request.arch)
    for flag, value in (("--gpus", request.gpus), ("--ray", request.ray), ("--minutes", request.minutes)):
        if value is not None:
            raise InputError(f"{flag}: a modelled build measures nothing; the same command continues a stopped one")
    if request.allow or request.deny:
        raise InputError("--allow, --deny: these choose what is measured; for a modelled table, the cost model chooses")
    requested = shapes.select(shapes.load(request.shapes, device.kind), request.ops, request.dtypes)
    problems = [problem for problem in requested if uncovered(problem) is None]
    if not problems:
        raise InputError("no problem is left to model: --ops, --dtypes or the cost model exclude all shapes")
    out = request.out or data_home() / f"{device.slug}.db"
    run = _Run(request, device, out)
    run.execute(problems, progress)
    return replace(run.report(problems), warnings=_warnings(len(requested) - len(problems), run.compiler is not None))


@dataclass
class _Run:
    request: BuildRequest
    device: Device
    out: Path
    before: int = 0
    done: int = 0
    rows: int = 0
    started: float = field(default_factory=monotonic)
    compiler: cross_compile.CrossCompiler | None = None
    interrupted: bool = False

    def __post_init__(self) -> None:
        if cross_compile.available():
            self.compiler = cross_compile.CrossCompiler(self.device.capability, int(self.device.figures["smem_bytes"]))

    def execute(self, problems: Sequence[Problem], progress: Progress | None) -> None:
        """Model the missing problems one by one, then update the verdicts."""
        with Store.open(self.out) as store:
            missing = _missing(problems, self.device, self.out)
            self.before = len(problems) - len(missing)
            tracker = Tracker(progress, len(problems), self.before)
            try:
                base = self._toolchain()
                run = store.begin_run(self._provenance()) if missing else ""
                for problem in missing:
                    tracker.say("compiling" if self.compiler else "modelling", problem)
                    self.rows += store.add(self._measurements(problem, base, run))
                    self.done += 1
                    tracker.finished(problem)
            except KeyboardInterrupt:
                self.interrupted = True
            finally:
                store.refresh()
                tracker.say("finished")

    def report(self, problems: Sequence[Problem]) -> BuildReport:
        statuses = {"ok": self.rows} if self.rows else {}
        return BuildReport(
            out=self.out, device=self.device, problems=len(problems), jobs=len(problems), before=self.before,
            measured=self.done, elsewhere=0, rows=self.rows, statuses=statuses, seconds=monotonic() - self.started,
            interrupted=self.interrupted, modelled=True,
        )  # fmt: skip

    def _measurements(self, problem: Problem, base: Toolchain, run: str) -> Iterator[Measurement]:
        setting = space.setting_of(problem, self.device)
        aten_us = FITTED.predict_aten(setting)
        times = {ATEN: aten_us} | dict(self._kept(problem))
        for config, us in times.items():
            yield Measurement(
                problem, config, self.device, PROTOCOL, toolchain(base, config), run, Status.OK,
                Times(us, us, us, 1, aten_us),
            )  # fmt: skip

    def _kept(self, problem: Problem) -> list[tuple[Config, float]]:
        """The configs to keep, with their expected microseconds, fastest first."""
        ranked = space.rank(problem, self.device)
        if self.compiler is None:
            return [(one.config, one.us) for one in ranked[:KEPT]]
        setting = space.setting_of(problem, self.device)
        kept = []
        for one in ranked[:TRIED]:
            needs = self.compiler.resources(problem, one.config)
            if needs.rejected is None:
                again = space.compiled(one, setting, needs.registers, needs.shared)
                kept.append((again.config, again.us))
            if len(kept) == KEPT:
                break
        return sorted(kept, key=lambda pair: pair[1])

    def _toolchain(self) -> Toolchain:
        triton = _version("triton") if self.compiler else ""
        return Toolchain(triton=triton, cuda=CUDA, gemmdb=_version("gemmdb"))

    def _provenance(self) -> dict[str, Any]:
        return {
            "command": command(),
            "request": replace(self.request, out=None).recorded(),
            "device": self.device.text,
            "model": {"version": PROTOCOL.version, "fitted": dict(data.PROVENANCE)},
            "compiled": self.compiler is not None,
        }


def _missing(problems: Sequence[Problem], device: Device, out: Path) -> list[Problem]:
    with Table.open(out) as table:
        return [
            problem
            for problem in problems
            if all(verdict.protocol != PROTOCOL for verdict in table.verdicts(problem, device))
        ]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _warnings(left_out: int, compiled: bool) -> tuple[str, ...]:
    found = ["these rows are modelled, not measured; a build on such a GPU replaces them"]
    if left_out:
        found.append(
            f"{left_out} problems are left out: modelled tables hold only 16-bit and int8 GEMMs with aligned rows"
        )
    if not compiled:
        found.append(
            "triton is not installed, so nothing was compiled; the rows may contain kernels that spill registers"
        )
    return tuple(found)
