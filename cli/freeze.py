"""`gemmdb freeze`: times once what a program needs, and pins the tables that its frozen runs read."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from gemmdb import advice
from gemmdb.cli.build import terminable
from gemmdb.cli.busy import PASTED_WAIT, AskOption, patience
from gemmdb.cli.gain import NO_GAIN
from gemmdb.cli.options import JsonFlag, WideFlag, require, takes
from gemmdb.cli.output import count, note, say_facts, say_json
from gemmdb.cli.tune import BUDGET, built, note_built, note_plan, opened
from gemmdb.cli.tuned import Commands, steps
from gemmdb.outcome import counted

if TYPE_CHECKING:
    from gemmdb.tune.freeze import Frozen
    from gemmdb.tune.tuning import Request, Tuned

FOLDER = Path("gemmdb-freeze")


@dataclass(frozen=True)
class FreezeOptions:
    """The arguments and flags of `gemmdb freeze`."""

    command: list[str] = Argument(metavar="COMMAND...", help="The program and its arguments.")
    budget: str = Option(
        BUDGET, metavar="TIME", help="End the build after this time, at most a tenth later: 90s, 10m, 1h30m."
    )
    folder: Path = Option(FOLDER, help="Where the list, its tables and the state are kept.")
    effort: str | None = Option(None, help="As in `gemmdb build` [default: quick on a CPU, else standard].")
    wait: AskOption = None
    fresh: bool = Option(False, "--fresh", help="Record the program again.")
    wide: WideFlag = False
    as_json: JsonFlag = False

    def request(self) -> Request:
        """The request for the library."""
        from gemmdb.tune import plan
        from gemmdb.tune.freeze import MEASURED
        from gemmdb.tune.tuning import Request

        return Request(
            tuple(self.command), self.folder, self.folder / MEASURED, plan.seconds(self.budget), self.effort, 0,
            self.fresh, stdout=sys.stderr.fileno() if self.as_json else None, wait_s=patience(self.wait),
        )  # fmt: skip

    def line(self, wait: str | None = None) -> str:
        """Return the command that continues this one. `wait`: None for the same as this one's."""
        asked = {
            "budget": (self.budget, BUDGET), "folder": (self.folder, FOLDER), "effort": (self.effort, None),
            "wait": (self.wait if wait is None else wait, None),
        }  # fmt: skip
        words = ["gemmdb", "freeze"]
        for name, (value, default) in asked.items():
            words += [f"--{name}", str(value)] if value != default else []
        return shlex.join([*words, "--", *self.command])


@takes(FreezeOptions)
def freeze(options: FreezeOptions) -> None:
    """Time once what a program needs, and pin the tables.

    It runs COMMAND and records its GEMMs, measures those that the tables miss, also over the ranges of symbolic sizes,
    and on a GPU runs COMMAND up to three more times with gemmdb, which times what only the program can time. Then it
    writes frozen.db and frozen.sha256, a list of all tables that the program needs and their digests. Copy both to the
    servers and set GEMMDB_FROZEN to the list: compiles then time and write nothing, read these tables alone, and all
    servers with the same GPU model, torch and gemmdb run the same kernels. Stop a server with Ctrl-C each time.

    You can stop at any time and continue with the same command. Run it again after a change of the model, the GPU,
    torch or gemmdb. A table that differs from the list is refused.

    \b
    Examples:
      gemmdb freeze -- python serve.py
      gemmdb freeze --budget 1h --folder /srv/model -- python serve.py --batch 8
      GEMMDB_FROZEN=/srv/model/frozen.sha256 python serve.py

    \b
    Exit codes: 0 done, 1 stopped because other programs use the machine, or problems are left for the next run,
    2 bad usage, bad input or a program that fails, 130 interrupted.
    """
    require("torch", "this command")
    from gemmdb.tune import freeze as freezing

    with terminable():
        tuning = opened(request := options.request(), lambda folder: replace(options, folder=folder).line())
        workload = tuning.record()
        done = tuning.plan(workload)
        note_plan(done)
        if done.plan.wanted:
            note_built(built(tuning, done, options.wait))
        if done.interrupted:
            note(f"interrupted; progress is saved in {options.folder}: run the same command to continue")
            raise typer.Exit(130)
        if done.built is not None and done.built.stopped:
            note(f"stopped: {done.built.stopped}; --wait 10m waits longer, --wait 0s measures anyway")
            raise typer.Exit(1)
        freezing.settle(request.command, options.folder / freezing.MEASURED, note, request.stdout)
        note("4/4 freezing: the tables are packed and pinned")
        frozen = freezing.freeze(options.folder, tuning.catalog(), workload, request.command)
    left = 0 if done.built is None else done.built.left
    if options.as_json:
        say_json("freeze", document(frozen, done, left))
    else:
        done.after = frozen.report
        say_facts(_facts(frozen, done, left, options), hang=not options.wide)
    if left:
        raise typer.Exit(1)


def _facts(frozen: Frozen, done: Tuned, left: int, options: FreezeOptions) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each line of the result."""
    products = frozen.report.products
    yield "list", str(frozen.pins)
    yield "tables", ", ".join(frozen.tables) or "none: no table has this device, and ATen runs all GEMMs"
    kernels = any(one.served for one in products)
    gain = f"expected over ATen: {frozen.report.expected}" if kernels else NO_GAIN
    yield "frozen", f"{counted(one.outcome.kind for one in products)}; {gain}"
    if frozen.changed:
        yield "changed", f"{count(len(frozen.changed), 'GEMM')} gets another kernel than from the tables together"
    if left:
        yield "left", f"{count(left, 'problem')}: run the same command again"
    elif not kernels:
        yield from advice.facts(steps(done, Commands(options.line(), options.line(wait=PASTED_WAIT))), "to do")
    line = shlex.join(options.command)
    yield "next", f"GEMMDB_FROZEN={shlex.quote(str(frozen.pins.absolute()))} {line}"


def document(frozen: Frozen, done: Tuned, left: int) -> dict[str, Any]:
    """Return everything as JSON."""
    outcomes = Counter(one.outcome.kind.value for one in frozen.report.products)
    return {
        "pins": str(frozen.pins), "tables": [{"name": name, "sha256": one} for name, one in frozen.tables.items()],
        "workload": str(done.workload), "measured": done.built.measured if done.built else 0, "left": left,
        "outcomes": dict(outcomes), "gain": frozen.report.gain,
        "products": [
            {
                "problem": one.entry.problem.text, "device": one.device.sku, "calls": one.calls,
                "ranges": {name: [low, high] for name, low, high in one.entry.ranges},
                "configs": [config.text for config in one.kernels], **one.outcome.document(),
            }
            for one in frozen.report.products
        ],
        "changed": [one.entry.problem.text for one in frozen.changed],
    }  # fmt: skip
