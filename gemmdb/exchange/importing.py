"""Importing: a file of another format as a table."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.exchange import parquet, text_formats
from gemmdb.exchange.report import Exchanged, Tally
from gemmdb.generators.files.merge import unite
from gemmdb.table import schema, trusting
from gemmdb.table.measurement import Measurement
from gemmdb.table.writer import Store

_CHUNK = 5000


@dataclass(frozen=True)
class Content:
    """What a file holds: rows, and the runs in the form of `Table.provenance`. Rows are read while they are taken."""

    rows: Iterable[Measurement]
    runs: list[dict[str, Any]]


Reader = Callable[[Path, Tally], Content]
"""Reads a file. What it leaves goes to the Tally, by the time all rows are taken."""


def load(path: Path, out: Path, kind: str, read: Reader) -> Exchanged:
    """Add what `read` finds in the file at `path`, of the format `kind`, to the table at `out`, which is made if
    missing. `out` is replaced when all is read, or stays as it is.

    Raises InputError with file and line for bad input, and TableError if `out` exists and is not a table, or if
    GEMMDB_TRUST keeps the file out of it.
    """
    if not path.is_file():
        raise InputError(f"{path} is not a file")
    if out.exists() and path.samefile(out):
        raise InputError(f"{out} is the file to import; name another table")
    if not out.absolute().parent.is_dir():
        raise InputError(f"{out.absolute().parent} is not a folder; make it, or name another table")
    trusting.admit(out, [path])
    tally = Tally()
    part = out.with_name(f".{out.name}.{secrets.token_hex(4)}.part")
    try:
        carried = total = _write(read(path, tally), part, str(path))
        if out.exists():
            total = unite([out, part], out)
        else:
            part.replace(out)
    except MemoryError as error:
        raise InputError(f"{path} needs more memory than there is") from error
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}); check its folder") from error
    finally:
        for left in (part, part.with_name(f"{part.name}-journal")):
            left.unlink(missing_ok=True)
    return Exchanged(str(path), out, kind, "measurement", carried, tally.left, total)


def _write(content: Content, part: Path, name: str) -> int:
    """Write a new table. Returns how many rows differ."""
    count = 0
    devices: set[int] = set()
    protocols: set[int] = set()
    with Store.open(part) as store:
        rows = iter(content.rows)
        while chunk := list(islice(rows, _CHUNK)):
            count += store.add(chunk)
            devices |= {row.device.key for row in chunk}
            protocols |= {row.protocol.key for row in chunk}
            if len(devices) > schema.MOST_DEVICES or len(protocols) > schema.MOST_PROTOCOLS:
                raise InputError(f"{name}: more devices or protocols than a table may hold")
        store.add_runs(content.runs)
        store.refresh()
    return count


def _csv(path: Path, tally: Tally) -> Content:
    return Content(text_formats.read_csv(path), [])


def _jsonl(path: Path, tally: Tally) -> Content:
    runs, rows = text_formats.read_jsonl(path)
    return Content(rows, runs)


def _parquet(path: Path, tally: Tally) -> Content:
    runs, rows = parquet.read(path)
    return Content(rows, runs)


OWN: Mapping[str, Reader] = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}
"""The formats that `gemmdb export` writes and that are read back to the last bit."""
