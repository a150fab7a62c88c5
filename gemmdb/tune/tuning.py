"""The whole way from a program to what a table gains it: record, coverage, build of what misses, and the program again
without and with gemmdb. It can be stopped at any time and goes on from there."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gemmdb.devices import load
from gemmdb.errors import InputError
from gemmdb.generators.build.build import BuildReport, BuildRequest
from gemmdb.generators.build.build import build as build_table
from gemmdb.generators.progress import Progress
from gemmdb.report.workload import WorkloadReport, of_workload
from gemmdb.settings import Settings
from gemmdb.table.catalog import Catalog
from gemmdb.tune import gained as gains
from gemmdb.tune import plan as plans
from gemmdb.tune.gained import Gained
from gemmdb.tune.plan import Plan
from gemmdb.tune.running import Recorded, observe
from gemmdb.tune.state import State, open_folder
from gemmdb.workload import entries
from gemmdb.workload.entries import Entry, Workload

STOPPED = (0, 130, 143)
"""Exit codes of a program that ended or was asked to: servers run until Ctrl-C or SIGTERM."""
TABLES = "GEMMDB_TABLES"


@dataclass(frozen=True)
class Request:
    """What to tune. `command`: the program and its arguments. `folder`: where the state is kept; `table`: the table to
    build, None for the user's own of the device. `budget_s`: seconds for the build. `effort`: as for a build.
    `repeats`: how often the program runs without and with gemmdb in the end, 0 for not at all. `dry_run`: record and
    plan only. `fresh`: forget what an earlier run of the folder did. `stdout`: the file descriptor that the program
    prints to, None for this process's own."""

    command: tuple[str, ...]
    folder: Path = Path("gemmdb-tune")
    table: Path | None = None
    budget_s: float = 600.0
    effort: str | None = None
    repeats: int = 2
    dry_run: bool = False
    fresh: bool = False
    stdout: int | None = None


