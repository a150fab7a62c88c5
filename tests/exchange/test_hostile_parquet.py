"""Small Parquet files that unpack to more than a machine has: refused in one line, with little memory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from kit.tables import Kit

from gemmdb.exchange import flat, parquet
from gemmdb.exchange.parquet import MAX_GROUP_ROWS

KIT = Kit()


def repeated(path, rows, **changed):
    """A Parquet file of one row, again and again: each value stands in it once."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow.parquet import ParquetWriter

    values = {**flat.record(KIT.row()), **changed}
    fields = {}
    for field in parquet._schema(pa):
        known = [] if values[field.name] is None else [values[field.name]]
        place = pa.array([0 if known else None] * rows, pa.int32())
        fields[field] = pa.DictionaryArray.from_arrays(place, pa.array(known, field.type))
    schema = pa.schema([field.with_type(column.type) for field, column in fields.items()])
    with ParquetWriter(path, schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(pa.Table.from_arrays(list(fields.values()), schema=schema), row_group_size=MAX_GROUP_ROWS)
    return path


def lying(path, length):
    """A Parquet file with one long text, whose footer says that its column takes 1,000 bytes."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow.parquet import ParquetFile, ParquetWriter

    schema = parquet._schema(pa)
    values = {**flat.record(KIT.row()), "detail": "x" * length}
    with ParquetWriter(path, schema, compression="zstd", use_dictionary=False, store_schema=False) as writer:
        writer.write_table(pa.Table.from_pylist([values], schema=schema))
    group = ParquetFile(path).metadata.row_group(0)
    column = group.column(schema.names.index("detail"))
    true, data = varint(column.total_uncompressed_size), bytearray(path.read_bytes())
    place = data.rindex(true)
    data[place : place + len(true)] = varint(1000, len(true))
    path.write_bytes(data)
    assert ParquetFile(path).metadata.row_group(0).column(schema.names.index("detail")).total_uncompressed_size == 1000
    return path


def varint(number, length=0):
    """An integer as Thrift's compact protocol writes it, in at least so many bytes."""
    number, found = 2 * number, bytearray()
    while number or len(found) < length:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found[-1] &= 0x7F
    return bytes(found)


READ = """
import resource, sys
from pathlib import Path
from gemmdb.errors import InputError
from gemmdb.exchange import parquet
import pyarrow.parquet
parquet.MAX_MEMORY = int(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    print(sum(1 for _ in parquet.read(Path(sys.argv[1])).rows))
except InputError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def read_apart(path, most=parquet.MAX_MEMORY, **environ):
    """What another process says of a Parquet file, and by how many MiB it grew. `most`: the bytes that it may take."""
    command = [sys.executable, "-c", READ, str(path), str(most)]
    done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=True)
    said, grown = done.stdout.splitlines()
    return said, int(grown) / 1024


@pytest.mark.parametrize(("changed", "rows", "said"), [
    ({"detail": "x" * 500_000}, 20_000, "a text of 500,000 bytes"), ({"detail": "x" * 60_000}, 20_000, "one line of"),
    ({}, 200_000, "too many rows"),
])  # fmt: skip
def test_a_small_parquet_file_does_not_take_all_memory(tmp_path, changed, rows, said):
    """Twenty thousand rows may name one text of half a megabyte."""
    path = repeated(tmp_path / "file", rows, **changed)
    assert path.stat().st_size < 250_000
    told, grown = read_apart(path)
    assert said in told
    assert grown < 256


def test_a_long_text_is_refused_whatever_the_file_says_of_it(tmp_path):
    told, _ = read_apart(lying(tmp_path / "file", 10_000_000))
    assert "a text of 10,000,000 bytes" in told


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process so")
def test_a_page_that_unpacks_to_more_than_is_allowed_is_refused(tmp_path):
    path = lying(tmp_path / "file", 150_000_000)
    assert path.stat().st_size < 50_000
    told, grown = read_apart(path, most=2**27, ARROW_DEFAULT_MEMORY_POOL="system")  # It reserves nothing in advance.
    assert "its values need more memory than 0.125 GiB" in told
    assert grown < 256
