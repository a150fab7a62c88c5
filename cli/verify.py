"""`gemmdb verify`: checks a table, benchmarks it again, and requalifies what a program needs."""

from __future__ import annotations

import os
import shlex
import zipfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from gemmdb import advice
from gemmdb.cli.build import terminable
from gemmdb.cli.busy import WAIT, AskOption, again, patience
from gemmdb.cli.options import JsonFlag, require, takes
from gemmdb.cli.output import count, microseconds, note, one_line, say, say_json, say_table
from gemmdb.cli.progress import BuildProgress, Pulse
from gemmdb.errors import InputError
from gemmdb.settings import Settings

if TYPE_CHECKING:
    from gemmdb.generators.files.verify import Finding
    from gemmdb.generators.measure.remeasured import Remeasured
    from gemmdb.generators.measure.requalify import Requalified

# The generators are imported in functions: other commands do not need them.
SQLITE_HEADER = b"SQLite format 3\0"
"""First bytes of a table."""
BUDGET, MORE = "2m", "10m"
"""Default budget, and the one to try if it was too short."""


@dataclass(frozen=True)
class VerifyOptions:
    """The arguments and flags of `gemmdb verify`."""

    file: Path = Argument(
        metavar="FILE", help="A table, an archive of compiled kernels, or with --requalify a workload of gemmdb record."
    )
    remeasure: int = Option(0, metavar="N", min=0, help="Also benchmark N of its problems again on this machine.")
    seed: int | None = Option(
        None,
        metavar="S",
        help="Seed of the sample; the same seed selects the same problems.",
        show_default=False,
    )
    requalify: bool = Option(
        False, "--requalify", help="After an upgrade: benchmark again what the tables have for a workload."
    )
    out: Path | None = Option(
        None, "--out", "-o", help="New table of --requalify [default: WORKLOAD-requalified.db].", show_default=False
    )
    budget: str = Option(
        BUDGET, metavar="TIME", help="End --requalify after this time, at most a tenth later: 90s, 5m."
    )
    wait: AskOption = None
    as_json: JsonFlag = False


@takes(VerifyOptions)
def verify(options: VerifyOptions) -> None:
    """Check a table; with --remeasure, benchmark it again; with --requalify, what a program needs of all tables.

    It checks that the file's structure is intact, each row is well-formed and has the right key, the digest matches the
    rows, the verdicts follow from the rows, and no time is shorter than the device allows. For an archive (`gemmdb
    kernels`) it checks that each kernel matches the index and was compiled from the current source.

    --remeasure benchmarks a random sample of the problems again. It reports times that changed by more than 2%, and how
    many verdicts hold, no longer hold, or are unclear because other programs kept the machine busy or the intervals are
    too wide. Times that other programs disturbed, now or when they were recorded, are not compared. While other
    programs use the machine, it asks on a terminal whether to wait, stop or measure anyway; --wait decides. It needs
    torch and the table's device, and uses all GPUs of the machine; on a CPU it uses the table's number of threads.
    --seed repeats a sample.

    --requalify is for the time after an upgrade of the driver, torch, Triton or cuBLAS. It benchmarks the verdicts of
    all tables on the GEMMs of a workload in the same way, those that take the most time first, and writes a new table
    with what was conclusive: kernels that lost are demoted there, the others keep their place. List it before the old
    tables: GEMMDB_TABLES=NEW.db:OLD.db. Until then the old verdicts are served.

    \b
    Examples:
      gemmdb verify mine.db
      gemmdb verify mine.db --remeasure 50
      gemmdb verify mine.db --remeasure 50 --seed 1
      gemmdb verify workload.jsonl --requalify --out torch-2.14.db

    \b
    Exit codes: 0 no faults, even if verdicts are unclear; 1 faults, a verdict that no longer holds, or stopped because
    other programs use the machine, 2 bad usage or bad input, 130 interrupted (Ctrl-C or SIGTERM): what was measured so
    far is shown, and kept in the table of --requalify.
    """
    if options.requalify:
        _requalify(options)
        return
    if options.out is not None:
        raise InputError("--out is for --requalify")
    file, remeasure = options.file, options.remeasure
    from gemmdb.generators.files.verify import verify as verify_rows
    from gemmdb.generators.files.verify import verify_kernels

    if remeasure:
        require("torch", "--remeasure")
    archive = _is_archive(file)
    if archive and remeasure:
        raise InputError("--remeasure: an archive of kernels has no times; name a table")
    with Pulse() as pulse:
        pulse.begin(f"checking {file}", aloud=False)
        faults = verify_kernels(file) if archive else verify_rows(file)
    result = _remeasured(file, remeasure, options.seed, options.wait) if remeasure and not faults else None
    if options.as_json:
        say_json("verify", _document(file, faults, result))
    else:
        for fault in faults:
            say(f"{fault.check}: {one_line(fault.message)}")
        if not faults:
            say(f"{file}: no faults found")
        if result is not None:
            _say_remeasured(result)
    if result is not None:
        _exit_if_interrupted(result)
    if faults or (result is not None and (result.failed or result.stopped)):
        raise typer.Exit(1)


def _exit_if_interrupted(result: Remeasured) -> None:
    """Exit with 130 after Ctrl-C, and say what was not timed."""
    if result.interrupted:
        note(f"interrupted; {count(len(result.rest), 'verdict')} not timed")
        raise typer.Exit(130)


def _remeasured(file: Path, number: int, seed: int | None, wait: str | None) -> Remeasured:
    """Benchmark a sample again. On a busy machine it goes on as the user says."""
    from gemmdb.generators.measure.remeasure import remeasure

    wait_s, result = patience(wait), None
    while True:
        with terminable(), BuildProgress() as progress:
            result = remeasure(file, number, seed=seed, progress=progress, wait_s=wait_s, before=result)
        if result.interrupted or (more := again(result, wait)) is None:
            return result
        wait_s = more.wait_s


