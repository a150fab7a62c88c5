"""`gemmdb tune`: records a program, builds a table for it and measures the speedup, in one command."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer import Argument, Option

from gemmdb import advice
from gemmdb.cli.build import terminable
from gemmdb.cli.busy import PASTED_WAIT, AskOption, again, measures, patience
from gemmdb.cli.options import JsonFlag, WideFlag, require, takes
from gemmdb.cli.output import count, note, say_facts, say_json
from gemmdb.cli.progress import BuildProgress
from gemmdb.cli.tuned import Commands, answered, answers, document, enough, expected, say_plan, say_tuned, steps
from gemmdb.errors import InputError
from gemmdb.settings import Settings

if TYPE_CHECKING:
    from gemmdb.generators.build.build import BuildReport
    from gemmdb.tune.tuning import Request, Tuned, Tuning

BUDGET, FOLDER = "10m", Path("gemmdb-tune")
"""Defaults of options."""
MORE = 4
"""Factor of the runs that narrow an interval."""


@dataclass(frozen=True)
class TuneOptions:
    """The arguments and flags of `gemmdb tune`."""

    command: list[str] = Argument(metavar="COMMAND...", help="The program and its arguments.")
    budget: str = Option(
        BUDGET, metavar="TIME", help="End the build after this time, at most a tenth later: 90s, 10m, 1h30m."
    )
    folder: Path = Option(FOLDER, help="Where the state is kept. Run the same command to continue.")
    table: Path | None = Option(None, help="The table to build [default: $XDG_DATA_HOME/gemmdb/<arch>-<sku>.db].")
    effort: str | None = Option(None, help="As in `gemmdb build` [default: quick on a CPU, else standard].")
    wait: AskOption = None
    repeats: int | None = Option(
        None,
        min=0,
        help="How often the program runs without and with gemmdb at the end; 0 to skip [default: until the gain is"
        " certain, 2 to 8 times and within 2 minutes].",
    )
    dry_run: bool = Option(False, "--dry-run", help="Record, and show what would be built; build nothing.")
    fresh: bool = Option(False, "--fresh", help="Discard what an earlier run recorded and timed.")
    wide: WideFlag = False
    as_json: JsonFlag = False

    def request(self) -> Request:
        """The request for the library."""
        from gemmdb.tune import plan
        from gemmdb.tune.tuning import Request

        return Request(
            tuple(self.command), self.folder, self.table, plan.seconds(self.budget), self.effort, self.repeats,
            self.fresh, stdout=sys.stderr.fileno() if self.as_json else None,
            wait_s=patience(self.wait),
        )  # fmt: skip

    def line(self, dry_run: bool | None = None, wait: str | None = None, budget: str | None = None) -> str:
        """Return the command that continues this one. `dry_run`, `wait`, `budget`: None for the same as this one's."""
        waits = self.wait if wait is None else wait
        asked = {
            "budget": (budget or self.budget, BUDGET), "folder": (self.folder, FOLDER), "table": (self.table, None),
            "effort": (self.effort, None), "wait": (waits, None), "repeats": (self.repeats, None),
        }  # fmt: skip
        words = ["gemmdb", "tune"]
        for name, (value, default) in asked.items():
            words += [f"--{name}", str(value)] if value != default else []
        words += ["--dry-run"] * (self.dry_run if dry_run is None else dry_run)
        return shlex.join([*words, "--", *self.command])


