"""The writer: idempotent, safe against kill -9, and with several processes at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import stat
import struct
import threading
import time
from contextlib import closing

import pytest

from gemmdb import InputError, TableError
from gemmdb.generators.merge import merge
from gemmdb.generators.store import Store, record_live
from gemmdb.generators.verify import verify
from gemmdb.table import Table

context = multiprocessing.get_context("fork")


def count(path):
    with Table.open(path) as table:
        return len(list(table.measurements()))


def generation(path):
    with Table.open(path) as table:
        return table.generation


def test_adding_again_changes_nothing(kit, tmp_path):
    with Store.open(tmp_path / "deep" / "er" / "t.db") as store:
        rows = [kit.row(), kit.row(kit.configs[1], 5.0)]
        assert store.add([*rows, rows[0]]) == 2
        assert store.refresh() == 1
        assert store.add(rows) == 0
        assert store.refresh() == 0


def test_verdicts_follow_what_was_added(kit, tmp_path):
    path = tmp_path / "t.db"
    with Store.open(path) as store, Table.open(path) as table:
        store.add([kit.row()])
        assert table.verdict(kit.problem, kit.device) is None
        store.refresh()
        assert table.verdict(kit.problem, kit.device).pick == kit.aten
        store.add([kit.row(kit.configs[1], 5.0)])
        assert table.verdict(kit.problem, kit.device).pick == kit.aten
        store.refresh()
        assert table.verdict(kit.problem, kit.device).pick == kit.configs[1]


def test_many_problems_are_refreshed_in_batches(kit, tmp_path):
    rows = [kit.row(problem=kit.problem.resized(m, 8, 8)) for m in range(1, 451)]
    with Store.open(tmp_path / "t.db") as store:
        store.add(rows)
        assert store.refresh() == 450
    assert verify(tmp_path / "t.db") == []
    assert generation(tmp_path / "t.db") == 1


def test_the_generation_rises_by_a_build_that_changed_rows_only(kit, tmp_path):
    path = tmp_path / "t.db"
    for rows, expected in (([kit.row()], 1), ([kit.row()], 1), ([kit.row(run="run-2")], 2)):
        kit.write(path, rows)
        assert generation(path) == expected


def test_live_tuning_adds_verdicts_and_leaves_the_generation(kit, tmp_path):
    path = kit.write(tmp_path / "t.db", [kit.row()])
    record_live(path, [kit.row(problem=kit.problems[1]), kit.row(kit.configs[1], 4.0, problem=kit.problems[1])])
    with Table.open(path) as table:
        assert table.generation == 1
        assert table.verdict(kit.problems[1], kit.device).pick == kit.configs[1]
    assert verify(path) == []


def test_a_build_raises_the_generation_though_live_tuning_made_its_verdicts(kit, tmp_path):
    path = tmp_path / "t.db"
    with Store.open(path) as build:
        build.add([kit.row()])
        record_live(path, [kit.row(problem=kit.problems[1])])
        build.refresh()
    assert generation(path) == 1


def test_a_run_keeps_its_provenance(kit, tmp_path):
    path = tmp_path / "t.db"
    with Store.open(path) as store:
        run = store.begin_run({"command": "gemmdb build", "clock_mhz": 1980.0})
        other = store.begin_run({"run": run})
        store.add([kit.row(run=run), kit.row(run="unheard-of")])
        with pytest.raises(InputError, match="JSON"):
            store.begin_run({"when": object()})
        with pytest.raises(InputError, match="JSON"):
            store.begin_run({"reading": float("nan")})
    with Table.open(path) as table:
        runs = {entry.pop("run"): entry for entry in table.provenance()}
    assert run != other
    assert runs[run]["clock_mhz"] == 1980.0
    assert runs["unheard-of"] == {}


def test_a_failing_row_takes_its_whole_batch_back(kit, tmp_path):
    path = kit.write(tmp_path / "t.db", [kit.row()])
    fresh = kit.row(kit.configs[1], problem=kit.problems[1])
    with Store.open(path) as store:
        with pytest.raises(AttributeError):
            store.add([fresh, None])
        assert count(path) == 1
        assert store.add([fresh]) == 1
        store.refresh()
    assert verify(path) == []


def test_two_texts_under_one_key_are_refused(kit, tmp_path):
    path = kit.write(tmp_path / "t.db", [kit.row()])
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE problem SET text = 'another'")
        db.commit()
    with Store.open(path) as store, pytest.raises(TableError, match="share a 64-bit key"):
        store.add([kit.row(run="run-2")])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "is a directory"),
        (lambda path: path.write_text("a text file\n" * 50), "not a SQLite file"),
        (lambda path: sqlite3.connect(path).execute("CREATE TABLE t (x)").connection.close(), "not a gemmdb table"),
        (os.mkfifo, "not a regular file"),
    ],
)
def test_what_is_no_table_is_not_written_to(tmp_path, make, message):
    path = tmp_path / "x.db"
    make(path)
    with pytest.raises(TableError, match=message):
        Store.open(path)


def test_a_newer_table_is_not_written_to(kit, tmp_path):
    path = kit.write(tmp_path / "t.db", [kit.row()])
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 2")
    with pytest.raises(TableError, match="upgrade gemmdb"):
        Store.open(path)


def test_an_unusable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TableError, match="cannot be made"):
        Store.open(tmp_path / "file" / "t.db")


def test_an_empty_file_becomes_a_table(kit, tmp_path):
    (tmp_path / "t.db").touch()
    assert count(kit.write(tmp_path / "t.db", [kit.row()])) == 1


def _add_many(kit, path, name, barrier, rows):
    barrier.wait()
    with Store.open(path) as store:
        run = store.begin_run({"name": name})
        for i in range(rows):
            store.add([kit.row(kit.configs[i % 4], 5.0 + i, run=run, problem=kit.problem.resized(1 + i % 7, 8, 8))])
            if i % 5 == 0:
                store.refresh()
        store.refresh()


def test_processes_that_create_and_fill_one_file_at_once_lose_nothing(kit, tmp_path):
    path, barrier = tmp_path / "t.db", context.Barrier(4)
    workers = [context.Process(target=_add_many, args=(kit, path, str(i), barrier, 25)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert count(path) == 100
    assert verify(path) == []


def _add_for_ever(kit, path, ready):
    with Store.open(path) as store:
        for i in range(10**6):
            store.add(
                [
                    kit.row(c, 5.0 + i, run=f"run-{i}", problem=kit.problem.resized(1 + i % 50, 8, 8))
                    for c in kit.configs
                ]
            )
            store.refresh()
            if i == 1:
                ready.set()


def test_a_killed_writer_leaves_a_valid_file_that_goes_on(kit, tmp_path):
    path = tmp_path / "t.db"
    for attempt in range(6):
        ready = context.Event()
        worker = context.Process(target=_add_for_ever, args=(kit, path, ready))
        worker.start()
        assert ready.wait(30)
        time.sleep(0.007 * attempt)
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        with Store.open(path):
            pass
        rows = count(path)
        assert rows % 4 == 0
        assert {finding.check for finding in verify(path)} <= {"pending"}
        kit.write(path, [kit.row()])
        assert verify(path) == []
        path.unlink()


def _leave_half_done(path):
    """A process that is killed while its transaction is partly in the file."""
    pid = os.fork()
    if pid == 0:
        db = sqlite3.connect(path, isolation_level=None)
        db.execute("PRAGMA cache_size = 1")  # pages go to the file before the commit
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE verdict SET ratio = 7")
        db.execute("UPDATE meta SET value = printf('%5000d', 1) WHERE name = 'uid'")
        db.execute(
            "CREATE TABLE junk AS WITH c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 5000) SELECT * FROM c"
        )
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert path.with_name(f"{path.name}-journal").stat().st_size > 0


def test_what_a_killed_writer_left_half_done_is_undone_by_the_next_writer_only(kit, tmp_path):
    path = kit.write(tmp_path / "t.db", [kit.row()])
    _leave_half_done(path)
    before = path.read_bytes()
    with pytest.raises(TableError, match="left half done; undo it by running"):
        Table.open(path)
    assert path.read_bytes() == before
    with Store.open(path):
        pass
    with Table.open(path) as table:
        assert table.verdict(kit.problem, kit.device).ratio == 1
    assert verify(path) == []


def test_a_merge_of_a_file_into_itself_undoes_what_a_killed_writer_left(kit, tmp_path):
    path = kit.write(tmp_path / "t.db", [kit.row()])
    _leave_half_done(path)
    assert merge([path], path) == 1
    assert verify(path) == []


MAGIC = bytes.fromhex("d9d505f920a163d7")


def _name_in_journal(path, victim):
    """A rollback journal of `path` that names `victim` as its super-journal, which SQLite deletes after a rollback."""
    page = path.read_bytes()[:4096]
    pages, name = path.stat().st_size // 4096, str(victim).encode()
    header = (MAGIC + struct.pack(">IIIII", 1, 0, pages, 512, 4096)).ljust(512, b"\0")
    record = struct.pack(">I", 1) + page + struct.pack(">I", sum(page[4096 - 200 : 0 : -200]))
    total = sum(c if c < 128 else c - 256 for c in name) % 2**32
    tail = struct.pack(">I", 2**30 // 4096 + 1) + name + struct.pack(">II", len(name), total) + MAGIC
    path.with_name(f"{path.name}-journal").write_bytes(header + record + tail)


@pytest.mark.parametrize("linked", [False, True])
def test_opening_a_table_never_deletes_the_file_that_its_journal_names(kit, tmp_path, linked):
    path = kit.write(tmp_path / "t.db", [kit.row()])
    victim = tmp_path / "precious.txt"
    victim.write_text("do not lose me")
    _name_in_journal(path, victim)
    name = tmp_path / "link.db" if linked else path
    if linked:
        name.symlink_to(path)
    with pytest.raises(TableError, match="left half done"):
        Table.open(name)
    with pytest.raises(TableError, match=r"t\.db-journal .* do not use this file"):
        Store.open(name)
    assert victim.read_text() == "do not lose me"
    sqlite3.connect(path).execute("SELECT * FROM meta").connection.close()
    assert not victim.exists(), "the journal is one that SQLite follows"


def test_a_journal_that_is_no_regular_file_is_refused(kit, tmp_path):
    path = kit.write(tmp_path / "t.db", [kit.row()])
    os.mkfifo(tmp_path / "t.db-journal")
    with pytest.raises(TableError, match="do not use this file"):
        Store.open(path)


def test_readers_see_the_old_or_the_new_verdict_while_a_writer_works(kit, tmp_path):
    path = kit.write(tmp_path / "t.db", [kit.row(), kit.row(kit.configs[1], 5.0)])
    seen, stop = set(), threading.Event()

    def read():
        with Table.open(path) as table:
            while not stop.is_set():
                seen.add(table.verdict(kit.problem, kit.device).pick)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    writer = context.Process(target=_take_turns, args=(kit, path))
    writer.start()
    writer.join()
    stop.set()
    for reader in readers:
        reader.join()
    assert writer.exitcode == 0
    assert seen <= set(kit.configs)
    assert kit.configs[2] in seen


def _take_turns(kit, path):
    with Store.open(path) as store:
        for i in range(30):
            store.add([kit.row(kit.configs[1 + i % 2], 4.0 - i / 10, run=f"run-{i}")])
            store.refresh()
        store.add([kit.row(kit.configs[2], 0.5, run=f"last-{i}") for i in range(60)])
        store.refresh()
    time.sleep(0.1)


def test_a_writer_goes_on_in_the_file_that_took_the_place_of_its_own(kit, tmp_path):
    path = tmp_path / "t.db"
    with Store.open(path) as store:
        store.add([kit.row()])
        kit.write(tmp_path / "other.db", [kit.row(run="run-2")])
        (tmp_path / "other.db").replace(path)
        assert store.add([kit.row(run="run-3")]) == 1
        store.refresh()
    with Table.open(path) as table:
        assert {row.run for row in table.measurements()} == {"run-2", "run-3"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_named(kit, tmp_path):
    tmp_path.chmod(stat.S_IREAD | stat.S_IEXEC)
    with pytest.raises(TableError, match="permissions"):
        Store.open(tmp_path / "t.db")


def test_a_table_is_one_file_when_nobody_writes(kit, tmp_path):
    with Table.open(kit.write(tmp_path / "t.db", [kit.row()])) as table:
        table.verdict(kit.problem, kit.device)
        assert [p.name for p in tmp_path.iterdir()] == ["t.db"]
