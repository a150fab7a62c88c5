"""Reading a table: what a lookup costs and finds, and that nothing in a file is believed unchecked."""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmdb import Config, InputError, Problem, Status, TableError, nearest, schema
from gemmdb.generators.store import Store
from gemmdb.rows import pack
from gemmdb.table import Table


@pytest.fixture
def path(kit, tmp_path):
    rows = [
        kit.row(problem=problem, config=config, us=us, protocol=protocol)
        for problem in kit.problems
        for config, us in zip(kit.configs, (10.0, 5.0, 7.0, 20.0), strict=True)
        for protocol in (kit.cold, kit.hot)
    ]
    rows.append(kit.row(kit.configs[3], status=Status.ERROR, detail="it did not compile"))
    return kit.write(tmp_path / "a?b#c%20 é.db", rows)


def edit(path, *statements):
    """Change a table behind its writer's back, as a stranger could."""
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(*statement) if isinstance(statement, tuple) else db.execute(statement)
        db.commit()


def plan(path, sql, args=()):
    with closing(sqlite3.connect(path)) as db:
        return [detail for *_, detail in db.execute(f"EXPLAIN QUERY PLAN {sql}", args)]


def test_the_lookup_is_one_primary_key_probe(path):
    found = plan(path, schema.VERDICT_SQL, (1, 2))
    assert found == ["SEARCH verdict USING PRIMARY KEY (problem=? AND device=?)"]


def test_neighbours_are_found_by_index(kit, path):
    sql, args = nearest.statement(kit.problem, kit.device.key, [kit.cold.key], (4, 1.25, 1.25))
    found = plan(path, sql, args)
    assert any(line.startswith("SEARCH problem USING COVERING INDEX problem_family (family=?") for line in found)
    assert not any(line.startswith("SCAN") for line in found)


def test_the_rows_of_a_problem_are_found_by_primary_key(path):
    sql = f"SELECT {', '.join(schema.COLUMNS)} FROM measurement WHERE problem = ? AND device = ?"
    assert plan(path, sql, (1, 2)) == ["SEARCH measurement USING PRIMARY KEY (problem=? AND device=?)"]


@pytest.mark.parametrize("immutable", [False, True])
def test_a_verdict_comes_back_as_it_was_decided(kit, path, immutable):
    with Table.open(path, immutable=immutable) as table:
        verdict = table.verdict(kit.problem, kit.device)
        assert (verdict.pick, verdict.ties) == (kit.configs[1], (kit.configs[1],))
        assert (verdict.expected_us, verdict.aten_us, verdict.ratio) == (5.0, 10.0, 0.5)
        assert (verdict.protocol, verdict.toolchain, verdict.klass) == (kit.cold, kit.new, "cpu-torch2.13")
        assert verdict.device.figures == {"copy_gb_per_s": 20.5}
        assert table.verdict(kit.problem, kit.device, l2="hot").protocol == kit.hot
        assert table.verdict(kit.problem, kit.device, klass="cpu-torch2.13") == verdict
        assert table.verdict(kit.problem, kit.device, klass="cuda12") is None
        assert table.verdict(kit.problem.resized(17, 512, 512), kit.device) is None
        assert table.verdict(kit.problem, kit.other) is None


def test_without_a_class_the_newest_toolchain_answers(kit, tmp_path):
    rows = [kit.row(toolchain=chain) for chain in (kit.old, kit.new)]
    with Table.open(kit.write(tmp_path / "t.db", rows)) as table:
        assert table.verdict(kit.problem, kit.device).toolchain == kit.new
        assert table.verdict(kit.problem, kit.device, klass="cpu-torch2.9").toolchain == kit.old


@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_measurements_come_back_as_they_went_in(kit, tmp_path_factory, data):
    rows = data.draw(kit.rows())
    with Table.open(kit.write(tmp_path_factory.mktemp("t") / "t.db", rows)) as table:
        found = list(table.measurements())
    assert set(found) == set(rows)
    assert {row.key for row in found} == {row.key for row in rows}


def test_many_measurements_are_read_in_pieces(kit, tmp_path):
    rows = [kit.row(run=f"run-{i}") for i in range(2500)]
    with Table.open(kit.write(tmp_path / "t.db", rows)) as table:
        assert {row.run for row in table.measurements()} == {row.run for row in rows}