@takes(TuneOptions)
def tune(options: TuneOptions) -> None:
    """Record a program, build what the tables miss, and show the speedup.

    It runs COMMAND and records its GEMMs (as `gemmdb record` does), looks them up (`gemmdb coverage`), measures the
    misses (`gemmdb build`), and runs COMMAND again without and with gemmdb, alternately. GEMMs with the largest
    possible savings come first: savings per call times the number of calls. The program needs no changes; every Python
    process that it starts is recorded and timed. Stop a server with Ctrl-C each time.

    Only calls of compiled graphs are timed, not compilation. The program runs twice without and twice with gemmdb, and
    again until the interval of the gain excludes 1 or lies within 2% of it; it says how long that takes at most.
    Outputs are not compared; `gemmdb compare` does that.
    Where ATen runs every GEMM anyway, the program is not run again. If other programs disturb the timing, it says that
    it cannot tell.
    While other programs use the machine, it asks on a terminal whether to wait, stop or measure anyway; --wait decides.
    You can stop at any time and continue with the same command. After a complete run it prints the result again.
    A program whose script has changed is recorded again; --fresh also notices what it imports.

    \b
    Examples:
      gemmdb tune -- python serve.py
      gemmdb tune --dry-run -- python serve.py          # what would be built, how long it takes, what it may save
      gemmdb tune --budget 1h -- torchrun --nproc-per-node 2 train.py

    \b
    Exit codes: 0 done, 1 slower with gemmdb, or stopped because other programs use the machine, 2 bad usage, bad input
    or a program that fails, 130 interrupted.
    """
    require("torch", "this command")
    from gemmdb.devices import detect
    from gemmdb.tune import outlook

    with terminable():
        tuning = opened(options.request(), lambda folder: replace(options, folder=folder).line())
        note(outlook.of_device(detect.native()))
        workload = tuning.record()
        done = tuning.plan(workload)
        note_plan(done)
        if not options.dry_run:
            if done.plan.wanted:
                note_built(built(tuning, done, options.wait))
            if not done.stopped:
                tuning.compare(done, workload, lambda busy: measures(busy, options.wait))
    if options.as_json:
        say_json("tune", document(done))
    elif options.dry_run:
        say_plan(done.plan, options.wide)
        say_facts(advice.facts(steps(done, Commands(options.line(dry_run=False)))), hang=not options.wide)
    else:
        more = replace(options, repeats=MORE * max(done.gained.runs if done.gained else 0, 1)).line()
        say_tuned(done, options.wide, Commands(again_of(options, done), options.line(wait=PASTED_WAIT), more))
    if done.stopped:
        note(f"stopped: {done.stopped}; --wait 10m waits longer, --wait 0s measures anyway")
        raise typer.Exit(1)
    if done.interrupted:
        kept = f"progress is saved in {options.folder} and the table"
        note(f"interrupted; {kept}: run the same command to continue")
        raise typer.Exit(130)
    if done.gained is not None and done.gained.verdict == "slower":
        raise typer.Exit(1)


def opened(request: Request, line: Callable[[Path], str]) -> Tuning:
    """Return the steps for a request. Raises InputError for a new command that cannot be run, and if the folder belongs
    to another one; `line` is then the command with another folder."""
    from gemmdb.tune.running import check_command
    from gemmdb.tune.state import STATE, TakenError
    from gemmdb.tune.tuning import Tuning

    settings = Settings.read()
    if not (settings.disabled or settings.frozen or (request.folder / STATE).exists()):
        check_command(request.command)
    try:
        return Tuning(request, note)
    except TakenError as error:
        raise InputError(f"{error}: {line(error.other(request.command))}") from error


def again_of(options: TuneOptions, done: Tuned) -> str:
    """Return the command that continues, with a larger budget if this one's was too small for any problem."""
    short = done.built is not None and done.built.left and not (done.built.measured or done.interrupted or done.stopped)
    return options.line(budget=enough(done.plan) if short else None)


def built(tuning: Tuning, done: Tuned, wait: str | None) -> BuildReport:
    """Build what is planned. On a busy machine it goes on as the user says."""
    while True:
        with BuildProgress() as progress:
            report = tuning.build(done, progress)
        if (more := again(report, wait)) is None:
            return report
        tuning.go_on(done, more.wait_s)


def note_plan(done: Tuned) -> None:
    """Say what is built, and what is not."""
    from gemmdb.tune import outlook

    report, wanted = done.before, {one.problem for one in done.plan.wanted}
    note(f"2/4 coverage: {answered(report)} answered by tables")
    for reason, number in done.plan.left_out.items():
        note(f"not built: {count(number, 'GEMM')}: {reason}")
    gaining = [one for one in report.products if one.entry.problem in wanted]
    gaining_us = sum(one.total_us for one in gaining)
    note(outlook.of_plan(done.plan, len(report.products), answers(report), gaining_us, report.total_us))
    note(f"3/4 build: {expected(done.plan) if done.plan.wanted else 'nothing to build'}")


def note_built(report: BuildReport) -> None:
    """Say what was built."""
    rest = f", {report.left} left for the next run" if report.left else ""
    note(f"built {count(report.measured, 'problem')} in {report.seconds:.0f} s{rest}")
    for reason, number in report.left_out.items():
        note(f"left to ATen: {count(number, 'GEMM')}: {reason}")
    for warning in report.notes:
        note(warning)
