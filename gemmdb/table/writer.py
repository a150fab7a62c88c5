"""Store: the only writer of table files. Safe against kill -9 and concurrent processes.

Tables use the rollback journal: unlike with a write-ahead log, a table is a single file that can be read from read-only
media and network file systems. Writers take turns; a commit takes milliseconds.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError, TableError
from gemmdb.key import canonical
from gemmdb.key.device import Device
from gemmdb.table import dbfile, file_locks, schema, write_connection
from gemmdb.table.measurement import Measurement, fingerprint
from gemmdb.table.row_cache import RowCache
from gemmdb.table.verdict import decide_all
from gemmdb.table.verdict_rows import verdict_values

BUSY_S = 60.0  # Default timeout of a writer waiting for its turn

_INSERT = f"INSERT OR IGNORE INTO measurement VALUES ({', '.join('?' * len(schema.COLUMNS))})"
_INSERT_VERDICT = f"INSERT INTO verdict VALUES ({', '.join('?' * 11)})"
_BATCH = 200
"""Number of problems whose verdicts are recomputed in one transaction. It blocks other writers for well under a
second."""
_PROVENANCE_BYTES = dbfile.MAX_VALUE_BYTES // 2
_KEY_LIMIT = 65_536  # Keys kept in memory. Beyond that, they are looked up again.


class Store:
    """A table file open for writing; a context manager. Every method raises TableError if the file is unusable."""

    def __init__(self, path: Path, busy_s: float = BUSY_S) -> None:
        self.path, self._busy_s = path, busy_s
        self._lock = threading.RLock()
        self._connect()

    @classmethod
    def open(cls, path: Path, busy_s: float = BUSY_S) -> Store:
        """Open the table at `path`, migrated to the current schema. A missing table is created, with its directory.
        Waits up to `busy_s` seconds for each lock of another writer."""
        return cls(Path(path), busy_s)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Added rows are kept even without `refresh`."""
        with self._lock:
            self._db.close()

    def begin_run(self, provenance: Mapping[str, Any]) -> str:
        """Record a run with its provenance (JSON-ready: command, versions, readings, dates) and return its globally
        unique run id."""
        now = datetime.datetime.now(datetime.UTC)
        run = f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
        self.add_runs([{"started": now.isoformat(timespec="seconds"), **provenance, "run": run}])
        return run

    def add_runs(self, runs: Iterable[Mapping[str, Any]]) -> None:
        """Record runs in the format of `Table.provenance`."""
        with self.transaction() as db:
            for run in runs:
                provenance = {name: value for name, value in run.items() if name != "run"}
                self._keys.put_run(db, str(run["run"]), _provenance_text(provenance))

    def add(self, rows: Iterable[Measurement]) -> int:
        """Add measurements in one transaction and return how many were new. Adding a row again changes nothing."""
        rows = list(rows)
        with self.transaction() as db:
            return self._add(db, rows)

    def refresh(self, *, live: bool = False, above: int = 0) -> int:
        """Recompute the verdicts of problems whose rows changed since the last refresh, publish the content digest, and
        return the number of (problem, device) pairs.

        If rows changed since the last generation, the generation is raised above `above`. With `live` it never changes:
        live tuning must not invalidate compiled graphs.
        """
        done = 0
        while True:
            with self.transaction() as db:
                found = self._refresh(db, live, above)
            done += found
            if found < _BATCH:
                return done

    def record_live(self, rows: Sequence[Measurement]) -> None:
        """Like `add` and `refresh` with `live`, in one transaction: each takes the disk milliseconds."""
        with self.transaction() as db:
            self._add(db, rows)
            more = self._refresh(db, True, 0) == _BATCH
        if more:
            self.refresh(live=True)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a write transaction. It begins when it is this process's turn, and any exception rolls it back. No other
        process can change the file in the meantime."""
        with self._lock, _guard(self.path):
            self._begin()
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                self._keys.forget()
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _add(self, db: sqlite3.Connection, rows: Sequence[Measurement]) -> int:
        fresh = [row for row in rows if self._keys.put(db, row)]
        if fresh:
            pairs = {(row.problem.key, row.device.key) for row in fresh}
            db.executemany("INSERT OR IGNORE INTO pending VALUES (?, ?)", sorted(pairs))
            total = int(_get(db, "rows_digest"), 16) + sum(map(fingerprint, fresh))
            _put(db, rows_digest=f"{total % 2**128:032x}")
        return len(fresh)

    def _refresh(self, db: sqlite3.Connection, live: bool, above: int) -> int:
        """Recompute the verdicts of up to _BATCH pairs and return their number. If none are left, publish."""
        pairs = db.execute("SELECT problem, device FROM pending LIMIT ?", (_BATCH,)).fetchall()
        for pair in pairs:
            rows = [self._cache.measurement(row) for row in db.execute(schema.ROWS_SQL, pair)]
            db.execute("DELETE FROM verdict WHERE problem = ? AND device = ?", pair)
            db.executemany(_INSERT_VERDICT, map(verdict_values, decide_all(rows)))
            db.execute("DELETE FROM pending WHERE problem = ? AND device = ?", pair)
        if len(pairs) < _BATCH:
            _publish(db, live, above)
        return len(pairs)

    def _connect(self) -> None:
        with _guard(self.path):
            while not file_locks.in_turn(self.path, self._busy_s, self._opened):
                self._db.close()
        self._keys = KeyWriter(self.path)
        self._cache = RowCache(self.path, lambda sql, args: self._db.execute(sql, args).fetchall())

    def _opened(self) -> bool:
        """Open the file. Return False if it was replaced in the meantime."""
        before = file_locks.identity(self.path)
        self._db = write_connection.connect(self.path)
        self._file = file_locks.identity(self.path)
        return before in (None, self._file)

    def _begin(self) -> None:
        """Begin a transaction on the file currently at the path: a merge may have replaced it."""
        while not file_locks.in_turn(self.path, self._busy_s, self._begun):
            self._db.close()
            self._connect()
        self._db.execute(f"PRAGMA busy_timeout={int(1000 * self._busy_s)}")  # A commit waits for readers.

    def _begun(self) -> bool:
        """Begin a transaction if the open file is still at the path."""
        there = file_locks.identity(self.path)
        if there is None:
            lost = "its content is lost: run this command again"
            raise TableError(f"{self.path} was removed while it was being written; {lost}")
        if there != self._file:
            return False
        self._db.execute("PRAGMA busy_timeout=0")
        self._db.execute("BEGIN IMMEDIATE")
        if file_locks.identity(self.path) == self._file:
            return True
        self._db.execute("ROLLBACK")  # The directory has no locks, or another host replaced the file.
        return False


class KeyWriter:
    """Writes rows and caches which keys the file already has. Call `forget` after a rollback."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: set[int] = set()
        self._figures: dict[int, Mapping[str, float]] = {}

    def forget(self) -> None:
        """Clear the cached keys."""
        self._known.clear()
        self._figures.clear()

    def put(self, db: sqlite3.Connection, row: Measurement) -> bool:
        """Write a measurement, and every referenced value that the file does not have yet. Return whether it was new.
        Raises TableError on a key collision."""
        problem, run, t = row.problem, canonical.key(row.run), row.times
        if problem.key not in self._known:
            sizes = (problem.m, problem.n, problem.k)
            self._insert(db, "problem", problem.key, problem.text, problem.op, *sizes, problem.family_key)
        for kind, value in (("config", row.config), ("protocol", row.protocol), ("toolchain", row.toolchain)):
            if value.key not in self._known:
                self._insert(db, kind, value.key, value.text)
        if self._figures.get(row.device.key) is not row.device.figures:
            self._put_device(db, row.device)
        if run not in self._known:
            self.put_run(db, row.run, "{}")
        times = (None,) * 5 if t is None else (t.median_us, t.low_us, t.high_us, t.samples, t.aten_us)
        keys = (problem.key, row.device.key, row.key, row.config.key, row.protocol.key, row.toolchain.key, run)
        values = (*keys, row.status.value, *times, row.error, row.compile_s, row.detail)
        return db.execute(_INSERT, values).rowcount == 1

    def put_run(self, db: sqlite3.Connection, run: str, provenance: str) -> None:
        """Write a run. If a run has two records, the longer one is kept, so the merge order does not matter."""
        key = canonical.key(run)
        if self._insert(db, "run", key, run, provenance):
            return
        (known,) = db.execute("SELECT provenance FROM run WHERE id = ?", (key,)).fetchone()
        if (len(provenance), provenance) > (len(known), known):
            db.execute("UPDATE run SET provenance = ? WHERE id = ?", (provenance, key))

    def _put_device(self, db: sqlite3.Connection, device: Device) -> None:
        """Write a device. If figures differ between files, the larger one is kept, so the merge order does not
        matter."""
        figures = dict(sorted(device.figures.items()))
        if not self._insert(db, "device", device.key, device.text, json.dumps(figures, allow_nan=False)):
            (text,) = db.execute("SELECT figures FROM device WHERE id = ?", (device.key,)).fetchone()
            known = schema.parse_figures(text)
            merged = {
                name: max(one[name] for one in (known, figures) if name in one) for name in sorted({*known, *figures})
            }
            if (new := json.dumps(merged, allow_nan=False)) != text:
                db.execute("UPDATE device SET figures = ? WHERE id = ?", (new, device.key))
        self._figures[device.key] = device.figures

    def _insert(self, db: sqlite3.Connection, kind: str, key: int, text: str, *rest: Any) -> bool:
        """Insert a row and return whether it was new."""
        marks = ", ".join("?" * (2 + len(rest)))
        fresh = db.execute(f"INSERT OR IGNORE INTO {kind} VALUES ({marks})", (key, text, *rest)).rowcount == 1
        if not fresh and db.execute(f"SELECT text FROM {kind} WHERE id = ?", (key,)).fetchone()[0] != text:
            raise TableError(f"{self._path}: two {kind}s share a 64-bit key, one is {text[:120]!r}; keep them apart")
        if len(self._known) >= _KEY_LIMIT:
            self._known.clear()
        self._known.add(key)
        return fresh


