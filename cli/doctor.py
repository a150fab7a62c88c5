"""`gemmdb doctor`: shows what is installed, what works and what is missing."""

from __future__ import annotations

from dataclasses import asdict

import typer

from gemmdb.cli.options import JsonFlag
from gemmdb.cli.output import say_json
from gemmdb.cli.table import Cell, Column, say_table

STYLES = {"ok": "green", "missing": "yellow", "broken": "red"}


def doctor(json: JsonFlag = False) -> None:
    """Check what is installed, what works and what is missing.

    For everything missing or broken, it says what to do. It also compiles a small function with torch.compile, which
    takes 5 to 30 seconds.

    \b
    Examples:
      gemmdb doctor
      gemmdb doctor --json

    \b
    Exit codes: 0 nothing is broken (something may be missing), 1 something is broken, 2 bad usage.
    """
    # Imported here because no other command needs subprocesses and temporary folders.
    from gemmdb.cli.checks import BROKEN, checks

    found = checks()
    if json:
        say_json("doctor", {"checks": [asdict(check) for check in found]})
    else:
        rows = ((Cell(one.state, STYLES.get(one.state, "")), one.name, one.detail, one.remedy) for one in found)
        say_table((Column("state", rigid=True), Column("what", rigid=True), "found", "to do"), rows)
    if any(check.state == BROKEN for check in found):
        raise typer.Exit(1)
