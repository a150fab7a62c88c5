"""The steps of `gemmdb tune`: record, plan, build, and run the program without and with gemmdb. Each can be stopped at
any time; the next run with the same folder continues from there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from gemmdb.devices import load
from gemmdb.errors import InputError
from gemmdb.generators.build.build import BuildReport, BuildRequest
from gemmdb.generators.build.build import build as build_table
from gemmdb.generators.progress import Progress
from gemmdb.generators.request import resumed
from gemmdb.report.workload import WorkloadReport, of_workload
from gemmdb.settings import Settings
from gemmdb.table.catalog import Catalog
from gemmdb.tune import gained as gains
from gemmdb.tune import plan as plans
from gemmdb.tune.gained import Gained
from gemmdb.tune.plan import Plan
from gemmdb.tune.running import run
from gemmdb.tune.state import State, open_folder, scripts
from gemmdb.workload import entries
from gemmdb.workload.entries import Entry, Workload

STOPPED_CODES = (0, 130, 143)
"""Accepted exit codes: success, or stopped by Ctrl-C or SIGTERM, as servers are."""
TABLES = "GEMMDB_TABLES"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """Parameters of a run. `command`: the program and its arguments. `folder`: where the state is kept; `table`: the
    table to build, None for the user table for the device. `budget_s`: seconds for the build. `effort`: as for a build.
    `repeats`: how often the program runs without and with gemmdb at the end, 0 to skip. `fresh`: discard the results of
    earlier runs in the folder. `stdout`: the file descriptor that the program prints to, None for this process's
    stdout. `wait_s`: as for a build."""

    command: tuple[str, ...]
    folder: Path = Path("gemmdb-tune")
    table: Path | None = None
    budget_s: float = 600.0
    effort: str | None = None
    repeats: int = 2
    fresh: bool = False
    stdout: int | None = None
    wait_s: float | None = None


@dataclass
class Tuned:
    """The result. `before`, `after`: coverage of the workload before and after the build; `built`: None if there was
    nothing to build, or for a dry run; `gained`: None if the program was not run again."""

    workload: Path
    plan: Plan
    before: WorkloadReport
    after: WorkloadReport
    built: BuildReport | None = None
    gained: Gained | None = None

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the build early."""
        return self.built is not None and self.built.interrupted


