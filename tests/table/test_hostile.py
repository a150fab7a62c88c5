"""Tables are data from strangers: nothing in a file is believed unchecked, and damage never goes unnoticed."""

from __future__ import annotations

import math
import os
import shutil
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.tables import edit, refusal

from gemmdb import Config, InputError, TableError
from gemmdb.table import schema
from gemmdb.table.reader import Table
from gemmdb.table.schema import pack_keys
from gemmdb.table.writer import Store

BROKEN = {
    "is a directory": lambda path: path.mkdir(),
    "does not exist": lambda path: None,
    "is empty": lambda path: path.touch(),
    "is not a SQLite file": lambda path: path.write_text("a text file, long enough to have a header's length" * 40),
    "is not a regular file": lambda path: os.mkfifo(path),
    "is a SQLite file but not a gemmdb table": lambda path: edit(path, "CREATE TABLE t (x)"),
}


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("immutable", [False, True])
def test_what_is_no_table_is_refused_in_one_line(tmp_path, fault, immutable):
    path = tmp_path / "x.db"
    BROKEN[fault](path)
    assert str(path) in refusal(lambda: Table.open(path, immutable=immutable), match=fault)
    if fault not in ("does not exist", "is empty"):  # A writer makes a table of these.
        refusal(Store.open, path, match=fault)


OWN = "CREATE TABLE _sqlite_migrations (name TEXT, migration_set TEXT)"
FOREIGN = "that no gemmdb table has"
HOSTILE = [
    ("upgrade gemmdb", "PRAGMA user_version = 4"),
    ("holds a table", "PRAGMA user_version = 3"),
    ("no readable schema", "PRAGMA user_version = 0"),
    ("holds a view", "CREATE VIEW v AS SELECT 1"),
    ("holds a trigger", "CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM run; END"),
    ("holds a table 'extra'", "CREATE TABLE extra (x)"),
    ("holds a table 'ft", "CREATE VIRTUAL TABLE ft USING fts5(x)"),
    ("holds a index", "CREATE INDEX i ON problem (abs(m))"),
    ("lacks problem_family", "DROP INDEX problem_family"),
    ("holds a table 'run'", "ALTER TABLE run ADD COLUMN x GENERATED ALWAYS AS (text || 'x')"),
    ("meta|digest|UTF-8", "UPDATE meta SET value = CAST(x'ff' AS TEXT)"),
    # The table of the migration library computes nothing when SQLite reads or checks it.
    (FOREIGN, OWN, "CREATE INDEX bomb ON _sqlite_migrations(name NOT LIKE '%' || name)"),
    (FOREIGN, OWN, "CREATE INDEX bomb ON _sqlite_migrations(hex(name))"),
    (FOREIGN, OWN, "CREATE INDEX bomb ON _sqlite_migrations(name LIKE migration_set)"),
    (FOREIGN, OWN, "CREATE INDEX bomb ON _sqlite_migrations(name) WHERE name NOT NULL"),
    (FOREIGN, "CREATE TABLE _sqlite_migrations (name TEXT, x AS (hex(zeroblob(30000))))"),
    (FOREIGN, "CREATE TABLE _sqlite_migrations (name TEXT, x AS (name))"),
    (FOREIGN, "CREATE TABLE _sqlite_migrations (name TEXT, x TEXT GENERATED ALWAYS AS (name) STORED)"),
    (FOREIGN, "CREATE TABLE _sqlite_migrations (name TEXT CHECK (name))"),
    (FOREIGN, f"CREATE TABLE _sqlite_migrations ({', '.join(f'c{n} TEXT' for n in range(500))})"),
]


@pytest.mark.parametrize("fault", HOSTILE, ids=lambda fault: fault[-1][:60])
def test_a_file_with_anything_unexpected_is_refused(path, fault):
    message, *statements = fault
    edit(path, *statements)
    for opened in (Table.open, Store.open):
        with pytest.raises(TableError, match=message):
            opened(path)


@pytest.mark.parametrize(
    "statements",
    [
        (OWN, "CREATE UNIQUE INDEX one ON _sqlite_migrations (name, migration_set)"),
        ('CREATE TABLE "_sqlite_migrations" (\n "name" TEXT,\n "id" TEXT, PRIMARY KEY ("id", "name")\n)',),
        ("CREATE TABLE _sqlite_migrations (id INTEGER PRIMARY KEY, name TEXT NOT NULL, UNIQUE (name))",),
    ],
    ids=["index", "key", "unique"],
)
def test_the_migrations_table_of_other_versions_is_fine(kit, path, statements):
    edit(path, *statements)
    with Table.open(path) as table:
        assert table.verdict(kit.problem, kit.device)