def _is_archive(file: Path) -> bool:
    """Return whether a file is an archive of kernels. A ZIP file is recognized by its end, so it may start like a
    table."""
    if not file.is_file() or not zipfile.is_zipfile(file):
        return False
    with file.open("rb") as opened:
        return opened.read(len(SQLITE_HEADER)) != SQLITE_HEADER


def _document(file: Path, faults: Sequence[Finding], result: Remeasured | None) -> dict[str, Any]:
    found: dict[str, Any] = {"path": str(file), "faults": [asdict(fault) for fault in faults]}
    if result is None:
        return found
    moved = [
        {"problem": m.problem.text, "config": m.config.text, "recorded_us": m.recorded_us, "now_us": m.now_us}
        for m in result.moved
    ]
    names = (
        "problems", "held", "failed", "unclear", "rows", "within", "disturbed", "doubtful", "stopped", "interrupted",
    )  # fmt: skip
    return {**found, "remeasured": {**{name: getattr(result, name) for name in names}, "moved": moved}}


def _say_remeasured(result: Remeasured) -> None:
    from gemmdb.generators.measure.remeasured import TOLERANCE

    judged = f"{result.held} of {result.problems} verdicts hold"
    judged += f", {result.failed} no longer hold" if result.failed else ""
    judged += f", of {result.unclear} it cannot tell" if result.unclear else ""
    near = f"{result.within} of {result.rows} times are within {TOLERANCE:.0%} of the recorded ones"
    if result.problems:
        say(f"{judged}; {near if result.rows else 'no time could be compared'}")
    if result.disturbed:
        why = result.busy or "other programs kept the machine busy, or the reference was unsteady"
        (step,) = advice.advise(advice.Situation(disturbed=result.disturbed, timed=result.timed))
        note(f"{step} ({why})")
    if result.doubtful:
        was = "was" if result.doubtful == 1 else "were"
        note(
            f"{count(result.doubtful, 'recorded time')} {was} disturbed by other programs and {was} not compared;"
            " build again when the machine is idle"
        )
    if result.stopped:
        left = f"; {count(len(result.rest), 'problem')} of the sample not timed" if result.problems else ""
        what = "stopped" if result.problems else "nothing was measured"
        note(f"{what}: {result.stopped}{left}; --wait 10m waits longer, --wait 0s measures anyway")
    if result.moved:
        say()
        rows = []
        for one in result.moved:
            now = "failed" if one.now_us is None else microseconds(one.now_us)
            rows.append((microseconds(one.recorded_us), now, one.config.text, one.problem.text))
        say_table(("recorded", "now", "config", "problem"), rows, right=("recorded", "now"))


def _requalify(options: VerifyOptions) -> None:
    """Benchmark what the tables have for a workload, say what changed, and exit with 1 if a verdict no longer holds."""
    from gemmdb.generators.measure.requalify import Limits, requalify
    from gemmdb.table.catalog import Catalog
    from gemmdb.tune.plan import seconds
    from gemmdb.workload import entries

    require("torch", "--requalify")
    if options.remeasure:
        raise InputError("--remeasure and --requalify: one of them")
    out = options.out or options.file.with_name(f"{options.file.stem}-requalified.db")
    # A question on a busy machine would be for all that is left, so it waits as without a terminal.
    limits = Limits(seconds(options.budget, "--budget"), patience(options.wait or WAIT))
    workload = entries.read(options.file)
    with closing(Catalog.load(strict=True)) as catalog, terminable(), BuildProgress() as progress:
        found = requalify(workload, catalog.tables, out, limits, progress=progress)
    if options.as_json:
        say_json("verify", {**_document(options.file, (), found.checked), "requalified": _changes(found)})
    else:
        _say_requalified(found, f"gemmdb verify {shlex.quote(str(options.file))} --requalify --budget {MORE}")
    _exit_if_interrupted(found.checked)
    if found.checked.failed or found.checked.stopped:
        raise typer.Exit(1)


def _changes(found: Requalified) -> dict[str, Any]:
    changed = [
        {
            "problem": one.problem.text, "before": one.before.text, "now": one.now.text, "recorded": one.recorded,
            "found": one.found,
        }
        for one in found.changed
    ]  # fmt: skip
    table = None if found.table is None else str(found.table)
    return {"table": table, "left": len(found.checked.rest), "unmeasured": found.unmeasured, "changed": changed}


def _say_requalified(found: Requalified, more: str) -> None:
    """Print what changed. `more`: the command with a larger budget."""
    _say_remeasured(found.checked)
    if found.unmeasured:
        note(f"no table has measured {count(found.unmeasured, 'GEMM')} of the workload: gemmdb tune builds them")
    if found.checked.rest and not (found.checked.stopped or found.checked.interrupted):
        rest = count(len(found.checked.rest), "verdict")
        note(f"{rest} did not fit in the budget and stay as they are; give more: {more} --out NEW.db")
    if found.changed:
        say()
        rows = [
            (f"{one.recorded:.3f}x", f"{one.found:.3f}x", one.before.text, one.now.text, one.problem.text)
            for one in found.changed
        ]
        say_table(("recorded", "now", "demoted", "instead", "problem"), rows, right=("recorded", "now"))
    if found.table is not None:
        say()
        named = os.pathsep.join(map(str, (found.table, *Settings.read().tables)))
        say(f"{found.table}: list it before the other tables: GEMMDB_TABLES={shlex.quote(named)}")