class Tuning:
    """The steps for one request, in call order. `say` is called with a message at the start of each step."""

    def __init__(self, request: Request, say: Say) -> None:
        if Settings.read().disabled:
            raise InputError("nothing can be tuned while GEMMDB_DISABLE is set")
        if Settings.read().frozen:
            raise InputError("nothing can be tuned while GEMMDB_FROZEN is set; unset it for this command")
        if request.table is not None:
            plans.check_table(request.table)
        self._request, self._say = request, say
        self._state = open_folder(request.folder, request.command, request.fresh)

    def record(self) -> Workload:
        """Return the program's workload, recorded now or earlier. Raises InputError if the program cannot be run,
        fails, or compiles no GEMM."""
        state = self._state
        if not (state.recorded and state.workload.exists()):
            self._record(state)
        elif state.scripts != scripts(state.command):
            self._say("the program has changed: it is recorded again")
            self._record(state)
        else:
            self._say("1/4 already recorded; --fresh records again, if what the program imports has changed")
        workload = entries.read(state.workload)
        if not workload.entries:
            raise InputError(f"{state.workload} holds only GEMMs that gemmdb does not support")
        return workload

    def _record(self, state: State) -> None:
        state.workload.unlink(missing_ok=True)  # From an interrupted run.
        self._say("1/4 recording: the program runs")
        state.recorded, state.gained = False, {}
        begun, state.scripts = monotonic(), scripts(state.command)
        found = run(state.command, state.workload, stdout=self._request.stdout)
        if found.exit_code not in STOPPED_CODES:
            raise InputError(f"the program ended with exit code {found.exit_code}; it has to run without an error")
        if not state.workload.exists() and found.exit_code in STOPPED_CODES[1:]:
            self._say(f"nothing was recorded: {found.obstacle}")
            raise KeyboardInterrupt
        if not state.workload.exists():
            raise InputError(f"nothing was recorded: {found.obstacle}")
        state.recorded, state.stopped, state.run_s = True, bool(found.exit_code), monotonic() - begun
        state.save()
        if found.exit_code:
            self._say(f"the program ended with exit code {found.exit_code}")

    def plan(self, workload: Workload) -> Tuned:
        """Plan the build and check the current coverage. Raises TableError for a file that is not a table."""
        request, catalog = self._request, self.catalog()
        before = of_workload(workload, self._state.workload.name, catalog, plans.LOOKUP)
        plan = plans.plan(
            workload, catalog, request.table, request.budget_s, request.effort, self._state.pace,
            busy=request.wait_s is None,
        )  # fmt: skip
        return Tuned(self._state.workload, plan, before, before)

    def build(self, done: Tuned, progress: Progress) -> BuildReport:
        """Build the planned GEMMs in order. Ctrl-C ends the build and keeps the results so far. After a build that a
        busy machine stopped, the report is about both."""
        state, wanted = self._state, done.plan.wanted
        state.queue.unlink(missing_ok=True)
        entries.append(state.queue, (Entry(one.problem, 1, one.calls, one.device.text, one.ranges) for one in wanted))
        build = BuildRequest(
            arch="cpu" if wanted[0].device.kind == "cpu" else "native", shapes=str(state.queue),
            effort=self._request.effort, out=self._request.table, minutes=self._request.budget_s / 60,
            wait_s=self._request.wait_s, pace=state.pace, slower=done.plan.slower,
        )  # fmt: skip
        before, part = done.built, build_table(build, progress)
        if part.measured:
            state.pace = part.pace
            state.save()
        done.built = part if before is None else resumed(before, part)
        return done.built

    def go_on(self, done: Tuned, wait_s: float | None) -> None:
        """Prepare to go on with a build that a busy machine stopped, within the same budget. `wait_s`: as for a
        build."""
        left_s = done.plan.budget_s - (done.built.seconds if done.built else 0.0)
        self._request = replace(self._request, wait_s=wait_s, budget_s=max(left_s, 1e-9))

    def compare(self, done: Tuned, workload: Workload) -> None:
        """Look up the workload again, and run the program without and with gemmdb alternately, unless the result is
        known or no table answers."""
        catalog = self.catalog()
        done.after = of_workload(workload, self._state.workload.name, catalog, plans.LOOKUP)
        if not any(one.hit for one in done.after.products):
            self._say("4/4 not timed: no table answers, so ATen runs all GEMMs with and without gemmdb")
        elif self._request.repeats and not done.interrupted:
            done.gained = self._gained(catalog.identity())

    def _gained(self, tables: str) -> Gained:
        state, repeats = self._state, self._request.repeats
        if state.tables == tables and state.gained.get("runs") == repeats:
            try:
                known = gains.of_dict(state.gained)
            except (KeyError, TypeError, ValueError):
                pass  # A damaged file: run again.
            else:
                self._say("4/4 already timed with the same tables")
                return known
        busy = load.now()
        runs: dict[bool, list[gains.Times]] = {False: [], True: []}
        # Without, with, with, without: a machine that drifts affects both sides equally.
        turns = [bool(side) ^ bool(turn % 2) for turn in range(repeats) for side in range(2)]
        if state.run_s >= 1 and not state.stopped:
            self._say(f"4/4 timing: the program runs {len(turns)} more times, about {len(turns) * state.run_s:.0f} s")
        for number, with_gemmdb in enumerate(turns, 1):
            runs[with_gemmdb].append(self._timed("with" if with_gemmdb else "without", f"{number} of {len(turns)}"))
        found = gains.gained(runs[False], runs[True], busy.others if busy else 0.0)
        state.tables, state.gained = tables, found.as_dict()
        state.save()
        return found

    def _timed(self, what: str, which: str) -> gains.Times:
        """Return the times of the program's graphs in one run. Raises KeyboardInterrupt if a signal ended the program
        although it finished normally during the recording."""
        self._say(f"4/4 timing, run {which}: the program runs {what} gemmdb")
        request = self._request
        with tempfile.TemporaryDirectory(prefix="gemmdb-times-") as folder:
            ended = run(request.command, Path(folder), what, timing_environment(request.table), request.stdout)
            if ended.failures:
                raise InputError(f"the program cannot be timed: {ended.failures[0]}")
            if ended.exit_code in STOPPED_CODES[1:] and not self._state.stopped:
                raise KeyboardInterrupt
            if ended.exit_code not in STOPPED_CODES:
                raise InputError(f"{what} gemmdb the program ended with exit code {ended.exit_code}")
            return gains.read(Path(folder))

    def catalog(self) -> Catalog:
        """Return the current tables, first the one that is built."""
        table = self._request.table
        return Catalog.load(tables=[table] if table and table.exists() else [])


def timing_environment(table: Path | None) -> dict[str, str]:
    """Return variables that make the program find the table, skip benchmarks while it is timed, and recompile: vLLM
    caches compiled graphs under keys that do not include gemmdb."""
    variables = {
        "VLLM_DISABLE_COMPILE_CACHE": os.environ.get("VLLM_DISABLE_COMPILE_CACHE", "1"), "GEMMDB_ON_MISS": "aten",
    }  # fmt: skip
    if table is not None:
        variables[TABLES] = os.pathsep.join(filter(None, (str(table.absolute()), os.environ.get(TABLES, ""))))
    return variables
