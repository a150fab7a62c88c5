"""Verification of a table file: every check that needs no device."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import operator
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError, TableError
from gemmdb.generators.files.impossible import Impossible
from gemmdb.kernels import cutlass
from gemmdb.kernels.config import Config
from gemmdb.kernels.cutlass.archive import Archive
from gemmdb.key import canonical
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.table import bulk_reading, dbfile, schema
from gemmdb.table.measurement import Protocol, fingerprint, one_line
from gemmdb.table.packed_records import MEASURED
from gemmdb.table.reader import Table
from gemmdb.table.row_cache import CONTEXT_BYTES, RowCache
from gemmdb.table.verdict import decide_all
from gemmdb.table.verdict_rows import verdict_values, without_checksum

_TEXTS: tuple[tuple[str, Callable[[str], Any]], ...] = (
    ("problem", Problem.parse),
    ("config", Config.parse),
    ("device", Device.parse),
    ("protocol", Protocol.parse),
    ("toolchain", Toolchain.parse),
    ("run", str),
)
_ROWS = f"SELECT {', '.join(schema.COLUMNS)} FROM measurement ORDER BY problem, device, id"
_VERDICTS = "SELECT * FROM verdict ORDER BY problem, device, protocol, klass"
_RECORDS = "SELECT family, n, k, m, batch, device, problem, data FROM record"
_SIZES = (
    ("measurements of a problem", "FROM measurement GROUP BY problem, device", schema.MOST_MEASUREMENTS),
    ("verdicts on a problem", "FROM verdict GROUP BY problem, device", schema.MOST_VERDICTS),
    ("problems of a family", "FROM problem GROUP BY family", schema.MOST_PROBLEMS),
    ("families of problems", "FROM (SELECT DISTINCT family FROM problem)", schema.MOST_FAMILIES),
    ("protocols", "FROM protocol", schema.MOST_PROTOCOLS),
    ("devices", "FROM device", schema.MOST_DEVICES),
)
_PACKED_SIZES = (
    ("problems of a family", "FROM record GROUP BY family, device", schema.MOST_PROBLEMS),
    ("families of problems", "FROM (SELECT DISTINCT family FROM record)", schema.MOST_FAMILIES),
    *_SIZES[-2:],
)
"""Queries that a lookup reads completely, and their limits."""
_MOST = 100
"""Most findings that one check reports."""


@dataclass(frozen=True)
class Finding:
    """One fault. `check`: `integrity`, `size`, `text`, `measurement`, `record`, `digest`, `verdict`, `pending`, `time`
    or `kernel`. `message`: one line."""

    check: str
    message: str


def verify(path: Path) -> list[Finding]:
    """Return every fault in the table at `path`; empty if there is none.

    Checks SQLite's own structures, the limits of lookups, that each text is canonical and has the right key, that each
    measurement is consistent and has the right key, that the content digest matches the measurements, and that the
    verdicts follow from the measurements; for a packed table that each record is well-formed, that each verdict picks
    one of its configs, and that the content digest matches; for both that no time is physically impossible. Raises
    TableError for a file that is not a table.
    """
    with contextlib.closing(bulk_reading.connect(path)) as db:
        try:
            return list(_findings(db, path))
        except dbfile.FAULTS as error:
            return [Finding("integrity", str(dbfile.broken(path, error)))]


def verify_kernels(path: Path) -> list[Finding]:
    """Return every fault in the archive of kernels at `path`: kernels that do not match its index, or that were
    compiled from an outdated source. Raises TableError for a file that is not an archive."""
    archive = Archive.open(path)
    found = []
    source = str(archive.provenance.get("source", ""))
    if source != cutlass.sources():
        message = f"compiled from source {one_line(source)}, which is {cutlass.sources()} now: gemmdb kernels build"
        found.append(Finding("kernel", message))
    for name in archive.kernels:
        try:
            archive.read(name)
        except TableError as error:
            found.append(Finding("kernel", str(error)))
    return found


def _findings(db: sqlite3.Connection, path: Path) -> Iterator[Finding]:
    damage = [str(line) for (line,) in db.execute(f"PRAGMA integrity_check({_MOST})") if line != "ok"]
    yield from (Finding("integrity", line) for line in damage)
    if damage:
        return
    head = schema.header(db, path)
    yield from _sizes(db, _PACKED_SIZES if head.packed else _SIZES)
    cache = RowCache(path, lambda sql, args: db.execute(sql, args).fetchall(), head.packed)
    if head.packed:
        try:
            cache.numbering()
        except TableError as error:  # Every config would have this fault.
            yield Finding("text", str(error))
            return
    faults = [fault for kind, parse in _TEXTS if not (head.packed and kind in ("problem", "config"))
              for fault in _texts(db, kind, parse)]  # fmt: skip
    faults += _numbered(cache) if head.packed else ()
    faults = faults or list(_columns(db, cache, head.packed))
    yield from faults[:_MOST]
    if faults:
        return
    if head.packed:
        times = Impossible()
        yield from islice(chain(_packed(db, head, cache, times), _readable(path, times), _times(times)), _MOST)
        return
    times = Impossible()
    faults, total, wanted = _measured(db, cache, times)
    yield from faults[:_MOST]
    if not faults:
        yield from _digest(db, total)
        faults = list(_verdicts(db, wanted))
        yield from faults or _readable(path, Impossible())
        yield from _times(times)


def _sizes(db: sqlite3.Connection, sizes: Iterable[tuple[str, str, int]]) -> Iterator[Finding]:
    for what, groups, most in sizes:
        (largest,) = db.execute(f"SELECT max(number) FROM (SELECT count(*) AS number {groups})").fetchone()
        if largest is not None and largest > most:
            yield Finding("size", f"{largest:,} {what} are more than the {most:,} that lookups accept")


def _texts(db: sqlite3.Connection, kind: str, parse: Callable[[str], Any]) -> Iterator[Finding]:
    for key, text in db.execute(f"SELECT id, text FROM {kind}"):
        try:
            parse(text)
            good = canonical.key(text) == key
        except (InputError, TableError) as error:
            yield Finding("text", f"{kind} {key}: {error}")
            continue
        except (TypeError, AttributeError):
            yield Finding("text", f"{kind} {key}: {str(text)[:80]!r} is not a text")
            continue
        if not good:
            yield Finding("text", f"{kind} {key} is not the key of its text {str(text)[:120]!r}")


def _numbered(cache: RowCache) -> Iterator[Finding]:
    """Check the configs and contexts of a packed table's numbering."""
    numbering = cache.numbering()
    try:
        for number in range(len(numbering.configs)):
            cache.config(number)
        for protocol, toolchain in numbering.context_keys():
            cache.protocol(protocol), cache.toolchain(toolchain)
        for device, _ in numbering.devices:
            cache.device(device)
    except TableError as error:
        yield Finding("text", str(error))


