"""Difference of two tables: rows that only one has, and changed verdicts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table.reader import Table
from gemmdb.table.record import RESIDENT
from gemmdb.table.verdict import Verdict

Key = tuple[str, str, str, str]
"""Texts of problem, device and protocol, and the toolchain class."""


@dataclass(frozen=True)
class Change:
    """A verdict that differs between the tables. `held`: each pick is in the other's tie set, so the two agree within
    noise."""

    problem: str
    device: str
    protocol: str
    klass: str
    before: str
    after: str
    speedup_before: float
    speedup_after: float
    held: bool


@dataclass(frozen=True)
class Diff:
    """`only_a`, `only_b`: problems with rows in one table only, with the device's text. `rows_a`, `rows_b`: number of
    measurements in one table only. `changed`: verdicts with another pick. `decided_a`, `decided_b`: problems of both
    tables with a verdict in one only."""

    only_a: tuple[tuple[str, str], ...]
    only_b: tuple[tuple[str, str], ...]
    rows_a: int
    rows_b: int
    decided_a: tuple[Key, ...]
    decided_b: tuple[Key, ...]
    changed: tuple[Change, ...]

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def as_dict(self) -> dict[str, Any]:
        """Return the output of `gemmdb diff --json`."""
        return {
            "only_a": [{"problem": problem, "device": device} for problem, device in self.only_a],
            "only_b": [{"problem": problem, "device": device} for problem, device in self.only_b],
            "measurements_only_a": self.rows_a,
            "measurements_only_b": self.rows_b,
            "verdicts_only_a": [_named(key) for key in self.decided_a],
            "verdicts_only_b": [_named(key) for key in self.decided_b],
            "changed": [vars(change) for change in self.changed],
        }


def diff(a: Path, b: Path) -> Diff:
    """Compare the table at `b` with the one at `a`. If one is packed, compares pooled times instead of measurements.
    Raises TableError."""
    with contextlib.closing(Table.open(a)) as before, contextlib.closing(Table.open(b)) as after:
        pooled = before.packed or after.packed
        (pairs_a, rows_a, verdicts_a), (pairs_b, rows_b, verdicts_b) = _read(before, pooled), _read(after, pooled)
    both = pairs_a & pairs_b
    keys_a = {key for key in verdicts_a if key[:2] in both}
    keys_b = {key for key in verdicts_b if key[:2] in both}
    changes = (_change(key, verdicts_a[key], verdicts_b[key]) for key in sorted(keys_a & keys_b))
    return Diff(
        tuple(sorted(pairs_a - pairs_b)),
        tuple(sorted(pairs_b - pairs_a)),
        len(rows_a - rows_b),
        len(rows_b - rows_a),
        tuple(sorted(keys_a - keys_b)),
        tuple(sorted(keys_b - keys_a)),
        tuple(change for change in changes if change.before != change.after),
    )


def _read(table: Table, pooled: bool) -> tuple[set[tuple[str, str]], set[object], dict[Key, Verdict]]:
    """Return the pairs of problem and device, the rows or pooled times, and the verdicts."""
    pairs = list(table.pairs())
    rows: set[object] = {row.key for row in table.measurements()} if not pooled else set()
    if pooled:
        rows.update(time for pair in pairs for time in _times(table, *pair))
    verdicts = (verdict for pair in pairs for verdict in table.verdicts(*pair))
    return (
        {(problem.text, device.text) for problem, device in pairs},
        rows,
        {(v.problem.text, v.device.text, v.protocol.text, v.klass): v for v in verdicts},
    )


def _times(table: Table, problem: Problem, device: Device) -> Iterator[object]:
    found = table.record(problem, device)
    for config, status in found.failed if found else ():
        yield problem.key, device.key, config.key, status
    for group in found.groups if found else ():
        for one in group.times:
            figures = one.code, one.width, one.flags % RESIDENT
            yield problem.key, device.key, group.l2, group.modelled, group.klass, one.config.key, *figures


def _change(key: Key, before: Verdict, after: Verdict) -> Change:
    held = before.pick in after.ties and after.pick in before.ties
    return Change(*key, before.pick.text, after.pick.text, before.speedup, after.speedup, held)


def _named(key: Key) -> dict[str, str]:
    return dict(zip(("problem", "device", "protocol", "klass"), key, strict=True))
