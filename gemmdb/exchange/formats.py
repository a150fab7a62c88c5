"""Export of a table to one of the FORMATS, and import from one of them into a table."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gemmdb.errors import InputError, choices
from gemmdb.exchange import lookup_table, parquet, recognize, text_formats
from gemmdb.exchange.content import Content, Exchanged, Tally
from gemmdb.exchange.foreign import autotune_cache, mm_log, tunableop, vllm
from gemmdb.exchange.foreign.races import Given
from gemmdb.files import replacing
from gemmdb.generators.files.merge import unite
from gemmdb.table import schema
from gemmdb.table.admission import check_inputs
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

_CHUNK = 5000


@dataclass(frozen=True)
class Format:
    """A file format. `what`: unit counted, in the singular. `write`: writes a table to a file and returns the number of
    units; None for import-only formats. `read`: reads one of gemmdb's own files; `read_foreign`: reads another
    program's file, with the information that the file lacks supplied by the caller. Skipped items are in the Tally once
    all rows have been consumed."""

    what: str = "measurement"
    write: Callable[[Table, Path, Tally], int] | None = None
    read: Callable[[Path], Content] | None = None
    read_foreign: Callable[[Path, Tally, Given], Content] | None = None


FORMATS: Mapping[str, Format] = {
    "csv": Format(write=text_formats.write_csv, read=text_formats.read_csv),
    "jsonl": Format(write=text_formats.write_jsonl, read=text_formats.read_jsonl),
    "parquet": Format(write=parquet.write, read=parquet.read),
    "verdicts": Format("verdict", write=text_formats.write_verdicts),
    "lookup-table": Format("key", write=lookup_table.write),
    **{module.KIND: Format(read_foreign=module.read) for module in (mm_log, autotune_cache, tunableop, vllm)},
}
"""Formats by their command-line names. csv, jsonl and parquet round-trip exactly."""
EXPORTS = [name for name, one in FORMATS.items() if one.write]
IMPORTS = [name for name, one in FORMATS.items() if one.read or one.read_foreign]


def export(table: Path, out: Path, to: str) -> Exchanged:
    """Write the table at `table` to the file `out` in the format `to`, one of EXPORTS. `out` is replaced atomically.

    Raises InputError for an unknown format, for a missing package, and if `out` cannot be written or is the table;
    TableError if `table` is not a table.
    """
    if to == vllm.KIND:
        raise InputError(f"--to {to}: a table has no times of vLLM's kernels; `gemmdb vllm` measures them on this GPU")
    write = FORMATS[to].write if to in FORMATS else None
    if write is None:
        raise InputError(f"unknown format {to!r}; {choices(to, EXPORTS)}")
    if out.exists() and table.exists() and out.samefile(table):
        raise InputError(f"{out} is the table itself; name another file")
    what, tally = FORMATS[to].what, Tally()
    with replacing(out) as part, contextlib.closing(Table.open(table)) as opened:
        if opened.packed and what == "measurement":
            others = " and ".join(f"--to {name}" for name in EXPORTS if FORMATS[name].what != "measurement")
            raise InputError(
                f"{table} is packed and holds no measurements: {others} export its verdicts; the measurements are"
                " in the table that it was packed from"
            )
        carried = write(opened, part, tally)
    return Exchanged(str(table), out, to, what, carried, tally.left)


def read(path: Path, kind: str, tally: Tally, given: Given | None = None) -> Content:
    """Read the content of the file at `path` in format `kind`, one of IMPORTS. Raises InputError; errors in a row are
    raised when that row is reached."""
    form, given = FORMATS.get(kind), given or Given()
    if form is not None and form.read_foreign:
        return form.read_foreign(path, tally, given)
    if form is None or form.read is None:
        raise InputError(f"--from: unknown format {kind!r}; {choices(kind, IMPORTS)}")
    if said := given.said():
        raise InputError(f"--{next(iter(said))}: gemmdb's own exports need no such option")
    return form.read(path)


def load(path: Path, out: Path, kind: str, given: Given | None = None) -> Exchanged:
    """Add the content of the file at `path`, in format `kind`, to the table at `out`, created if missing, unless
    another program's file has nothing for it. `out` is replaced atomically.

    Raises InputError with file and line for bad input, and TableError if `out` exists and is not a table, or if
    GEMMDB_TRUST rejects the file.
    """
    if not path.is_file():
        raise InputError(f"{path} is not a file")
    if out.exists() and path.samefile(out):
        raise InputError(f"{out} is the file to import; name another table")
    if not out.absolute().parent.is_dir():
        raise InputError(f"{out.absolute().parent} is not a folder; make it, or name another table")
    if recognize.is_page(path):
        raise InputError(f"{path} is an HTML page, not the file to import: save the raw file, not the page about it")
    check_inputs(out, [path])
    tally = Tally()
    try:
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.absolute().parent) as folder:
            part = Path(folder, "part.db")
            try:
                carried = total = _write(read(path, kind, tally, given), part, str(path))
            except InputError as error:
                raise InputError(f"{error}{recognize.advice(path, kind)}") from error
            if out.exists():
                total = unite([out, part], out)
            elif carried or FORMATS[kind].read:  # An empty export is an empty table.
                part.replace(out)
    except MemoryError as error:
        raise InputError(f"{path} needs more memory than is available") from error
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}); check its folder") from error
    return Exchanged(str(path), out, kind, "measurement", carried, tally.left, total)


def _write(content: Content, part: Path, name: str) -> int:
    """Write a new table. Returns the number of distinct rows."""
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