def _columns(db: sqlite3.Connection, cache: RowCache, packed: bool) -> Iterator[Finding]:
    """Check the columns other than texts. Call it only if the texts are valid."""
    for key, *columns in () if packed else db.execute("SELECT id, op, m, n, k, family FROM problem"):
        problem = cache.problem(key)
        if columns != [problem.op, problem.m, problem.n, problem.k, problem.family_key]:
            yield Finding("text", f"problem {key}: its columns do not match its text")
    for key, figures in db.execute("SELECT id, figures FROM device"):
        try:
            schema.parse_figures(figures)
        except InputError as error:
            yield Finding("text", f"device {key}: {error}")
    for run, provenance in db.execute("SELECT text, provenance FROM run"):
        try:
            good = isinstance(json.loads(provenance), dict)
        except (TypeError, ValueError, RecursionError):
            good = False
        if not good:
            yield Finding("text", f"run {run[:64]!r}: its provenance is not a JSON object")


def _packed(db: sqlite3.Connection, head: schema.Header, cache: RowCache, times: Impossible) -> Iterator[Finding]:
    """Check a packed table with valid texts. Its verdicts cannot be derived again; their picks must be among the times.
    Impossible `times` are noted."""
    for *place, number, key, data in db.execute(_RECORDS):
        try:
            problem, device = cache.problem_at(tuple(place), key), cache.device_at(number)
            opened = cache.opened(data, key, device.key)
            found = cache.record(opened, device)
            times.record(found, problem, device)
            verdicts = [(row, cache.context(device.kind, row[0])) for row in cache.verdicts(opened, problem)]
            picks = [cache.ties(row[0][CONTEXT_BYTES:], context)[0] for row, context in verdicts]
        except TableError as error:
            yield Finding("record", str(error))
            continue
        servable = {one.config for group in found.groups for one in group.times if one.servable} - found.banned
        if not servable.issuperset(picks):
            yield Finding("verdict", f"the verdict on problem {_short(key)} picks a config without a time")
        states = [MEASURED[context.protocol.l2] for _, context in verdicts if context.protocol.clock != "model"]
        if opened[1] != functools.reduce(operator.or_, states, 0):
            yield Finding("verdict", f"the record of problem {_short(key)} does not say which verdicts it has")
    digest = bulk_reading.packed_digest(db)
    if digest != head.digest:
        yield Finding("digest", f"the digest of the content is {digest}, but the file has {head.digest}")