def test_a_trigger_named_like_a_table_is_refused(tmp_path):
    """Triggers have a namespace of their own, and the row that comes last would hide the other."""
    path = tmp_path / "t.db"
    trigger = "CREATE TRIGGER measurement AFTER INSERT ON problem BEGIN DELETE FROM config; END"
    header = (f"PRAGMA application_id = {schema.APPLICATION_ID}", f"PRAGMA user_version = {schema.SCHEMA_VERSION}")
    for name, sql in schema.SCHEMA.items():
        edit(path, *([trigger] if name == "measurement" else []), sql)
    edit(path, *header)
    for opened in (Table.open, Store.open):
        with pytest.raises(TableError, match="holds a trigger 'measurement'"):
            opened(path)


def test_the_id_of_a_run_is_its_own_not_what_its_provenance_says(path):
    edit(path, 'UPDATE run SET provenance = \'{"run": "another"}\'')
    with Table.open(path) as table:
        assert [entry["run"] for entry in table.provenance()] == ["run-1"]


TAMPERED = [
    "UPDATE device SET figures = '{\"l2_bytes\": 1' || hex(zeroblob(300)) || '}'",
    "UPDATE config SET text = 'aten:default x=1'",
    "UPDATE config SET text = 'triton:rm_rf'",
    "UPDATE config SET text = x'00ff'",
    "DELETE FROM config",
    "UPDATE protocol SET text = 'protocol'",
    "DELETE FROM protocol",
    "UPDATE toolchain SET text = 1",
    "UPDATE device SET figures = '{\"l2_bytes\": NaN}'",
    "UPDATE device SET figures = '[1]'",
    "UPDATE verdict SET keys = x'00'",
    "UPDATE verdict SET keys = substr(keys, 1, 24)",
    "UPDATE verdict SET keys = substr(keys, 1, 31)",
    "UPDATE verdict SET keys = substr(keys, 2)",
    "UPDATE verdict SET keys = 'text'",
    "UPDATE verdict SET keys = 7",
    "UPDATE verdict SET ratio = -1",
    "UPDATE verdict SET ratio = 5e-324",
    "UPDATE verdict SET ratio = 'fast'",
    "UPDATE verdict SET aten_us = 9e999",
    "UPDATE verdict SET runs = 0",
    "UPDATE verdict SET keys = CAST(substr(keys, 1, 16) || zeroblob(8) || substr(keys, 25) AS BLOB)",
]


@pytest.mark.parametrize("statement", TAMPERED)
def test_a_tampered_value_is_a_table_error(kit, path, statement):
    edit(path, statement)
    with Table.open(path) as table:
        assert str(path) in refusal(table.verdict, kit.problem, kit.device)


@pytest.mark.parametrize("changed", ["keys = 'text'", "ratio = 'a'", "head = x'00'", "klass = x'00', spread = ''"])
def test_rows_of_mixed_types_are_a_table_error_or_left_out(kit, path, changed):
    """Rows that cannot be compared raised TypeError, which silenced every other table too."""
    edit(path, f"UPDATE verdict SET {changed} WHERE protocol = (SELECT min(protocol) FROM verdict)")
    with Table.open(path) as table:
        for ask in (table.verdict, table.verdicts):
            with suppress(TableError):
                ask(kit.problem, kit.device)


def test_a_config_of_another_op_or_device_is_not_served(kit, path):
    config = Config.of("aten", "int8pack_mm")
    edit(path, ("INSERT INTO config VALUES (?, ?)", (config.key, config.text)))
    edit(path, ("UPDATE verdict SET keys = CAST(substr(keys, 1, 24) || ? AS BLOB)", (pack_keys(config.key),)))
    with Table.open(path) as table, pytest.raises(TableError, match="does not solve mm"):
        table.verdict(kit.problem, kit.device)


def test_a_key_collision_is_a_miss_not_a_wrong_answer(kit, path):
    edit(path, "UPDATE verdict SET head = 'mm m=17 n=512 k=512'")
    with Table.open(path) as table:
        assert table.verdict(kit.problem, kit.device) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *((f"{column} = 'x' || char(10)", "check it with `gemmdb verify`") for column in (
            "status", "median_us", "samples", "run", "detail", "problem", "compile_s")),
        ("low_us = 5e-324, median_us = 5e-324 WHERE median_us NOT NULL", "impossible times"),
    ],
)  # fmt: skip
def test_a_tampered_measurement_is_a_table_error(path, change, message):
    edit(path, f"UPDATE measurement SET {change}")
    with Table.open(path) as table, pytest.raises(TableError, match=message):
        list(table.measurements())


def test_an_error_message_of_sqlite_that_is_no_text_is_a_table_error(path):
    whole = path.read_bytes()
    at = whole.index(b"CREATE TABLE problem") + len("CREATE TABLE ")
    path.write_bytes(whole[:at] + b"\x80" + whole[at + 1 :])
    with pytest.raises(TableError, match="corrupted"):
        Table.open(path)


