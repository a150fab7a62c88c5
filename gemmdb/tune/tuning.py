"""The steps of `gemmdb tune`: record, plan, build, and run the program without and with gemmdb. Each can be stopped at
any time; the next run with the same folder continues from there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from gemmdb.devices import detect, load
from gemmdb.devices.load import Load
from gemmdb.errors import InputError
from gemmdb.generators import effort as efforts
from gemmdb.generators.build.build import BuildReport, BuildRequest
from gemmdb.generators.build.build import build as build_table
from gemmdb.generators.progress import Progress
from gemmdb.generators.request import resumed
from gemmdb.report.workload import WorkloadReport, of_workload
from gemmdb.settings import Settings
from gemmdb.table.catalog import Catalog
from gemmdb.tune import gained as gains
from gemmdb.tune import plan as plans
from gemmdb.tune import timing
from gemmdb.tune.gained import Gained
from gemmdb.tune.plan import Plan
from gemmdb.tune.running import Say, run
from gemmdb.tune.state import State, open_folder, scripts
from gemmdb.workload import entries
from gemmdb.workload.entries import Workload


@dataclass(frozen=True)
class Request:
    """Parameters of a run. `command`: the program and its arguments. `folder`: where the state is kept; `table`: the
    table to build, None for the user table for the device. `budget_s`: seconds for the build. `effort`: as for a build.
    `repeats`: how often the program runs without and with gemmdb at the end, 0 to skip, None until the gain is certain.
    `fresh`: discard the results of earlier runs in the folder. `stdout`: the file descriptor that the program prints
    to, None for this process's stdout. `wait_s`: as for a build."""

    command: tuple[str, ...]
    folder: Path = Path("gemmdb-tune")
    table: Path | None = None
    budget_s: float = 600.0
    effort: str | None = None
    repeats: int | None = None
    fresh: bool = False
    stdout: int | None = None
    wait_s: float | None = None


@dataclass
class Tuned:
    """The result. `before`, `after`: coverage of the workload before and after the build; `built`: None if there was
    nothing to build, or for a dry run; `gained`: None if the program was not run again; `occupied`: the use by other
    programs for which it was not, else empty."""

    workload: Path
    plan: Plan
    before: WorkloadReport
    after: WorkloadReport
    built: BuildReport | None = None
    gained: Gained | None = None
    occupied: str = ""

    @property
    def stopped(self) -> str:
        """The use by other programs for which the build or the timing stopped; empty if neither did."""
        return (self.built.stopped if self.built is not None else "") or self.occupied

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
        efforts.named(request.effort, detect.native().kind)  # The program may run for an hour before the build.
        if request.table is not None:
            plans.check_table(request.table)
        self._request, self._say = request, say
        self._state = open_folder(request.folder, request.command, request.fresh)

    def record(self) -> Workload:
        """Return the program's workload, recorded now or earlier. Raises InputError if the program cannot be run,
        fails, or compiles no GEMM."""
        state = self._state
        if not (state.recorded and state.workload.exists()):
            self._record_first(state)
        elif state.scripts != scripts(state.command):
            self._say("the program has changed: it is recorded again")
            self._record(state)
        else:
            self._say("1/4 already recorded; --fresh records again, if what the program imports has changed")
        workload = entries.read(state.workload)
        if not workload.entries:
            raise InputError(f"{state.workload} holds only GEMMs that gemmdb does not support")
        return workload

    def _record_first(self, state: State) -> None:
        """Record the program. If it cannot be recorded, the folder is free for another command: this one may be
        misspelt."""
        try:
            self._record(state)
        except InputError:
            state.discard()
            raise

    def _record(self, state: State) -> None:
        state.workload.unlink(missing_ok=True)  # From an interrupted run.
        self._say("1/4 recording: the program runs")
        state.recorded, state.gained = False, {}
        begun, before, state.scripts = monotonic(), load.reading(), scripts(state.command)
        found = run(state.command, state.workload, stdout=self._request.stdout)
        took_s, busy = monotonic() - begun, load.between(before, load.reading())
        if found.failed:
            raise InputError(f"the program ended with exit code {found.exit_code}; it has to run without an error")
        if not state.workload.exists() and found.stopped:
            self._say(f"nothing was recorded: {found.obstacle}")
            raise KeyboardInterrupt
        if not state.workload.exists():
            raise InputError(f"nothing was recorded: {found.obstacle}")
        state.recorded, state.stopped = True, found.stopped
        state.run_s = took_s / (busy.slowdown if busy else 1.0)
        state.save()
        if found.stopped:
            self._say("the program was stopped: what it compiled is recorded, and tune goes on; Ctrl-C stops it, too")

    def plan(self, workload: Workload) -> Tuned:
        """Plan the build and check the current coverage. Raises TableError for a file that is not a table."""
        request, catalog = self._request, self.catalog()
        before = of_workload(workload, self._state.workload.name, catalog)
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
        entries.append(state.queue, (one.entry for one in wanted))
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

    def compare(self, done: Tuned, workload: Workload, measures: Callable[[Load], bool] = lambda busy: False) -> None:
        """Look up the workload again, and run the program without and with gemmdb alternately, unless the result is
        known or ATen runs all GEMMs anyway. `measures`: whether to time it although other programs use the machine,
        after the time to wait."""
        catalog, request = self.catalog(), self._request
        done.after = of_workload(workload, self._state.workload.name, catalog)
        if why := timing.pointless(done.after):
            self._say(f"4/4 not timed: {why}")
        elif request.repeats == 0 or done.interrupted:
            return
        elif known := self._known(catalog.identity()):
            done.gained = known
        elif busy := timing.occupied(done.after, request.wait_s, measures, self._say):
            done.occupied = busy
            self._say("4/4 not timed: other programs use the machine")
        else:
            done.gained = self._gained(catalog.identity(), done.after)

    def _known(self, tables: str) -> Gained | None:
        """Return the result of an earlier comparison with the same tables."""
        state = self._state
        try:
            known = gains.of_dict(state.gained)
        except (KeyError, TypeError, ValueError):
            return None  # Nothing is known, or it is of an older version.
        asked = self._request.repeats
        if state.tables != tables or known.looks != (asked is None) or asked not in (None, known.runs):
            return None
        self._say("4/4 already timed with the same tables")
        return known

    def _gained(self, tables: str, report: WorkloadReport) -> Gained:
        state, request = self._state, self._request
        found = timing.Timing(state, request.repeats, request.table, request.stdout, self._say).gained(report)
        if not found.disturbed:  # Otherwise the next run with this folder times it again.
            state.tables, state.gained = tables, found.as_dict()
            state.save()
        return found

    def catalog(self) -> Catalog:
        """Return the current tables, first the one that is built."""
        table = self._request.table
        return Catalog.load(tables=[table] if table and table.exists() else [])
