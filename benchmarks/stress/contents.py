"""What a table holds, without the times: which configs of which problems, and what became of them."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from pathlib import Path

from gemmdb.table.measurement import Status
from gemmdb.table.reader import Table

Contents = dict[tuple[str, str], frozenset[Status]]
"""The statuses of the rows of each config at each problem."""


def contents(path: Path) -> Contents:
    """What the table at `path` holds; nothing if there is no file. Raises TableError."""
    found: dict[tuple[str, str], set[Status]] = defaultdict(set)
    if path.exists():
        with contextlib.closing(Table.open(path)) as table:
            for row in table.measurements():
                found[row.problem.text, row.config.text].add(row.status)
    return {pair: frozenset(statuses) for pair, statuses in found.items()}


def failures(path: Path) -> list[str]:
    """What the table says of its rows without a time, but for those that were out of memory; nothing if there is no
    file."""
    if not path.exists():
        return []
    with contextlib.closing(Table.open(path)) as table:
        failed = (row for row in table.measurements() if row.times is None and row.status is not Status.OOM)
        return [f"{row.problem.head}: {row.config.text}: {row.status}: {row.detail}" for row in failed]


def differences(wanted: Contents, found: Contents) -> dict[str, list[str]]:
    """How a table differs from the wanted one. `missing`, `more`: configs of problems without rows, and those with rows
    that should have none. `untimed`: those without a time that should have one, each with its statuses; `given_up`:
    those of them whose process was killed each time that it was tried."""
    untimed = {
        pair: sorted(found[pair])
        for pair in wanted.keys() & found.keys()
        if wanted[pair] & {Status.OK, Status.SLOW} and not found[pair] & {Status.OK, Status.SLOW}
    }
    given_up = {pair for pair, statuses in untimed.items() if statuses == [Status.OOM]}
    return {
        "missing": _texts(wanted.keys() - found.keys()),
        "more": _texts(found.keys() - wanted.keys()),
        "untimed": [f"{' '.join(pair)}: {', '.join(untimed[pair])}" for pair in sorted(untimed.keys() - given_up)],
        "given_up": _texts(given_up),
    }


def _texts(pairs: set[tuple[str, str]]) -> list[str]:
    return sorted(" ".join(pair) for pair in pairs)
