"""Commands on table files: `gemmdb merge`, `diff`, `verify` and `tables pack`."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from gemmdb.cli import advice
from gemmdb.cli.busy import AskOption, again, patience
from gemmdb.cli.options import JsonFlag, require
from gemmdb.cli.output import count, microseconds, note, one_line, say, say_json, say_table
from gemmdb.cli.progress import BuildProgress, Pulse
from gemmdb.errors import InputError, TableError
from gemmdb.table.reader import Table

if TYPE_CHECKING:
    from gemmdb.generators.files.diff import Diff
    from gemmdb.generators.files.verify import Finding
    from gemmdb.generators.measure.remeasured import Remeasured

# The generators are imported inside the commands: they need sqlite-utils, which takes 0.25 s to import.
SQLITE_HEADER = b"SQLite format 3\0"
"""First bytes of a table."""


def merge(
    inputs: list[Path] = Argument(metavar="A B...", help="The tables to merge. They are not changed."),
    out: Path = Option(..., "--out", "-o", help="The table to write: a new file, or one of the inputs."),
) -> None:
    """Merge several tables into one.

    The order of the inputs does not matter, and merging a table twice adds nothing. Verdicts are recomputed from all
    rows. If GEMMDB_TRUST is set, your own table (GEMMDB_USER_TABLE) accepts only files that it lists.

    \b
    Examples:
      gemmdb merge monday.db tuesday.db --out both.db

    \b
    Exit codes: 0 done, 2 bad usage or bad input.
    """
    from gemmdb.generators.files.merge import merge as merge_tables

    if out.exists() and not any(path.exists() and path.samefile(out) for path in inputs):
        raise InputError(f"{out} exists and would be replaced: also name it as an input, or choose another --out")
    rows = merge_tables(inputs, out)
    note(f"{count(rows, 'measurement')} of {count(len(inputs), 'table')} in {out}")


def pack(
    table: Path = Argument(metavar="TABLE", help="The table to pack. It is not changed."),
    out: Path = Option(
        ..., "--out", "-o", metavar="FILE", help="The packed table to write: a new file, or a packed table to replace."
    ),
) -> None:
    """Write a small, fast copy of a table for lookups.

    A table keeps every measurement. Its packed form keeps one record per problem: for each config, its time relative to
    ATen, pooled over runs, and its uncertainty, in 8 bytes. The shipped table of the H200 takes less than 5 MiB.
    Lookups return the same results.

    Keep the original table: a packed table cannot be extended, and `merge` and `export --to csv` need the measurements.
    The same table always gives the same bytes.

    \b
    Examples:
      gemmdb tables pack mine.db --out served.db
      GEMMDB_TABLES=served.db python train.py

    \b
    Exit codes: 0 done, 2 bad usage or bad input.
    """
    if out.exists():
        if table.exists() and out.samefile(table):
            raise InputError(f"{out} is the table itself, whose measurements would be lost: choose another --out")
        if not _is_packed(out):
            raise InputError(f"{out} exists and is not a packed table: choose another --out")
    from gemmdb.generators.files.pack import pack as pack_table

    done = pack_table(table, out)
    size = f"{table.stat().st_size / 2**20:.1f} to {out.stat().st_size / 2**20:.1f} MiB"
    note(f"{out}: {count(done.times, 'time')} of {count(done.problems, 'problem')}, from {size}")


def _is_packed(path: Path) -> bool:
    try:
        with Table.open(path) as known:
            return known.packed
    except TableError:
        return False


def diff(
    a: Path = Argument(metavar="A", help="A table."),
    b: Path = Argument(metavar="B", help="Another table."),
    json: JsonFlag = False,
) -> None:
    """Compare the rows and the verdicts of two tables.

    \b
    Examples:
      gemmdb diff monday.db tuesday.db
      gemmdb diff monday.db tuesday.db --json

    \b
    Exit codes: 0 the same, 1 they differ, 2 bad usage or bad input.
    """
    from gemmdb.generators.files.diff import diff as diff_of

    found = diff_of(a, b)
    if json:
        say_json("diff", found.as_dict())
    elif not found:
        say("both tables hold the same measurements and verdicts")
    else:
        _say_diff(found)
    if found:
        raise typer.Exit(1)


def _say_diff(found: Diff) -> None:
    sides = (("A", found.only_a, found.rows_a, found.decided_a), ("B", found.only_b, found.rows_b, found.decided_b))
    for name, problems, rows, decided in sides:
        only = f"{count(rows, 'measurement')}, {count(len(problems), 'problem')}"
        say(f"only in {name}: {only}, {count(len(decided), 'verdict')} on problems of both")
    if not found.changed:
        say("the verdicts that both tables have are the same")
        return
    say()
    changed = [
        (
            "tied" if one.held else "changed", f"{one.speedup_before:.2f}x", f"{one.speedup_after:.2f}x",
            one.before, one.after, f"{one.problem} on {one.device}",
        )
        for one in found.changed
    ]  # fmt: skip
    say_table(("verdict", "speedup in A", "in B", "pick in A", "in B", "problem"), changed, right=("speedup in A",))


def verify(
    file: Path = Argument(metavar="FILE", help="A table, or an archive of compiled kernels."),
    remeasure: int = Option(0, metavar="N", min=0, help="Also benchmark N of its problems again on this machine."),
    seed: int | None = Option(
        None,
        metavar="S",
        help="Seed of the sample; the same seed selects the same problems.",
        show_default=False,
    ),
    wait: AskOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Check a table; with --remeasure, benchmark it again.

    It checks that the file's structure is intact, each row is well-formed and has the right key, the digest matches the
    rows, the verdicts follow from the rows, and no time is shorter than the device allows. For an archive (`gemmdb
    kernels`) it checks that each kernel matches the index and was compiled from the current source.

    --remeasure benchmarks a random sample of the problems again. It reports times that changed by more than 2%, and how
    many verdicts hold, no longer hold, or are unclear because other programs kept the machine busy or the intervals are
    too wide. Times that other programs disturbed, now or when they were recorded, are not compared. While other
    programs use the machine, it asks on a terminal whether to wait, stop or measure anyway; --wait decides. It needs
    torch and the table's device, and uses all GPUs of the machine; on a CPU it uses the table's number of threads.
    --seed repeats a sample.

    \b
    Examples:
      gemmdb verify mine.db
      gemmdb verify mine.db --remeasure 50
      gemmdb verify mine.db --remeasure 50 --seed 1

    \b
    Exit codes: 0 no faults, even if verdicts are unclear; 1 faults, a verdict that no longer holds, or stopped because
    other programs use the machine, 2 bad usage or bad input.
    """
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
    result = _remeasured(file, remeasure, seed, wait) if remeasure and not faults else None
    if as_json:
        say_json("verify", _document(file, faults, result))
    else:
        for fault in faults:
            say(f"{fault.check}: {one_line(fault.message)}")
        if not faults:
            say(f"{file}: no faults found")
        if result is not None:
            _say_remeasured(result)
    if faults or (result is not None and (result.failed or result.stopped)):
        raise typer.Exit(1)


def _remeasured(file: Path, number: int, seed: int | None, wait: str | None) -> Remeasured:
    """Benchmark a sample again. On a busy machine it goes on as the user says."""
    from gemmdb.generators.measure.remeasure import remeasure

    wait_s, result = patience(wait), None
    while True:
        with BuildProgress() as progress:
            result = remeasure(file, number, seed=seed, progress=progress, wait_s=wait_s, before=result)
        if (more := again(result, wait)) is None:
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
    names = ("problems", "held", "failed", "unclear", "rows", "within", "disturbed", "doubtful", "stopped")
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
