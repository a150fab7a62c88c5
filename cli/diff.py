"""`gemmdb diff`: how two tables differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmdb.cli.options import JsonFlag
from gemmdb.cli.output import count, say, say_json
from gemmdb.cli.table import say_table

if TYPE_CHECKING:
    from gemmdb.generators.files.diff import Diff


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A table.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another table.")],
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
        _say(found)
    if found:
        raise typer.Exit(1)


def _say(found: Diff) -> None:
    sides = (("A", found.only_a, found.rows_a, found.decided_a), ("B", found.only_b, found.rows_b, found.decided_b))
    for name, problems, rows, decided in sides:
        say(
            f"only in {name}: {count(rows, 'measurement')}, {count(len(problems), 'problem')},"
            f" {count(len(decided), 'verdict')} on problems of both"
        )
    if not found.changed:
        say("the verdicts that both tables have are the same")
        return
    say()
    say_table(
        ("verdict", "speedup in A", "in B", "pick in A", "in B", "problem"),
        (
            (
                "tied" if change.held else "changed",
                f"{change.speedup_before:.2f}x",
                f"{change.speedup_after:.2f}x",
                change.before,
                change.after,
                f"{change.problem} on {change.device}",
            )
            for change in found.changed
        ),
        right=("speedup in A",),
    )