def record_live(path: Path, rows: Sequence[Measurement], busy_s: float = BUSY_S) -> None:
    """Add the measurements of live tuning and their verdicts, waiting up to `busy_s` seconds for other writers. The
    generation does not change, so compiled graphs stay valid."""
    with Store.open(path, busy_s) as store:
        store.record_live(rows)


def _publish(db: sqlite3.Connection, live: bool, above: int) -> None:
    digest = _get(db, "rows_digest")
    if _get(db, "digest") != digest:
        _put(db, digest=digest, updated=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
    generation = int(_get(db, "generation"))
    if not live and (_get(db, "generation_digest") != digest or generation <= above):
        _put(db, generation=str(max(generation, above) + 1), generation_digest=digest)


def _get(db: sqlite3.Connection, name: str) -> str:
    return str(db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()[0])


def _put(db: sqlite3.Connection, **meta: str) -> None:
    db.executemany("UPDATE meta SET value = ? WHERE name = ?", [(value, name) for name, value in meta.items()])


def _provenance_text(provenance: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(provenance, sort_keys=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InputError(f"a run's provenance must be JSON-ready ({error})") from error
    if len(text) > _PROVENANCE_BYTES:
        raise InputError(f"a run's provenance takes {len(text):,} bytes; at most {_PROVENANCE_BYTES:,} are kept")
    return text


@contextlib.contextmanager
def _guard(path: Path) -> Iterator[None]:
    try:
        yield
    except dbfile.FAULTS as error:
        raise dbfile.broken(path, error) from error