def test_neighbours_are_the_nearest_of_the_same_family(kit, tmp_path):
    rng = random.Random(7)
    sizes = {(rng.choice((1, 8, 300)), 8 * rng.randrange(1, 3000), 8 * rng.randrange(1, 3000)) for _ in range(300)}
    problems = [kit.problem.resized(*size) for size in sorted(sizes)]
    strange = Problem.gemm("mm", m=16, n=512, k=512, dtype="fp32")
    path = kit.write(tmp_path / "t.db", [kit.row(problem=p) for p in (*problems, strange)])
    with Table.open(path) as table:
        for limit in (1, 5, 64, 1000):
            found = table.neighbours(kit.problem, kit.device, limit=limit)
            by_distance = sorted(_far(kit.problem, p) for p in problems)[:limit]
            assert [_far(kit.problem, p) for p in found] == pytest.approx(by_distance)
        near = {p for p in problems if _within(kit.problem, p, (8, 20, 10))}
        assert 0 < len(near) < len(problems)
        assert set(table.neighbours(kit.problem, kit.device, limit=1000, within=(8, 20, 10))) == near
        assert table.neighbours(kit.problem, kit.device, l2="hot") == []
        assert table.neighbours(kit.problem, kit.other) == []
        assert table.neighbours(strange.resized(1, 0, 512), kit.device) == [strange]


def _within(one, other, ratios):
    """Whether no size of `other` is farther from that of `one` than rounding to whole numbers allows."""
    pairs = zip((one.m, one.n, one.k), (other.m, other.n, other.k), ratios, strict=True)
    return all(math.floor(own / most) <= size <= math.ceil(own * most) for own, size, most in pairs)


def _far(one, other):
    return math.dist(*([math.log(max(x, 1)) for x in (p.m, p.n, p.k)] for p in (one, other)))


def test_pooled_has_every_timed_config_but_the_unsafe(kit, tmp_path):
    rows = [kit.row(), kit.row(kit.configs[1], 5.0, status=Status.SLOW), kit.row(kit.configs[2], 7.0)]
    rows.append(kit.row(kit.configs[2], protocol=kit.hot, status=Status.WRONG))
    with Table.open(kit.write(tmp_path / "t.db", rows)) as table:
        pooled = table.pooled(kit.problem, kit.device)
        assert [(p.config, p.servable) for p in pooled] == [(kit.configs[1], False), (kit.aten, True)]
        assert table.pooled(kit.problem, kit.device, klass="cuda12") == []
        assert len(table.rows(kit.problem, kit.device)) == 4


def test_summary_has_the_keys_that_scripts_rely_on(kit, path):
    with Table.open(path) as table:
        (entry,) = table.summary()
        assert entry == {
            "path": str(path),
            "arch": "cpu",
            "device": "Test CPU",
            "schema_version": 1,
            "digest": table.digest,
            "origin": "measured",
            "problems": {"mm": 3},
            "measurements": 25,
        }


def test_the_digest_is_that_of_the_rows_in_any_order(kit, tmp_path):
    rows = [kit.row(config, run=run) for config in kit.configs for run in ("run-1", "run-2")]
    with Store.open(tmp_path / "a.db") as store:
        for row in reversed(rows):
            store.add([row, rows[0]])
        store.refresh()
    digests = {Table.open(p).digest for p in (tmp_path / "a.db", kit.write(tmp_path / "b.db", rows))}
    assert len(digests) == 1
    assert Table.open(kit.write(tmp_path / "c.db", rows[1:])).digest not in digests


