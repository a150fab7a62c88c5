"""`gemmdb verify`: checks that a table is well-formed and consistent, and times a sample of it again."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmdb.cli.options import JsonFlag
from gemmdb.cli.output import microseconds, note, one_line, say, say_json
from gemmdb.cli.progress import BuildProgress, Pulse
from gemmdb.cli.table import say_table
from gemmdb.errors import InputError

if TYPE_CHECKING:
    from gemmdb.generators.files.verify import Finding
    from gemmdb.generators.measure.remeasure import Remeasured


SQLITE = b"SQLite format 3\0"
"""What a table begins with."""


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A table, or an archive of compiled kernels.")],
    remeasure: Annotated[
        int, typer.Option(metavar="N", min=0, help="Also time N of its problems again on this machine.")
    ] = 0,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="S", help="Seed of the random sample; the same seed draws the same problems.", show_default=False
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check a table; with --remeasure, time it again.

    It checks the file's structure, that each row is well-formed and has the right key, that the digest matches the
    rows, that the verdicts follow from the rows, and that no time is shorter than the device can be. Of an archive
    (`gemmdb kernels`) it checks that each kernel is what its index says, and that it was compiled from the present
    source.

    --remeasure times a random sample of the problems again. It reports the times that changed by more than 2%, and how
    many verdicts hold, no longer hold, or cannot be told: if other programs kept the machine busy, or the intervals are
    too wide. It needs torch and the device that the table is for, and uses all GPUs of the machine; a CPU gets the
    number of threads of the table. --seed repeats a sample.

    \b
    Examples:
      gemmdb verify mine.db
      gemmdb verify mine.db --remeasure 50
      gemmdb verify mine.db --remeasure 50 --seed 1

    \b
    Exit codes: 0 no faults, also where it cannot tell; 1 faults or a verdict that no longer holds, 2 bad usage or bad
    input.
    """
    # Imported here because these modules need sqlite-utils, which takes 0.25 s to import.
    from gemmdb.generators.files.verify import verify as verify_rows
    from gemmdb.generators.files.verify import verify_kernels
    from gemmdb.generators.measure.remeasure import remeasure as remeasure_sample

    if remeasure and importlib.util.find_spec("torch") is None:
        raise InputError("--remeasure needs torch, which is not installed: pip install torch 'gemmdb[build]'")
    archive = _is_archive(file)
    if archive and remeasure:
        raise InputError("--remeasure: an archive of kernels has no times; name a table")
    with Pulse() as pulse:
        pulse.begin(f"checking {file}", aloud=False)
        faults = verify_kernels(file) if archive else verify_rows(file)
    result = None
    if remeasure and not faults:
        with BuildProgress() as progress:
            result = remeasure_sample(file, remeasure, seed=seed, progress=progress)
    if as_json:
        say_json("verify", _document(file, faults, result))
    else:
        _say(file, faults, result)
    if faults or (result is not None and result.failed):
        raise typer.Exit(1)


def _is_archive(file: Path) -> bool:
    """Whether a file is an archive of kernels. A ZIP file is told by its end, so it may begin as a table."""
    if not file.is_file() or not zipfile.is_zipfile(file):
        return False
    with file.open("rb") as opened:
        return opened.read(len(SQLITE)) != SQLITE


def _document(file: Path, faults: Sequence[Finding], result: Remeasured | None) -> dict[str, Any]:
    found: dict[str, Any] = {"path": str(file), "faults": [asdict(fault) for fault in faults]}
    if result is None:
        return found
    moved = [
        {"problem": m.problem.text, "config": m.config.text, "recorded_us": m.recorded_us, "now_us": m.now_us}
        for m in result.moved
    ]
    names = ("problems", "held", "failed", "unclear", "rows", "within", "disturbed")
    counts = {name: getattr(result, name) for name in names}
    return {**found, "remeasured": {**counts, "moved": moved}}


def _say(file: Path, faults: Sequence[Finding], result: Remeasured | None) -> None:
    for fault in faults:
        say(f"{fault.check}: {one_line(fault.message)}")
    if not faults:
        say(f"{file}: no faults found")
    if result is not None:
        _say_times(result)


def _say_times(result: Remeasured) -> None:
    from gemmdb.generators.measure.remeasure import TOLERANCE

    times = f"{result.within} of {result.rows} times are within {TOLERANCE:.0%} of the recorded ones"
    judged = f"{result.held} of {result.problems} verdicts hold"
    judged += f", {result.failed} no longer hold" if result.failed else ""
    judged += f", of {result.unclear} it cannot tell" if result.unclear else ""
    say(f"{judged}; {times}")
    if result.disturbed:
        why = result.busy or "other programs kept the machine busy, or the reference was unsteady"
        note(f"{result.disturbed} of {result.rows} times are disturbed ({why}): repeat it on a quiet machine")
    if not result.moved:
        return
    say()
    say_table(
        ("recorded", "now", "config", "problem"),
        (
            (
                microseconds(moved.recorded_us),
                "failed" if moved.now_us is None else microseconds(moved.now_us),
                moved.config.text,
                moved.problem.text,
            )
            for moved in result.moved
        ),
        right=("recorded", "now"),
    )
