"""Full-file reads: the content digest, the rows in order, and a summary."""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gemmdb.key.device import Device
from gemmdb.table import dbfile, packed_records, schema
from gemmdb.table.handle import Handle, OnceInOrder
from gemmdb.table.read_timeouts import Deadline, bulk_seconds
from gemmdb.table.row_cache import RowCache

COPIED = {"device": 1, "protocol": 1, "toolchain": 1, "run": 1}
"""The SQL tables that packing copies unchanged, with the number of primary-key columns."""
_DIGESTED = {**COPIED, "record": schema.PLACE_COLUMNS, "numbering": 1}
_SIZES = (
    "SELECT problem, device, count(*), sum((protocol IN ({})) IS TRUE) FROM measurement"
    f" WHERE {schema.AFTER} GROUP BY problem, device {schema.PAGE}"
)
_OPS = (
    "SELECT DISTINCT problem, device, op FROM measurement AS held JOIN problem ON problem.id = held.problem"
    f" WHERE {schema.AFTER} {schema.PAGE}"
)


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection for statements that together read the whole file: they share one deadline, and values may be as
    long as a numbering. Raises TableError."""
    deadline = Deadline()
    db = dbfile.connect(path, deadline=deadline, longest=dbfile.MAX_NUMBERING_BYTES)
    deadline.begin(bulk_seconds(path))
    return db


def packed_digest(db: sqlite3.Connection) -> str:
    """Return the digest of a packed table's content, excluding its header."""
    found = hashlib.blake2b(digest_size=16)
    for name, columns in _DIGESTED.items():
        found.update(f"{name}\n".encode())
        for row in ordered_rows(db, name, columns):
            found.update(f"{row!r}\n".encode(errors="surrogateescape"))
    return found.hexdigest()


def ordered_rows(db: sqlite3.Connection, name: str, columns: int) -> Iterator[tuple[Any, ...]]:
    """Return the rows of an SQL table ordered by its primary key, its first `columns`. Raises sqlite3.Error, including
    for repeated rows."""
    rows = db.execute(f"SELECT * FROM {name} ORDER BY {', '.join(map(str, range(1, columns + 1)))}")

    def size() -> int:
        count, page = (int(db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "page_size"))
        return count * page

    return OnceInOrder(columns, size)(rows)


def summary(
    file: Handle, cache: RowCache, packed: bool, devices: Iterable[Device], head: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return one JSON-ready entry per device, including the file's facts in `head`."""
    found, counts = _packed_counts(file, cache) if packed else _counts(file, cache)
    problems: dict[int, dict[str, int]] = defaultdict(dict)
    for (key, op), count in sorted(found.items(), key=lambda one: str(one[0][1])):
        problems[key][op] = count
    entries = []
    for device in devices:
        measured, computed = counts[device.key, False], counts[device.key, True]
        entries.append({
            "path": str(file.path), "arch": device.arch, "device": device.sku, **head,
            "origin": "modelled" if computed and not measured else "measured",
            "problems": problems[device.key], "measurements": measured + computed,
        })  # fmt: skip
    return entries


_Counts = tuple[Counter[tuple[int, str]], Counter[tuple[int, bool]]]
"""The numbers of problems by device key and op, and of measurements by device key and whether they are modelled."""


def _counts(file: Handle, cache: RowCache) -> _Counts:
    problems = Counter((device, op) for _, device, op in file.pages(_OPS, 2, bulk=True))
    found: Counter[tuple[int, bool]] = Counter()
    keys = file.fetch("SELECT id FROM protocol", (), schema.MOST_PROTOCOLS, "protocols")
    computed = ", ".join(str(key) for (key,) in keys if cache.protocol(key).clock == "model")
    for _, device, count, modelled in file.pages(_SIZES.format(computed), 2, bulk=True):
        found.update({(device, False): count - modelled, (device, True): modelled})
    return problems, found


def _packed_counts(file: Handle, cache: RowCache) -> _Counts:
    """Return the same of a packed table, where pooled times and failures are counted as measurements."""
    problems: Counter[tuple[int, str]] = Counter()
    found: Counter[tuple[int, bool]] = Counter()
    for family, *_, number, key, data in file.pages(schema.RECORDS_SQL, schema.PLACE_COLUMNS):
        device = cache.device_at(number).key
        problems[device, cache.family(family)[0]] += 1
        with cache.errors():
            measured, modelled = packed_records.counts(packed_records.opened(data, key, device))
        found.update({(device, False): measured, (device, True): modelled})
    return problems, found
