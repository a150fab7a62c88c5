"""Parquet, by pyarrow: one row per measurement, the runs in the file's metadata."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.exchange import files, flat
from gemmdb.exchange.text_formats import Runs, checked_runs
from gemmdb.table.measurement import Measurement, one_line

_RUNS = b"gemmdb_runs"
_GROUP = 20_000
"""Rows of a row group."""
MOST_ROWS = 20_000_000
MOST_GROUP = 2_000_000
"""The most rows of a file that is read, and of one of its row groups."""


def write(path: Path, rows: Iterable[Measurement], runs: Runs) -> int:
    """Write rows as Parquet. Returns how many. Raises InputError without pyarrow."""
    pa, pq = _arrow()
    schema = _schema(pa).with_metadata({_RUNS: json.dumps(runs, allow_nan=False)})
    count = 0
    source = iter(rows)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while chunk := [flat.record(row) for row in itertools.islice(source, _GROUP)]:
            writer.write_table(pa.Table.from_pylist(chunk, schema=schema))
            count += len(chunk)
    return count


def read(path: Path) -> tuple[Runs, Iterator[Measurement]]:
    """The runs and the rows of a file that `write` wrote. Raises InputError without pyarrow, and for anything that
    `write` does not write; about a row when it is reached, with its number, from 1."""
    pa, pq = _arrow()
    if not path.is_file():
        raise InputError(f"{path} is not a file")
    try:
        with files.reading(path):
            file = pq.ParquetFile(path)
        schema, meta = file.schema_arrow, file.metadata
    except pa.ArrowException as error:
        raise InputError(f"{path}: not Parquet ({one_line(str(error))[:120]})") from error
    if not schema.remove_metadata().equals(_schema(pa)):
        raise InputError(f"{path}: not the columns of an export of gemmdb")
    groups = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
    if meta.num_rows > MOST_ROWS or max(groups, default=0) > MOST_GROUP:
        raise InputError(f"{path}: more than {MOST_ROWS:,} rows, or more than {MOST_GROUP:,} in one row group")
    text = (schema.metadata or {}).get(_RUNS, b"[]")
    runs = checked_runs(files.parse_json(text.decode("utf-8", "replace"), path), str(path))
    return runs, _rows(path, file, pa)


def _rows(path: Path, file: Any, pa: Any) -> Iterator[Measurement]:
    number = 0
    try:
        for batch in file.iter_batches(batch_size=_GROUP):
            for found in batch.to_pylist():
                number += 1
                try:
                    yield flat.measurement(found)
                except InputError as error:
                    raise InputError(f"{path}:{number}: {error}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}:{number + 1}: not readable ({one_line(str(error))[:120]})") from error


def _schema(pa: Any) -> Any:
    types = {"text": pa.string(), "int": pa.int64(), "float": pa.float64()}
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