def _readable(path: Path, times: Impossible) -> Iterator[Finding]:
    """Yield verdicts that a lookup could not read. The impossible `times` of the others are noted."""
    with contextlib.closing(Table.open(path)) as table:
        try:
            for problem, device in table.decided():
                for verdict in table.verdicts(problem, device):
                    times.verdict(verdict)
        except TableError as error:
            yield Finding("verdict", str(error))


def _times(times: Impossible) -> Iterator[Finding]:
    if times.message:
        yield Finding("time", times.message)


def _measured(
    db: sqlite3.Connection, cache: RowCache, times: Impossible
) -> tuple[list[Finding], int, dict[tuple[Any, ...], tuple[Any, ...]]]:
    """Check the measurements in one pass. Returns their faults, the sum of their fingerprints, and the expected rows of
    the table `verdict`, by primary key. Impossible `times` are noted."""
    faults, total, wanted = list[Finding](), 0, {}
    for _, group in groupby(db.execute(_ROWS), key=lambda row: row[:2]):
        rows = []
        for row in group:
            try:
                found = cache.measurement(row)
            except TableError as error:
                faults.append(Finding("measurement", str(error)))
                continue
            if found.key != row[2]:
                faults.append(Finding("measurement", f"measurement {row[2]} is not the key of its content"))
            total += fingerprint(found)
            times.row(found)
            rows.append(found)
        for verdict in decide_all(rows):
            values = verdict_values(verdict)
            wanted[values[:4]] = values
    return faults, total, wanted


def _digest(db: sqlite3.Connection, total: int) -> Iterator[Finding]:
    meta = dict(db.execute("SELECT name, value FROM meta"))
    digest = f"{total % 2**128:032x}"
    if meta.get("rows_digest") != digest:
        yield Finding("digest", f"the digest of the rows is {digest}, but the file has {meta.get('rows_digest')}")
    (pending,) = db.execute("SELECT count(*) FROM pending").fetchone()
    if pending:
        yield Finding("pending", f"{pending} problems have outdated verdicts; `gemmdb merge` of the file updates them")
    elif meta.get("digest") != meta.get("rows_digest"):
        yield Finding("digest", "the published digest does not match the rows; `gemmdb merge` of the file repairs it")


def _verdicts(db: sqlite3.Connection, wanted: dict[tuple[Any, ...], tuple[Any, ...]]) -> Iterator[Finding]:
    waiting = set(db.execute("SELECT problem, device FROM pending"))
    found = {row[:4]: row for row in db.execute(_VERDICTS)}
    faults = 0
    for key in sorted({*wanted, *found}, key=repr):  # The keys in a hostile file may have types without an order.
        if key[:2] in waiting or _same(wanted.get(key), found.get(key)):
            continue
        faults += 1
        if faults <= _MOST:
            fault = "is missing" if key not in found else "does not follow from the measurements"
            yield Finding("verdict", f"the verdict on problem {_short(key[0])} under {_short(key[3])} {fault}")


def _short(value: Any) -> str:
    return one_line(str(value))[:80]


def _same(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> bool:
    if one is None or other is None:
        return one is other
    pairs = ((without_checksum(a), without_checksum(b)) for a, b in zip(one, other, strict=True))
    return all(
        a == b or (isinstance(a, float) and isinstance(b, float) and math.isclose(a, b, rel_tol=1e-9)) for a, b in pairs
    )
