"""Reading a table: what a lookup costs and finds."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit.tables import Kit

from gemmdb import Problem, Status
from gemmdb.kernels.config import ATEN
from gemmdb.table import nearby_sql, schema
from gemmdb.table.reader import Table

KIT = Kit()


def plan(path, sql, args=(1, 2)):
    with closing(sqlite3.connect(path)) as db:
        return [detail for *_, detail in db.execute(f"EXPLAIN QUERY PLAN {sql}", args)]


def test_rows_are_found_by_primary_key_and_neighbours_by_index(kit, path):
    assert plan(path, schema.VERDICT_SQL) == ["SEARCH verdict USING PRIMARY KEY (problem=? AND device=?)"]
    assert plan(path, schema.ROWS_SQL) == ["SEARCH measurement USING PRIMARY KEY (problem=? AND device=?)"]
    found = plan(path, *nearby_sql.statement(kit.problem, kit.device.key, [kit.cold.key], (4, 1.25, 1.25)))
    assert any(line.startswith("SEARCH problem USING COVERING INDEX problem_family (family=?") for line in found)
    assert not any(line.startswith("SCAN") for line in found)


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
        for klass, toolchain in ((None, kit.new), ("cpu-torch2.9", kit.old)):
            assert table.verdict(kit.problem, kit.device, klass=klass).toolchain == toolchain


@given(rows=KIT.rows(), many=st.just(0))
@example(rows=[], many=1100)
@settings(max_examples=15, deadline=None)
def test_measurements_come_back_as_they_went_in(tmp_path_factory, rows, many):
    """Also so many that they are read in pieces."""
    rows = rows + [KIT.row(run=f"run-{i}") for i in range(many)]
    with Table.open(KIT.write(tmp_path_factory.mktemp("t") / "t.db", rows)) as table:
        found = list(table.measurements())
    assert set(found) == set(rows)
    assert {row.key for row in found} == {row.key for row in rows}


@pytest.mark.parametrize("immutable", [False, True])
def test_neighbours_are_of_the_same_family_device_and_state_of_the_cache(kit, tmp_path, immutable):
    strange = Problem.gemm("mm", m=16, n=512, k=512, dtype="fp32")
    path = kit.write(tmp_path / "t.db", [kit.row(problem=p) for p in (*kit.problems, strange)])
    with Table.open(path, immutable=immutable) as table:
        assert table.neighbours(kit.problem, kit.device) == list(kit.problems)
        assert table.neighbours(kit.problem, kit.device, l2="hot") == []
        assert table.neighbours(kit.problem, kit.other) == []
        assert table.neighbours(strange.resized(1, 0, 512), kit.device) == [strange]


def test_what_was_only_modelled_is_no_neighbour_and_what_is_written_later_is_one(kit, tmp_path):
    modelled, measured = kit.problem.resized(17, 512, 512), kit.problem.resized(64, 512, 512)
    rows = [kit.row(problem=modelled, protocol=replace(kit.cold, clock="model")), kit.row(problem=measured)]
    path = kit.write(tmp_path / "t.db", rows)
    with Table.open(path) as table:
        assert table.neighbours(kit.problem, kit.device) == [measured]
        kit.write(path, [kit.row()])
        assert table.neighbours(kit.problem, kit.device) == [kit.problem, measured]


@pytest.mark.parametrize("immutable", [False, True])
def test_a_device_that_is_written_later_is_found_unless_nobody_writes(kit, tmp_path, immutable):
    path = kit.write(tmp_path / "t.db", [kit.row()])
    with Table.open(path, immutable=immutable) as table:
        assert table.verdict(kit.problem, kit.other) is None
        assert table.barred(kit.problem, kit.other) == frozenset()
        if not immutable:
            kit.write(path, [kit.row(ATEN, us=10.0, device=kit.other)])
            assert table.verdict(kit.problem, kit.other) is not None
        assert table.verdict(kit.problem, kit.device) is not None


def test_pooled_has_every_timed_config_but_the_unsafe(kit, tmp_path):
    rows = [kit.row(), kit.row(kit.configs[1], 5.0, status=Status.SLOW), kit.row(kit.configs[2], 7.0)]
    rows.append(kit.row(kit.configs[2], protocol=kit.hot, status=Status.WRONG))
    with Table.open(kit.write(tmp_path / "t.db", rows)) as table:
        pooled = table.pooled(kit.problem, kit.device)
        assert [(p.config, p.servable) for p in pooled] == [(kit.configs[1], False), (kit.aten, True)]
        assert table.pooled(kit.problem, kit.device, klass="cuda12") == ()
        assert len(table.rows(kit.problem, kit.device)) == 4


def test_summary_has_the_keys_that_scripts_rely_on(kit, path):
    with Table.open(path) as table:
        assert table.summary() == [{
            "path": str(path), "arch": "cpu", "device": "Test CPU", "schema_version": 2, "packed": False,
            "digest": table.digest, "origin": "measured", "problems": {"mm": 3}, "measurements": 25,
        }]  # fmt: skip


def test_threads_share_a_table_and_a_child_forked_meanwhile_can_read_and_write(kit, path):
    """The reads in flight at the fork must leave neither a held lock nor SQLite's note of one in the child."""
    stop, answers = threading.Event(), set()

    def read():
        while not stop.is_set():
            answers.update(table.verdict(problem, kit.device).pick for problem in kit.problems)

    with Table.open(path) as table:
        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        children = []
        for i in range(10):
            child = os.fork()
            if child == 0:
                with suppress(BaseException):
                    signal.alarm(20)
                    parents = table._file.db
                    assert table.verdict(kit.problems[1], kit.device).pick == kit.configs[1]
                    assert table._file.db is not parents
                    kit.write(path, [kit.row(run=f"child-{i}", problem=kit.problems[2])])
                    os._exit(0)
                os._exit(1)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        stop.set()
        for reader in readers:
            reader.join()
        assert codes == [0] * 10
    assert answers == {kit.configs[1]}


def test_reading_loads_neither_the_writer_nor_sqlite_utils():
    code = "import sys, gemmdb.table.catalog; print([m for m in sys.modules if 'sqlite_utils' in m or 'writer' in m])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