@dataclass(frozen=True)
class Tuned:
    """What came of it. `before`, `after`: the workload against the tables before and after the build; `built`: None if
    there was nothing to build, or for a dry run; `gained`: None if the program was not run again."""

    workload: Path
    plan: Plan
    before: WorkloadReport
    after: WorkloadReport
    built: BuildReport | None = None
    gained: Gained | None = None

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the build."""
        return self.built is not None and self.built.interrupted


class Listener(Protocol):
    """Is told what happens."""

    def recording(self) -> None:
        """The program starts, to be recorded."""

    def recorded(self, found: Recorded | None) -> None:
        """It ended; None if an earlier run recorded it."""

    def planned(self, plan: Plan, before: WorkloadReport) -> None:
        """It is known what to build. The build comes next, unless there is nothing to build."""

    def built(self, report: BuildReport) -> None:
        """The build ended."""

    def timing(self, with_gemmdb: bool, number: int, of: int) -> None:
        """The program starts again, for the `number`-th of `of` times."""

    def timed_before(self) -> None:
        """An earlier run has compared the same program with the same tables."""


def tune(request: Request, listener: Listener, progress: Progress | None = None) -> Tuned:
    """Go the whole way for a program. Ctrl-C during the build ends it in good order. Raises InputError if the program
    cannot be run, fails, or compiles no product; TableError for a file that is no table."""
    if Settings.read().disabled:
        raise InputError("nothing can be tuned while GEMMDB_DISABLE is set")
    state = open_folder(request.folder, request.command, request.fresh)
    workload = _record(state, request, listener)
    catalog = _catalog(request)
    before = of_workload(workload, state.workload.name, catalog, plans.ASKED)
    plan = plans.plan(workload, catalog, request.table, request.budget_s, request.effort, state.pace_s)
    listener.planned(plan, before)
    if request.dry_run:
        return Tuned(state.workload, plan, before, before)
    built = _build(request, state, plan, progress) if plan.wanted else None
    if built is not None:
        listener.built(built)
    catalog = _catalog(request)
    after = of_workload(workload, state.workload.name, catalog, plans.ASKED)
    if not request.repeats or (built is not None and built.interrupted):
        return Tuned(state.workload, plan, before, after, built)
    return Tuned(state.workload, plan, before, after, built, _compare(request, state, catalog, listener))


def _record(state: State, request: Request, listener: Listener) -> Workload:
    """The workload of the program, recorded now or before."""
    if state.recorded and state.workload.exists():
        listener.recorded(None)
    else:
        state.workload.unlink(missing_ok=True)  # Of a run that did not come to its end.
        listener.recording()
        found = observe(state.command, "record", state.workload, {}, request.stdout)
        if found.exit_code not in STOPPED:
            raise InputError(f"the program ended with exit code {found.exit_code}; it has to run without an error")
        if not state.workload.exists():
            raise InputError(f"nothing was recorded: {found.obstacle}")
        state.recorded, state.stopped = True, bool(found.exit_code)
        state.save()
        listener.recorded(found)
    workload = entries.read(state.workload)
    if not workload.entries:
        raise InputError(f"{state.workload} holds only GEMMs that gemmdb does not steer")
    return workload


def _catalog(request: Request) -> Catalog:
    return Catalog.load(tables=[request.table] if request.table and request.table.exists() else [])


def _build(request: Request, state: State, plan: Plan, progress: Progress | None) -> BuildReport:
    """Build what the plan wants, in its order."""
    state.queue.unlink(missing_ok=True)
    entries.append(state.queue, (Entry(one.problem, 1, one.calls, one.device.text, one.ranges) for one in plan.wanted))
    kind = plan.wanted[0].device.kind
    built = build_table(
        BuildRequest(
            arch="cpu" if kind == "cpu" else "native",
            shapes=str(state.queue),
            effort=request.effort,
            out=request.table,
            minutes=request.budget_s / 60,
        ),
        progress,
    )
    if built.measured:
        state.pace_s = built.seconds / built.measured
        state.save()
    return built


def _compare(request: Request, state: State, catalog: Catalog, listener: Listener) -> Gained:
    """The program without and with gemmdb, in turns, unless that is known."""
    identity = catalog.identity()
    if state.tables == identity and state.gained.get("runs") == request.repeats:
        try:
            known = gains.of_dict(state.gained)
        except (KeyError, TypeError, ValueError):
            pass  # A damaged file: run again.
        else:
            listener.timed_before()
            return known
    busy = load.now()
    runs: dict[bool, list[gains.Times]] = {False: [], True: []}
    # Without, with, with, without: a machine that becomes slower or faster meanwhile disturbs both alike.
    turns = [bool(side) ^ bool(turn % 2) for turn in range(request.repeats) for side in range(2)]
    for number, with_gemmdb in enumerate(turns, 1):
        listener.timing(with_gemmdb, number, len(turns))
        runs[with_gemmdb].append(_timed(request, state, with_gemmdb))
    found = gains.gained(runs[False], runs[True], busy.others if busy else 0.0)
    state.tables, state.gained = identity, found.as_dict()
    state.save()
    return found


def _timed(request: Request, state: State, with_gemmdb: bool) -> gains.Times:
    """The times of the program's graphs in one run. Raises KeyboardInterrupt if a signal ended a program that had ended
    by itself when it was recorded."""
    with tempfile.TemporaryDirectory(prefix="gemmdb-times-") as folder:
        what = "with" if with_gemmdb else "without"
        ended = observe(request.command, what, Path(folder), _environment(request), request.stdout)
        if ended.failures:
            raise InputError(f"the program cannot be timed: {ended.failures[0]}")
        if ended.exit_code in STOPPED[1:] and not state.stopped:
            raise KeyboardInterrupt
        if ended.exit_code not in STOPPED:
            raise InputError(f"{what} gemmdb the program ended with exit code {ended.exit_code}")
        return gains.read(Path(folder))


def _environment(request: Request) -> dict[str, str]:
    """The variables with which the program finds the table, measures nothing while it is timed, and compiles anew:
    vLLM keeps compiled graphs under keys that do not know gemmdb."""
    fresh = {
        "VLLM_DISABLE_COMPILE_CACHE": os.environ.get("VLLM_DISABLE_COMPILE_CACHE", "1"),
        "GEMMDB_ON_MISS": "aten",
    }
    if request.table is None:
        return fresh
    tables = filter(None, (str(request.table.absolute()), os.environ.get(TABLES, "")))
    return {**fresh, TABLES: os.pathsep.join(tables)}
