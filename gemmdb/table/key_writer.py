"""KeyWriter: writes the values that measurements name by key, each once and never two under one key."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gemmdb.errors import TableError
from gemmdb.key import canonical
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Measurement
from gemmdb.table.rows import parse_figures

_LIMIT = 65_536
"""Keys kept in memory. When there are more, they are looked up anew."""


class KeyWriter:
    """Remembers which keys the file already holds. Call `forget` after a rollback."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: set[int] = set()
        self._figures: dict[int, Mapping[str, float]] = {}

    def forget(self) -> None:
        """Forget which keys the file holds."""
        self._known.clear()
        self._figures.clear()

    def put(self, db: sqlite3.Connection, row: Measurement) -> None:
        """Write every value that a measurement names and the file does not hold yet. Raises TableError on a key
        collision."""
        if row.problem.key not in self._known:
            self._put_problem(db, row.problem)
        for kind, value in (("config", row.config), ("protocol", row.protocol), ("toolchain", row.toolchain)):
            if value.key not in self._known:
                self._insert(db, kind, value.key, value.text)
        if self._figures.get(row.device.key) is not row.device.figures:
            self._put_device(db, row.device)
        if canonical.key(row.run) not in self._known:
            self.put_run(db, row.run, "{}")

    def put_run(self, db: sqlite3.Connection, run: str, provenance: str) -> None:
        """Write a run. If a run has two records, the longer one stays, so the order of merging makes no difference."""
        key = canonical.key(run)
        if self._insert(db, "run", key, run, provenance):
            return
        (known,) = db.execute("SELECT provenance FROM run WHERE id = ?", (key,)).fetchone()
        if (len(provenance), provenance) > (len(known), known):
            db.execute("UPDATE run SET provenance = ? WHERE id = ?", (provenance, key))

    def _put_problem(self, db: sqlite3.Connection, problem: Problem) -> None:
        sizes = (problem.m, problem.n, problem.k)
        self._insert(db, "problem", problem.key, problem.text, problem.op, *sizes, problem.family_key)

    def _put_device(self, db: sqlite3.Connection, device: Device) -> None:
        text = _figures(device.figures)
        if not self._insert(db, "device", device.key, device.text, text):
            (known,) = db.execute("SELECT figures FROM device WHERE id = ?", (device.key,)).fetchone()
            merged = _figures(union(parse_figures(known), device.figures))
            if merged != known:
                db.execute("UPDATE device SET figures = ? WHERE id = ?", (merged, device.key))
        self._figures[device.key] = device.figures

    def _insert(self, db: sqlite3.Connection, kind: str, key: int, text: str, *rest: Any) -> bool:
        """Whether the row was new."""
        marks = ", ".join("?" * (2 + len(rest)))
        fresh = db.execute(f"INSERT OR IGNORE INTO {kind} VALUES ({marks})", (key, text, *rest)).rowcount == 1
        if not fresh and db.execute(f"SELECT text FROM {kind} WHERE id = ?", (key,)).fetchone()[0] != text:
            raise TableError(f"{self._path}: two {kind}s share a 64-bit key, one is {text[:120]!r}; keep them apart")
        if len(self._known) >= _LIMIT:
            self._known.clear()
        self._known.add(key)
        return fresh


def union(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """The figures of one device from two files: all names, each with the larger value, so the order of merging makes no
    difference."""
    return {name: max(x[name] for x in (one, other) if name in x) for name in sorted({*one, *other})}


def _figures(figures: Mapping[str, float]) -> str:
    return json.dumps(dict(sorted(figures.items())), allow_nan=False)