def test_threads_share_a_table(kit, path):
    answers, problems = [], kit.problems * 50
    with Table.open(path) as table:
        work = [
            threading.Thread(target=lambda: answers.extend(table.verdict(p, kit.device).pick for p in problems))
            for _ in range(8)
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
    assert answers == [kit.configs[1]] * len(problems) * 8


def test_a_child_forked_while_threads_read_can_read_and_write(kit, path):
    """The reads in flight at the fork must leave neither a held lock nor SQLite's note of one in the child."""
    stop = threading.Event()

    def read():
        while not stop.is_set():
            table.verdict(kit.problem, kit.device)

    with Table.open(path) as table:
        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        children = []
        for i in range(10):
            child = os.fork()
            if child == 0:
                with suppress(BaseException):
                    signal.alarm(20)
                    parents = _connection(table)
                    assert table.verdict(kit.problems[1], kit.device).pick == kit.configs[1]
                    assert _connection(table) is not parents
                    kit.write(path, [kit.row(run=f"child-{i}", problem=kit.problems[2])])
                    os._exit(0)
                os._exit(1)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        stop.set()
        for reader in readers:
            reader.join()
        assert codes == [0] * 10
        assert table.verdict(kit.problem, kit.device) is not None


def _connection(table):
    return table._db


def test_reading_loads_neither_the_writer_nor_sqlite_utils():
    code = "import sys, gemmdb.table, gemmdb.catalog; print([m for m in sys.modules if 'sqlite_utils' in m])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


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
    with pytest.raises(TableError, match=fault) as error:
        Table.open(path, immutable=immutable)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


HOSTILE = {
    "upgrade gemmdb": ["PRAGMA user_version = 2"],
    "no readable schema": ["PRAGMA user_version = 0"],
    "holds a view": ["CREATE VIEW v AS SELECT 1"],
    "holds a trigger": ["CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM run; END"],
    "holds a table 'extra'": ["CREATE TABLE extra (x)"],
    "holds a table 'ft": ["CREATE VIRTUAL TABLE ft USING fts5(x)"],
    "holds an index|holds a index": ["CREATE INDEX i ON problem (abs(m))"],
    "lacks problem_family": ["DROP INDEX problem_family"],
    "holds a table 'run'": ["ALTER TABLE run ADD COLUMN x GENERATED ALWAYS AS (text || 'x')"],
    "digest or generation": ["UPDATE meta SET value = 'many' WHERE name = 'generation'"],
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_a_file_with_anything_unexpected_is_refused(kit, path, fault):
    edit(path, *HOSTILE[fault])
    with pytest.raises(TableError, match=fault):
        Table.open(path)


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


def test_a_value_of_absurd_length_is_refused(path):
    edit(path, "UPDATE run SET provenance = '{\"x\":\"' || hex(zeroblob(9000000)) || '\"}'")
    with Table.open(path) as table, pytest.raises(TableError, match="too big"):
        table.provenance()


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
    "UPDATE verdict SET ratio = 'fast'",
    "UPDATE verdict SET aten_us = 9e999",
    "UPDATE verdict SET runs = 0",
    "UPDATE verdict SET keys = CAST(substr(keys, 1, 16) || zeroblob(8) || substr(keys, 25) AS BLOB)",
]


@pytest.mark.parametrize("statement", TAMPERED)
def test_a_tampered_value_is_a_table_error(kit, path, statement):
    edit(path, statement)
    with Table.open(path) as table, pytest.raises(TableError) as error:
        table.verdict(kit.problem, kit.device)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_config_of_another_op_or_device_is_not_served(kit, path):
    edit(path, ("UPDATE verdict SET keys = CAST(substr(keys, 1, 24) || ? AS BLOB)", (_int8(path),)))
    with Table.open(path) as table, pytest.raises(TableError, match="does not solve mm"):
        table.verdict(kit.problem, kit.device)


def _int8(path):
    config = Config.of("aten", "int8pack_mm")
    edit(path, ("INSERT INTO config VALUES (?, ?)", (config.key, config.text)))
    return pack(config.key)


def test_a_key_collision_is_a_miss_not_a_wrong_answer(kit, path):
    edit(path, "UPDATE verdict SET head = 'mm m=17 n=512 k=512'")
    with Table.open(path) as table:
        assert table.verdict(kit.problem, kit.device) is None


@pytest.mark.parametrize("column", ["status", "median_us", "samples", "run", "detail", "problem", "compile_s"])
def test_a_tampered_measurement_is_a_table_error(path, column):
    edit(path, f"UPDATE measurement SET {column} = 'x' || char(10)")
    with Table.open(path) as table, pytest.raises(TableError, match="check it with `gemmdb verify`"):
        list(table.measurements())


def test_an_error_message_of_sqlite_that_is_no_text_is_a_table_error(path):
    whole = path.read_bytes()
    at = whole.index(b"CREATE TABLE problem") + len("CREATE TABLE ")
    path.write_bytes(whole[:at] + b"\x80" + whole[at + 1 :])
    with pytest.raises(TableError, match="corrupted"):
        Table.open(path)


def test_provenance_must_be_json_objects(path):
    for text in ("[1]", "{", "[" * 100_000):
        edit(path, ("UPDATE run SET provenance = ?", (text,)))
        with Table.open(path) as table, pytest.raises(TableError, match="provenance"):
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
            assert verdict is None or (verdict.problem == problem and 0 < verdict.ratio < 1e12)
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
