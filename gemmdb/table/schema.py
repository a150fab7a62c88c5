"""SQL names and data definitions of a table file, and a check that a file has exactly these.

A file may contain only the definitions below. A view, a trigger, a virtual table or a generated column would run
untrusted SQL, and a missing index would turn a lookup into a scan.
"""

from __future__ import annotations

import json
import re
import sqlite3
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gemmdb.errors import InputError, TableError

SCHEMA_VERSION = 2
PACKED_VERSION = 3
"""The version of packed tables, which have other SQL tables. Those of version 2 have to be packed again."""
OLDEST_VERSION = 1  # The oldest schema that readers support. Writers migrate it to SCHEMA_VERSION.
APPLICATION_ID = 0x676D6462  # `gmdb` in the file's header: distinguishes tables from other SQLite files

SCHEMA = {
    "meta": "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "problem": "CREATE TABLE problem (id INTEGER PRIMARY KEY, text TEXT NOT NULL, op TEXT NOT NULL,"
    " m INTEGER NOT NULL, n INTEGER NOT NULL, k INTEGER NOT NULL, family INTEGER NOT NULL)",
    "problem_family": "CREATE INDEX problem_family ON problem (family, n, k, m)",
    "config": "CREATE TABLE config (id INTEGER PRIMARY KEY, text TEXT NOT NULL)",
    "device": "CREATE TABLE device (id INTEGER PRIMARY KEY, text TEXT NOT NULL, figures TEXT NOT NULL)",
    "protocol": "CREATE TABLE protocol (id INTEGER PRIMARY KEY, text TEXT NOT NULL)",
    "toolchain": "CREATE TABLE toolchain (id INTEGER PRIMARY KEY, text TEXT NOT NULL)",
    "run": "CREATE TABLE run (id INTEGER PRIMARY KEY, text TEXT NOT NULL, provenance TEXT NOT NULL)",
    "measurement": "CREATE TABLE measurement (problem INTEGER NOT NULL, device INTEGER NOT NULL, id INTEGER NOT NULL,"
    " config INTEGER NOT NULL, protocol INTEGER NOT NULL, toolchain INTEGER NOT NULL, run INTEGER NOT NULL,"
    " status TEXT NOT NULL, median_us REAL, low_us REAL, high_us REAL, samples INTEGER, aten_us REAL, error REAL,"
    " compile_s REAL, detail TEXT NOT NULL, PRIMARY KEY (problem, device, id)) WITHOUT ROWID",
    "verdict": "CREATE TABLE verdict (problem INTEGER NOT NULL, device INTEGER NOT NULL, protocol INTEGER NOT NULL,"
    " klass TEXT NOT NULL, pick INTEGER NOT NULL, keys BLOB NOT NULL, ratio REAL NOT NULL, spread REAL NOT NULL,"
    " aten_us REAL NOT NULL, runs INTEGER NOT NULL, head TEXT NOT NULL,"
    " PRIMARY KEY (problem, device, protocol, klass)) WITHOUT ROWID",
    "pending": "CREATE TABLE pending (problem INTEGER NOT NULL, device INTEGER NOT NULL,"
    " PRIMARY KEY (problem, device)) WITHOUT ROWID",
    "record": "CREATE TABLE record (problem INTEGER NOT NULL, device INTEGER NOT NULL, data BLOB NOT NULL,"
    " PRIMARY KEY (problem, device)) WITHOUT ROWID",
    "numbering": "CREATE TABLE numbering (name TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID",
}
"""Every SQL table and index of a table of measurements by name, with the statement that creates it.

Ids are the 64-bit keys of canonical texts, so equal content has equal ids in every file. `verdict.keys` concatenates
the keys of its protocol, toolchain, family and tie set (the pick first), 8 bytes each: one column reads faster than
five. `head` contains the op and sizes. With the family's text it forms the full text of the problem, so a reader rules
out a key collision without a second probe. `pending` contains the (problem, device) pairs whose verdicts are older than
their measurements. `record` and `numbering` are empty: packed tables of version 2 used them.
"""

PACKED = {
    **{name: SCHEMA[name] for name in ("meta", "device", "protocol", "toolchain", "run", "numbering")},
    "record": "CREATE TABLE record (family INTEGER NOT NULL, n INTEGER NOT NULL, k INTEGER NOT NULL,"
    " m INTEGER NOT NULL, batch INTEGER NOT NULL, device INTEGER NOT NULL, problem INTEGER NOT NULL,"
    " data BLOB NOT NULL, PRIMARY KEY (family, n, k, m, batch, device)) WITHOUT ROWID",
}
"""The same of a packed table. `family` and `device` are numbers of its numbering, `problem` is the problem's key."""

ADDED = {2: ("record", "numbering")}  # Tables added by each version

_FOREIGN = {
    "sqlite_stat1": "CREATE TABLE sqlite_stat1(tbl,idx,stat)",
    "sqlite_stat4": "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)",
}
"""Tables that SQLite's ANALYZE leaves in a file."""

MIGRATIONS_TABLE = "_sqlite_migrations"  # Where the migration library records what it applied to older files

COLUMNS = (
    "problem", "device", "id", "config", "protocol", "toolchain", "run", "status", "median_us", "low_us", "high_us",
    "samples", "aten_us", "error", "compile_s", "detail",
)  # fmt: skip
"""The columns of `measurement`, in order."""
_OF_PAIR = "WHERE problem = ? AND device = ?"  # One probe of a primary key
VERDICT_SQL = f"SELECT keys, ratio, spread, aten_us, runs, head FROM verdict {_OF_PAIR}"
ROWS_SQL = f"SELECT {', '.join(COLUMNS)} FROM measurement {_OF_PAIR}"
_PLACE = ("family", "n", "k", "m", "batch", "device")  # The primary key of `record` in a packed table
RECORD_SQL = f"SELECT problem, data FROM record WHERE {' AND '.join(f'{one} = ?' for one in _PLACE)}"
RECORDS_SQL = (
    f"SELECT {', '.join(_PLACE)}, problem, data FROM record WHERE ({', '.join(_PLACE)}) > (?, ?, ?, ?, ?, ?)"
    f" ORDER BY {', '.join(_PLACE)} LIMIT 1000"
)
"""Selects the next page of records, in the order of their primary key, its first PLACE_COLUMNS columns."""
PLACE_COLUMNS = len(_PLACE)
BARRED_SQL = f"SELECT DISTINCT config FROM measurement {_OF_PAIR} AND status IN ('wrong', 'crash')"
"""Selects the configs of one problem that must not be served."""
TIMED_SQL = f"SELECT DISTINCT config FROM measurement {_OF_PAIR} AND status IN ('ok', 'slow')"
"""Selects the configs with times of one problem."""
PENDING_SQL = f"SELECT 1 FROM pending {_OF_PAIR}"  # Finds a row if a problem's verdicts are older than its rows
NUMBERING_SQL = "SELECT name, data FROM numbering LIMIT 9"  # The numbering of a packed table has eight parts.
AFTER, PAGE = "(problem, device) > (?, ?)", "ORDER BY problem, device LIMIT 1000"
"""The condition and suffix of a query for the next page of rows after a problem and device."""

MOST_MEASUREMENTS, MOST_VERDICTS = 20_000, 1_000
"""Maximum number of rows that a reader accepts for one problem on one device. Like the limits below, this is far more
than builds write. A hostile file may contain any number, and reading them would delay a compile, so larger tables are
rejected."""
MOST_PROTOCOLS, MOST_DEVICES = 1_000, 10_000
MOST_PROBLEMS = 100_000  # Maximum number of problems of one family that a neighbour search reads
MOST_FAMILIES = 1_000  # Maximum number of problem families in one file
MOST_TIES = 4_096  # Maximum number of configs in one tie set

_ID, _DIGEST = re.compile("[0-9a-f]{16}"), re.compile("[0-9a-f]{32}")
_HEADER = {
    "digest": _DIGEST, "rows_digest": _DIGEST, "generation_digest": _DIGEST, "uid": _ID,
    "generation": re.compile("0|[1-9][0-9]{0,17}"),
}  # fmt: skip
_PACKED = {"packed": re.compile("1"), "source": _DIGEST}
"""Extra fields of a packed table: the packed flag, and the digest of the table it was made from."""
_FIGURES, _LARGEST_FIGURE = 100, 1e300  # Maximum number of device figures, and the maximum magnitude of one
_FIGURE = re.compile(r"[a-z][a-z0-9_]{0,39}")


class Header(NamedTuple):
    """The file-level fields of `meta`. docs/contributing/table-format.md documents each one."""

    digest: str
    generation: int
    generation_digest: str
    uid: str
    version: int
    packed: bool
    source: str


def header(db: sqlite3.Connection, path: Path) -> Header:
    """Read the header of the table at `path`. Raises TableError if it is malformed."""
    names = (*_HEADER, *_PACKED)
    found = dict(db.execute(f"SELECT name, value FROM meta WHERE name IN ({', '.join('?' * len(names))})", names))
    packed = "packed" in found
    for name, form in ({**_HEADER, **_PACKED} if packed else _HEADER).items():
        if not isinstance(value := found.get(name), str) or not form.fullmatch(value):
            raise TableError(f"{path}: its digest or generation is malformed ({name}); rebuild it with `gemmdb build`")
    version, source = _pragma(db, "user_version"), found["source"] if packed else ""
    if packed and version < PACKED_VERSION:
        raise TableError(f"{path} was packed by an older gemmdb; pack the table that it was packed from again")
    if not packed and version > SCHEMA_VERSION:
        raise TableError(f"{path}: its header does not fit its version; rebuild it with `gemmdb build`")
    whole = found["digest"], int(found["generation"]), found["generation_digest"], found["uid"]
    return Header(*whole, version, packed, source)


def check(db: sqlite3.Connection, path: Path) -> None:
    """Raise TableError unless the file is a gemmdb table with a supported schema and nothing else in it.

    Errors of SQLite pass through.
    """
    if _pragma(db, "application_id") != APPLICATION_ID:
        raise TableError(f"{path} is a SQLite file but not a gemmdb table; make tables with `gemmdb build`")
    version = _pragma(db, "user_version")
    if version > PACKED_VERSION:
        raise TableError(
            f"{path} has schema {version} and this gemmdb reads up to {PACKED_VERSION}; to upgrade it:"
            " pip install --upgrade gemmdb"
        )
    if version < OLDEST_VERSION:
        raise TableError(f"{path} has no readable schema (version {version}); rebuild it with `gemmdb build`")
    wanted = PACKED if version == PACKED_VERSION else SCHEMA
    newer = {name for added, names in ADDED.items() if added > version for name in names}
    found = set()
    for kind, name, table, sql in db.execute(_MASTER):
        if name in newer or not _allowed(wanted, name, kind, table, sql):
            raise TableError(f"{path} holds a {kind} {name[:60]!r} that no gemmdb table has; do not use this file")
        found.add(name)
    missing = wanted.keys() - found - newer
    if missing:
        raise TableError(f"{path} lacks {', '.join(sorted(missing))}; rebuild it with `gemmdb build`")
    header(db, path)


def pack_keys(*keys: int) -> bytes:
    """Pack keys as in `verdict.keys`: 8 bytes each, big-endian."""
    return struct.pack(f">{len(keys)}q", *keys)


def unpack_keys(keys: bytes) -> tuple[int, ...]:
    """Unpack keys from `pack_keys`. Raises struct.error if the length is not a multiple of 8 bytes."""
    return tuple(key for (key,) in struct.iter_unpack(">q", keys))


def parse_figures(text: Any) -> dict[str, float]:
    """Parse a device's figures from JSON. Raises InputError unless it is an object that maps short names to finite
    numbers."""
    figures = _parse_object(text, "a device's figures are not")
    if len(figures) > _FIGURES:
        raise InputError(f"a device has more than {_FIGURES} figures")
    for name, value in figures.items():
        # The bound also rejects JSON integers that are too large for a float.
        number = type(value) in (int, float) and -_LARGEST_FIGURE <= value <= _LARGEST_FIGURE
        if not number or not _FIGURE.fullmatch(name):
            raise InputError(f"a device's figure is malformed: {name[:40]!r}")
    return figures


def parse_provenance(text: Any) -> dict[str, Any]:
    """Parse a run's provenance. Raises InputError for anything but a JSON object."""
    return _parse_object(text, "a run's provenance is not")


def _parse_object(text: Any, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{what} JSON") from error
    if not isinstance(found, dict):
        raise InputError(f"{what} a JSON object")
    return found


_NAME = r'\s*"?\w+"?\s*'
_LIST = rf"\({_NAME}(?:,{_NAME})*\)"
_PLAIN = {
    "table": re.compile(rf"CREATE TABLE{_NAME}\((?:[\w\s\",]|{_LIST})*\)"),
    "index": re.compile(rf"CREATE (?:UNIQUE )?INDEX{_NAME}ON{_NAME}{_LIST}"),
}
"""The migration library's table and index, as any of its versions writes them: names, types, and lists of names only.
SQLite would evaluate an expression in an index, a check or a generated column when it reads or checks the file."""
_COMPUTED = re.compile(r"\b(?:as|check|generated)\b", re.IGNORECASE)
_LONGEST_SQL = 1_000
_MASTER = "SELECT type, name, tbl_name, sql FROM sqlite_master"


def _allowed(known: Mapping[str, str], name: str, kind: str, table: str, sql: str | None) -> bool:
    if name in known or name in _FOREIGN:
        wanted = known.get(name, _FOREIGN.get(name, ""))
        # Triggers have a separate namespace: one may have the same name as a table.
        owner = "problem" if wanted.startswith("CREATE INDEX") else name
        return (kind, table, sql) == ("table" if owner == name else "index", owner, wanted)
    if kind == "index" and sql is None:
        return True
    if table != MIGRATIONS_TABLE or sql is None or len(sql) > _LONGEST_SQL:
        return False
    return kind in _PLAIN and _PLAIN[kind].fullmatch(sql) is not None and _COMPUTED.search(sql) is None


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])