def test_provenance_must_be_a_json_object_of_bounded_length(path):
    for text in ("[1]", "{", "[" * 100_000, f'{{"x":"{"0" * 9_000_000}"}}'):
        edit(path, ("UPDATE run SET provenance = ?", (text,)))
        with Table.open(path) as table, pytest.raises(TableError, match=r"a run's provenance is not|too big"):
            table.provenance()


def test_a_truncated_file_is_refused(path):
    whole = path.read_bytes()
    for size in (len(whole) // 2, len(whole) - 4096, len(whole) - 1):
        path.write_bytes(whole[:size])
        for immutable in (False, True):
            with pytest.raises(TableError, match=r"corrupted|truncated"):
                Table.open(path, immutable=immutable)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_random_damage_is_a_table_error_or_harmless(kit, damaged, data):
    path = damaged
    whole = path.with_name("whole").read_bytes()
    torn = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 8))):
        start = data.draw(st.integers(0, len(torn) - 1))
        junk = data.draw(st.binary(min_size=1, max_size=64))
        torn[start : start + len(junk)] = junk
    path.write_bytes(torn[: len(whole)])
    with suppress(TableError), Table.open(path, immutable=data.draw(st.booleans())) as table:
        _read_everything(kit, table)


def _read_everything(kit, table):
    for problem in kit.problems:
        with suppress(TableError):
            verdict = table.verdict(problem, kit.device)
            assert verdict is None or (verdict.problem == problem and 0 < verdict.ratio <= 1e18)
        with suppress(TableError):
            assert all(found.op == "mm" for found in table.neighbours(problem, kit.device))
        with suppress(TableError):
            table.pooled(problem, kit.device)
    for method in (table.summary, table.provenance, table.devices, lambda: list(table.measurements())):
        with suppress(TableError):
            method()


@pytest.fixture(scope="module")
def damaged(kit, tmp_path_factory):
    rows = [
        kit.row(config, us, problem=problem)
        for problem in kit.problems
        for config, us in zip(kit.configs, (10.0, 5.0, 7.0, 20.0), strict=True)
    ]
    path = kit.write(tmp_path_factory.mktemp("damaged") / "t.db", rows)
    shutil.copy(path, path.with_name("whole"))
    return path


def test_damage_under_an_open_table_is_a_table_error(kit, path):
    with Table.open(path) as table:
        size = path.stat().st_size
        with open(path, "r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (size - 4096))
        with pytest.raises(TableError, match="corrupted"):
            table.verdict(kit.problem, kit.device)


def test_numbers_of_other_types_are_stored_as_the_same_row(kit, tmp_path):
    class Real(float):
        def __repr__(self) -> str:
            return f"real({float(self)})"

    plain = kit.row(error=0.0, compile_s=2.0)
    given = kit.row(us=Real(10.0), aten=Real(10.0), error=-0.0, compile_s=2)
    assert given.key == plain.key
    assert kit.row(error=math.nan).key == kit.row(error=math.inf).key
    with Table.open(kit.write(tmp_path / "t.db", [given, plain, kit.row(error=math.nan)])) as table:
        assert {row.key for row in table.measurements()} == {plain.key, kit.row(error=math.inf).key}
    with pytest.raises(InputError, match="compile_s must be a number"):
        kit.row(compile_s="fast")


@pytest.mark.parametrize("column", ["ratio", "spread", "aten_us", "runs"])
def test_a_damaged_number_of_a_verdict_is_a_table_error_unless_it_is_of_an_older_file(kit, path, column):
    """Plausible as it is: another ratio would have been served. Verdicts of older files have no checksum."""
    with Table.open(path) as table:
        wanted = table.verdict(kit.problem, kit.device)
    edit(path, f"UPDATE verdict SET {column} = {column} + 1")
    with Table.open(path) as table:
        refusal(table.verdict, kit.problem, kit.device, match="checksum")
    edit(path, f"UPDATE verdict SET {column} = {column} - 1, keys = CAST(substr(keys, 1, length(keys) - 4) AS BLOB)")
    with Table.open(path) as table:
        assert table.verdict(kit.problem, kit.device)._replace(**{column: 0}) == wanted._replace(**{column: 0})


def test_a_verdict_at_another_device_and_a_damaged_time_are_table_errors(kit, tmp_path):
    """B-trees that are damaged find rows of others; a plausible time would have changed the answers nearby."""
    path = kit.write(tmp_path / "t.db", [kit.row(), kit.row(kit.configs[1], us=5.0)])
    edit(
        path,
        ("UPDATE verdict SET device = ?", (kit.other.key,)),
        ("INSERT INTO device SELECT ?, ?, figures FROM device", (kit.other.key, kit.other.text)),
        "UPDATE measurement SET median_us = median_us * 1.0001, high_us = high_us * 2 WHERE median_us NOT NULL",
    )
    with Table.open(path) as table:
        refusal(table.verdict, kit.problem, kit.other, match="checksum")
        refusal(table.record, kit.problem, kit.device, match="does not match its key")
