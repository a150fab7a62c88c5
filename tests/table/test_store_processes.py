"""The writer beside other processes: several at once, killed ones, and readers meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import struct
import threading
import time

import pytest

from gemmdb import TableError
from gemmdb.generators.files.merge import merge
from gemmdb.generators.files.verify import verify
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

context = multiprocessing.get_context("fork")


def count(path):
    with Table.open(path) as table:
        return len(list(table.measurements()))


def _add_for_ever(kit, path, ready):
    with Store.open(path) as store:
        for i in range(10**6):
            problem = kit.problem.resized(1 + i % 50, 8, 8)
            store.add([kit.row(c, 5.0 + i, run=f"run-{i}", problem=problem) for c in kit.configs])
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
        _spill(db)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert path.with_name(f"{path.name}-journal").stat().st_size > 0


def test_what_a_killed_writer_left_half_done_is_undone_by_the_next_writer_only(kit, tmp_path):
    path = kit.write(tmp_path / "t.db", [kit.row()])
    _leave_half_done(path)
    before = path.read_bytes()
    with pytest.raises(TableError, match="unfinished write from a killed process; to undo it, run"):
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
    with pytest.raises(TableError, match="unfinished write from a killed process"):
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


def _spill(db):
    """Begin a write and let SQLite write pages, so that the journal on the disk is complete and the file is changed."""
    for pragma in ("cache_size=1", "cache_spill=1", "synchronous=FULL"):
        db.execute(f"PRAGMA {pragma}")
    db.execute("BEGIN IMMEDIATE")
    db.executemany("INSERT INTO config VALUES (?, ?)", ((-number, f"text {number}" * 40) for number in range(1, 2000)))


def test_a_writer_of_a_replaced_file_leaves_the_journal_of_the_new_one_alone(kit, tmp_path):
    """SQLite goes by the path: it would roll back and delete the other writer's journal."""
    path, other = kit.write(tmp_path / "a.db", [kit.row()]), kit.write(tmp_path / "b.db", [kit.row(kit.configs[1])])
    with Store.open(path, busy_s=0.2) as old:
        merge([path, other], path)
        db = sqlite3.connect(path, isolation_level=None)
        _spill(db)
        journal = path.with_name(f"{path.name}-journal")
        before = journal.read_bytes()
        assert len(before) > 4096
        with pytest.raises(TableError, match="locked by another process"):
            old.add([kit.row(kit.configs[2])])
        assert journal.read_bytes() == before
        db.execute("ROLLBACK")
        db.close()
        assert old.add([kit.row(kit.configs[2])]) == 1
        old.refresh()
    assert count(path) == 3
    assert verify(path) == []


def _merge_for_ever(path, other, stop):
    while not stop.is_set():
        merge([path, other], path)
        with Store.open(path) as store:
            store.refresh()


def test_a_reader_that_stays_open_answers_across_merges(kit, tmp_path):
    path, other = kit.write(tmp_path / "a.db", [kit.row()]), kit.write(tmp_path / "b.db", [kit.row(kit.configs[1])])
    stop = context.Event()
    workers = [context.Process(target=_merge_for_ever, args=(path, other, stop)) for _ in range(2)]
    for worker in workers:
        worker.start()
    with Table.open(path) as table:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            assert table.verdict(kit.problem, kit.device) is not None
            assert table.rows(kit.problem, kit.device)
    stop.set()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]


def test_a_merge_keeps_a_link_and_the_mode_of_its_file(kit, tmp_path):
    path, other = kit.write(tmp_path / "a.db", [kit.row()]), kit.write(tmp_path / "b.db", [kit.row(kit.configs[1])])
    path.chmod(0o640)
    link = tmp_path / "link.db"
    link.symlink_to(path)
    merge([path, other], link)
    assert link.is_symlink()
    assert (count(path), path.stat().st_mode & 0o777) == (2, 0o640)
