"""Parquet via pyarrow: one row per measurement, with the runs in the file's metadata."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.exchange import bounded, flat
from gemmdb.exchange.content import Content, Tally
from gemmdb.exchange.text_formats import checked_runs
from gemmdb.table import dbfile
from gemmdb.table.measurement import Measurement, one_line
from gemmdb.table.reader import Table

_RUNS = b"gemmdb_runs"
_GROUP = 20_000
"""Rows per row group."""
_BATCH = 5_000
"""Rows per read batch."""
MAX_ROWS = 20_000_000
MAX_GROUP_ROWS = 2_000_000
"""Most rows accepted in a file, and in one row group."""
MAX_ROWS_PER_BYTE = 4
"""Most rows accepted per byte of a file, beyond the first row group: runs of one value take no bytes. Our own files
have less than one row per 10 bytes."""
MAX_MEMORY = 2**31
"""Address space that reading may take, in bytes. A page of a few bytes may unpack to 2 GiB, whatever the file declares.
Our own row groups take 0.1 GiB. Arrow's allocator reserves 1 GiB up front."""


def write(table: Table, path: Path, tally: Tally) -> int:
    """Write a table's rows as Parquet. Returns the number of rows. Raises InputError without pyarrow."""
    pa, pq = _arrow()
    schema = _schema(pa).with_metadata({_RUNS: json.dumps(table.provenance(), allow_nan=False)})
    count, source = 0, table.measurements()
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while chunk := [flat.record(row) for row in itertools.islice(source, _GROUP)]:
            writer.write_table(pa.Table.from_pylist(chunk, schema=schema))
            count += len(chunk)
    return count


def read(path: Path) -> Content:
    """Read a file that `write` wrote. Raises InputError without pyarrow, and for anything that `write` does not write;
    errors in a row are raised when that row is reached, with its number, from 1."""
    pa, pq = _arrow()
    if not path.is_file():
        raise InputError(f"{path} is not a file")
    try:
        with bounded.reading(path), bounded.memory_limit(MAX_MEMORY):
            file = pq.ParquetFile(path)
        schema, meta = file.schema_arrow, file.metadata
    except (pa.ArrowException, MemoryError) as error:
        raise InputError(f"{path}: not Parquet ({one_line(str(error))[:120]})") from error
    if not schema.remove_metadata().equals(_schema(pa)):
        raise InputError(f"{path}: its columns are not those of a gemmdb export")
    _check(path, meta)
    text = (schema.metadata or {}).get(_RUNS, b"[]")
    runs = checked_runs(bounded.parse_json(text.decode("utf-8", "replace"), path), str(path))
    # Many rows may refer to one long text, so each text is read only once.
    texts = [name for name, kind in flat.COLUMNS.items() if kind is str]
    with bounded.reading(path):
        file = pq.ParquetFile(path, read_dictionary=texts)
    return Content(_rows(path, file, pa), runs)


def _check(path: Path, meta: Any) -> None:
    """Raise InputError for a file whose metadata exceeds the limits."""
    groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
    if meta.num_rows > MAX_ROWS or max((group.num_rows for group in groups), default=0) > MAX_GROUP_ROWS:
        raise InputError(f"{path}: more than {MAX_ROWS:,} rows, or more than {MAX_GROUP_ROWS:,} in one row group")
    if meta.num_rows > _GROUP + MAX_ROWS_PER_BYTE * path.stat().st_size:
        raise InputError(f"{path}: too many rows ({meta.num_rows:,}) for the file's size")
    for group in groups:
        size = sum(group.column(i).total_uncompressed_size for i in range(group.num_columns))
        if size > bounded.MAX_BYTES:
            raise InputError(f"{path}: a row group of {size:,} bytes, more than {bounded.MAX_BYTES:,}")


def _values(column: Any, kind: type[Any]) -> list[Any]:
    if kind is not str:
        return list(column.to_pylist())
    import pyarrow.compute

    longest = pyarrow.compute.max(pyarrow.compute.binary_length(column.dictionary)).as_py()
    if (longest or 0) > dbfile.MAX_VALUE_BYTES:
        raise InputError(f"a text of {longest:,} bytes, more than {dbfile.MAX_VALUE_BYTES:,}")
    places = column.indices.to_pylist()
    known: dict[int | None, Any] = {None: None}
    for place in set(places) - {None}:
        if not 0 <= place < len(column.dictionary):  # Arrow does not check indices.
            raise InputError("an index points outside the file's texts")
        known[place] = column.dictionary[place].as_py()
    return [known[place] for place in places]


def _rows(path: Path, file: Any, pa: Any) -> Iterator[Measurement]:
    number = 1
    try:
        with bounded.memory_limit(MAX_MEMORY):
            for batch in file.iter_batches(batch_size=_BATCH, use_threads=False):  # Threads may fail to start.
                columns = [_values(batch.column(name), kind) for name, kind in flat.COLUMNS.items()]
                for row in zip(*columns, strict=True):
                    yield flat.measurement(dict(zip(flat.COLUMNS, row, strict=True)))
                    number += 1
    except InputError as error:
        raise InputError(f"{path}:{number}: {error}") from error
    except MemoryError as error:
        limit = f"{MAX_MEMORY / 2**30:g} GiB"
        raise InputError(f"{path}:{number}: its values need more memory than {limit}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}:{number}: not readable ({one_line(str(error))[:120]})") from error


def _schema(pa: Any) -> Any:
    types = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    return pa.schema([
        pa.field(name, types[kind], nullable=name in flat.OPTIONAL) for name, kind in flat.COLUMNS.items()
    ])  # fmt: skip


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError("Parquet needs pyarrow: pip install 'gemmdb[parquet]'") from error
    return pyarrow, pyarrow.parquet
