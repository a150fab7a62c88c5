"""What a stranger's file can make a reader do is bounded: rows of one query, configs of a tie set, names of a path."""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from kit.tables import refusal

from gemmdb import Config, Device, Policy, Protocol, Query, TableError, lookup
from gemmdb.generators.files.verify import verify
from gemmdb.key import canonical
from gemmdb.table import row_cache, schema
from gemmdb.table.catalog import Catalog, Source
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store


def fill(path, *statements):
    with closing(sqlite3.connect(path)) as db:
        for statement, values in statements:
            db.executemany(statement, values)
        db.commit()


def first(path, sql):
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchone()


def repeat(path, table, place, most):
    """Insert more than `most` copies of a row, each with another number in the column at `place`."""
    row = first(path, f"SELECT * FROM {table}")
    copies = ((*row[:place], key, *row[place + 1 :]) for key in range(most + 1))
    fill(path, (f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", copies))


def many_protocols(path):
    made = (Protocol("host", "cold", 7, 100 + i) for i in range(schema.MOST_PROTOCOLS + 1))
    fill(path, ("INSERT INTO protocol VALUES (?, ?)", ((one.key, one.text) for one in made)))


def many_devices(path):
    made = (Device("cpu", "cpu", "Test CPU", 3 + i) for i in range(schema.MOST_DEVICES + 1))
    fill(path, ("INSERT INTO device VALUES (?, ?, '{}')", ((one.key, one.text) for one in made)))


def many_problems(path):
    repeat(path, "problem", 0, schema.MOST_PROBLEMS)
    repeat(path, "verdict", 0, schema.MOST_PROBLEMS)


def many_families(path):
    problem = first(path, "SELECT * FROM problem")
    keys = range(schema.MOST_FAMILIES + 1)
    fill(path, ("INSERT INTO problem VALUES (?, ?, ?, ?, ?, ?, ?)", ((key, *problem[1:6], key) for key in keys)))


def first_pair(table):
    row = next(table.measurements())
    return row.problem, row.device


CROWDED = {
    "measurements": (
        lambda path: repeat(path, "measurement", 2, schema.MOST_MEASUREMENTS),
        lambda kit, table: table.rows(*first_pair(table)),
    ),
    "verdicts": (
        lambda path: repeat(path, "verdict", 2, schema.MOST_VERDICTS),
        lambda kit, table: [table.verdict(p, kit.device) for p in kit.problems],
    ),
    "protocols": (many_protocols, lambda kit, table: table.neighbours(kit.problem, kit.device)),
    "devices": (many_devices, lambda kit, table: table.devices()),
    "families": (many_families, lambda kit, table: table.families()),
    "problems": (many_problems, lambda kit, table: table.neighbours(kit.problem, kit.device)),
}


@pytest.mark.parametrize("what", CROWDED)
def test_more_rows_than_any_build_writes_are_refused_in_bounded_time_and_lookups_answer_or_miss(kit, path, what):
    crowd, read = CROWDED[what]
    crowd(path)
    begun = time.monotonic()
    with Table.open(path) as table:
        assert str(path) in refusal(read, kit, table, match=rf"more than [\d,]+ {what}")
    assert time.monotonic() - begun < 30
    assert any(finding.check == "size" and what in finding.message for finding in verify(path))
    with Table.open(path) as table:
        catalog = Catalog([(Source(path, "explicit"), table)])
        for size in (16, 20):
            hit = lookup.answer(Query(kit.problem.resized(size, 512, 512), kit.device), catalog, Policy())
            assert hit is None or hit.config in kit.configs


def test_a_tie_set_of_absurd_size_is_refused(kit, path):
    keys = first(path, "SELECT keys FROM verdict")[0]
    end = row_cache.CONTEXT_BYTES
    tied = keys[:end] + keys[end : end + 8] * (schema.MOST_TIES + 1)
    fill(path, ("UPDATE verdict SET keys = ?", [(tied,)]))
    with Table.open(path) as table, pytest.raises(TableError, match="tie set is malformed"):
        table.verdict(kit.problem, kit.device)


HEADERS = [
    ("uid", b"\xff"),
    ("uid", "-5"),
    ("digest", "f" * 100_000),
    ("digest", "0x" + "0" * 30),
    ("rows_digest", "many"),
    ("generation", "9" * 5_000),
    ("generation", "-1"),
    ("generation_digest", "x\n" * 1000),
]


@pytest.mark.parametrize(("name", "value"), HEADERS)
def test_every_reader_and_the_writer_refuse_a_malformed_header(path, name, value):
    fill(path, ("UPDATE meta SET value = ? WHERE name = ?", [(value, name)]))
    for opened in (Table.open, Store.open, verify):
        told = refusal(opened, path, match=r"digest or generation is malformed|too big")
        assert len(told) < len(str(path)) + 200


def test_a_row_that_the_index_does_not_lead_to_is_a_miss_for_lookups_and_a_finding_for_verify(kit, path):
    name = "problem_family"
    statement, root = first(path, f"SELECT sql, rootpage FROM sqlite_master WHERE name = '{name}'")
    master = "PRAGMA writable_schema = ON"
    forget, again = (
        f"DELETE FROM sqlite_master WHERE name = '{name}'",
        "INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)",
    )
    with closing(sqlite3.connect(path)) as db:
        for sql in (master, forget):
            db.execute(sql)
        db.commit()
    with closing(sqlite3.connect(path)) as db:  # Its writer knows of no index now, and leaves it as it was.
        for sql in ("UPDATE problem SET family = family + 1, m = m + 1", master):
            db.execute(sql)
        db.execute(again, ("index", name, "problem", root, statement))
        db.commit()
    with Table.open(path) as table:
        assert table.verdict(kit.problem, kit.device).pick in kit.configs
        assert set(table.neighbours(kit.problem, kit.device)) <= set(kit.problems)
    assert {finding.check for finding in verify(path)} == {"integrity"}


NO_TABLES = {
    "a loop of links": lambda folder: link(folder / "loop.db", folder / "loop.db"),
    "a name that no file has": lambda folder: Path("a\0b.db"),
    "a name too long": lambda folder: folder / ("x" * 300 + ".db"),
    "a device": lambda folder: Path("/dev/zero"),
    "a link to a device": lambda folder: link(folder / "zero.db", "/dev/zero"),
    "a file of the kernel": lambda folder: Path("/proc/self/mem"),
    "a name of SQLite": lambda folder: Path(":memory:"),
    "a URI": lambda folder: Path("file:x.db?mode=rwc"),
}


def link(path, target):
    path.symlink_to(target)
    return path


@pytest.mark.parametrize("what", NO_TABLES)
def test_a_path_to_no_table_is_left_out_and_refused_in_strict_mode(tmp_path, monkeypatch, what):
    monkeypatch.chdir(tmp_path)
    path = NO_TABLES[what](tmp_path)
    before = set(tmp_path.iterdir())
    for table in Catalog.load(tables=[path]).tables:
        assert table.path != path
    for opened in (Table.open, lambda path: Catalog.load(tables=[path], strict=True), verify):
        refusal(opened, path)
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("sku", ["NVIDIA H\u200b200", "\u202eTest CPU", "Test\x1b[31mCPU", "Test\nCPU", "\ud800"])
def test_a_device_whose_name_reads_as_another_is_refused(kit, path, sku):
    """Invisible and reordering characters, and what steers a terminal."""
    text = kit.device.text.replace("Test%20CPU", "".join(f"%{byte:02X}" for byte in sku.encode(errors="surrogatepass")))
    fill(path, ("UPDATE device SET id = ?, text = ?", [(canonical.key(text), text)]))
    with Table.open(path) as table, pytest.raises(TableError, match="a device is not usable"):
        table.devices()


@pytest.mark.parametrize(
    "text", ["triton:../../x a=1", "triton:tile\0", "cpp:packed_gemm blocks_k={{7*7}}", "x" * 10**6]
)
def test_no_text_of_a_table_becomes_a_kernel(kit, path, text):
    keys = first(path, "SELECT keys FROM verdict")[0]
    packed = keys[: row_cache.CONTEXT_BYTES] + schema.pack_keys(canonical.key(text))
    fill(
        path,
        ("INSERT INTO config VALUES (?, ?)", [(canonical.key(text), text)]),
        ("UPDATE verdict SET keys = ?", [(packed,)]),
    )
    with Table.open(path) as table, pytest.raises(TableError, match=r"a config is not usable|too big"):
        table.verdict(kit.problem, kit.device)
    with suppress(TableError), Table.open(path) as table:
        assert all(isinstance(row.config, Config) for row in table.measurements())


@pytest.mark.parametrize("column", ["status", "median_us", "detail"])
def test_a_fault_is_told_in_one_short_line_however_long_the_value_is(path, column):
    fill(path, (f"UPDATE measurement SET {column} = ?", [("x\n" * 10**6,)]))
    with Table.open(path) as table:
        assert len(refusal(list, table.measurements())) < len(str(path)) + 500


COLUMNS = [
    (name, column)
    for name in schema.SCHEMA
    for column in re.findall(r"[(,] ?(\w+) (?:TEXT|INTEGER|REAL|BLOB)", schema.SCHEMA[name])
]
NASTY = (2**63 - 1, -1, 9e999, -1e308, "", "x\n" * 1000, "%00", "~", "\u202e", "{}", b"", b"\xff" * 40)


@pytest.mark.parametrize(("name", "column"), COLUMNS)
def test_whatever_stands_in_a_column_a_lookup_answers_or_misses_and_verify_ends(kit, path, name, column):
    """Three values per column, others for each column, so that all meet columns of all kinds."""
    begin = COLUMNS.index((name, column))
    for value in (NASTY[(begin + step) % len(NASTY)] for step in (0, 4, 8)):
        with suppress(sqlite3.IntegrityError):  # An `id` takes integers alone.
            fill(path, (f"UPDATE OR IGNORE {name} SET {column} = ?", [(value,)]))
        with suppress(TableError):
            findings = verify(path)
            assert all("\n" not in finding.message and len(finding.message) < 1000 for finding in findings)
        with suppress(TableError), Table.open(path) as table:
            catalog = Catalog([(Source(path, "explicit"), table)])
            for size in (16, 20):
                query = Query(kit.problem.resized(size, 512, 512), kit.device)
                hit = lookup.answer(query, catalog, Policy(sku=True))
                assert hit is None or (hit.config in kit.configs and 0 < hit.expected_us < 1e12)
