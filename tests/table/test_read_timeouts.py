"""Files that nobody can read to the end: each statement ends soon, with one line, and the other tables answer."""

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from kit.btree import File
from kit.tables import refusal, shorten_reads

from gemmdb import Policy, Query, TableError, lookup
from gemmdb.generators.files import pack
from gemmdb.table import handle, read_timeouts
from gemmdb.table.catalog import Catalog, Source
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

AT_ONCE = 2.0
"""Seconds of processor time within which a bounded read is over: its deadline is shortened to a tenth of that here."""


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    shorten_reads(monkeypatch)


def on_table(read):
    """`read` of an open table, as a function of its path."""

    def run(kit, path):
        with Table.open(path) as table:
            read(kit, table)

    return run


READS = {
    "opened": lambda kit, path: Table.open(path).close(),
    "written": lambda kit, path: Store.open(path),
    "packed": lambda kit, path: pack.pack(path, path.with_name("smaller.db")),
    "looked up": on_table(lambda kit, table: table.verdict(kit.problem, kit.device)),
    "devices": on_table(lambda kit, table: table.devices()),
    "barred": on_table(lambda kit, table: table.barred(kit.problem, kit.device)),
    "neighbours": on_table(lambda kit, table: table.neighbours(kit.problem, kit.device)),
}
ENDLESS = {
    "pending": lambda kit, file: file.endless_index("pending", kit.problem.key, kit.device.key),
    "meta": lambda kit, file: file.endless_index("meta", "digest", "0" * 32),
    "schema": lambda kit, file: file.endless_schema(),
    "device": lambda kit, file: file.endless_table("device", kit.device.key, None, kit.device.text, "{}"),
    "measurement": lambda kit, file: file.endless_index(
        "measurement", kit.problem.key, kit.device.key, 1, 0, 0, 0, 0, "ok"
    ),
    "family": lambda kit, file: file.endless_index(
        "problem_family", kit.problem.family_key, kit.problem.n, kit.problem.k, kit.problem.m, 123_456_789
    ),
    "verdict": lambda kit, file: file.endless_index(
        "verdict", kit.problem.key, kit.device.key, 1, "cuda13", 1, b"x" * 24, 0.5, 0.01, 1.0, 1, kit.problem.head
    ),
    "long verdict": lambda kit, file: file.long_index(
        "verdict", kit.problem.key, kit.device.key, 1, "cuda13", 1, length=2**24 - 600
    ),
    "long measurement": lambda kit, file: file.long_index(
        "measurement", kit.problem.key, kit.device.key, 1, 1, 1, 1, 1, "ok", length=2**24 - 600
    ),
}


def spoil(kit, path, what):
    file = File(path)
    ENDLESS[what](kit, file)
    file.save()


@pytest.mark.parametrize(("what", "read"), [
    ("meta", "opened"), ("schema", "opened"), ("schema", "written"), ("device", "devices"), ("measurement", "barred"),
    ("family", "neighbours"), ("verdict", "looked up"), ("long verdict", "looked up"), ("long measurement", "barred"),
    ("meta", "written"), ("pending", "packed"),
])  # fmt: skip
def test_a_read_without_an_end_is_ended(kit, path, what, read):
    spoil(kit, path, what)
    began = time.thread_time()
    refusal(READS[read], kit, path)
    assert time.thread_time() - began < AT_ONCE


@pytest.mark.parametrize("read", ["opened", "written"])
def test_a_hundred_thousand_tables_are_refused(kit, path, read):
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("CREATE TABLE extra (x)")
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'extra'").fetchone()
        db.executemany(
            "INSERT INTO sqlite_master VALUES ('table', ?, ?, ?, ?)",
            ((f"t{n}", f"t{n}", root, f"CREATE TABLE t{n} (x)") for n in range(100_000)),
        )
    began = time.thread_time()
    refusal(READS[read], kit, path, match=r"do not use this file|corrupted")
    assert time.thread_time() - began < AT_ONCE


def test_a_file_that_takes_too_long_is_read_once_and_the_others_answer(kit, path, tmp_path):
    good = kit.write(tmp_path / "good.db", [kit.row(config=config, us=us) for config, us in zip(
        kit.configs[:2], (10.0, 5.0), strict=True)])  # fmt: skip
    spoil(kit, path, "family")
    catalog = Catalog([(Source(one, "explicit"), Table.open(one)) for one in (path, good)])
    for m in range(2, 12):
        began = time.thread_time()
        lookup.answer(Query(kit.problem.resized(m, 128, 128), kit.device), catalog, Policy(), None)
        assert m == 2 or time.thread_time() - began < 0.1, "it is not read again"
    assert lookup.answer(Query(kit.problem, kit.device), catalog, Policy(near=False), None).table == str(good)


def test_a_file_that_cannot_even_be_opened_is_tried_once(kit, path):
    spoil(kit, path, "meta")
    for index in range(3):
        began = time.thread_time()
        with pytest.raises(TableError, match="takes too long"):
            Table.open(path)
        assert index == 0 or time.thread_time() - began < 0.1


def test_waiting_for_a_writer_does_not_count(kit, tmp_path):
    """A commit on a slow disk takes longer than a statement may."""
    rows = [kit.row(problem=kit.problem.resized(m, 64, 64)) for m in range(1, 400)]
    path = kit.write(tmp_path / "many.db", rows)
    with Table.open(path) as table:
        writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        writer.execute("BEGIN EXCLUSIVE")
        later = threading.Timer(0.6, lambda: writer.execute("COMMIT"))
        later.start()
        assert len(list(table.measurements())) == len(rows)
        later.join()
        writer.close()


def test_a_thread_that_does_not_run_loses_no_time(monkeypatch):
    """On an overloaded machine, or one that was halted, a shipped table is no damaged one."""
    deadline = read_timeouts.Deadline()
    deadline.begin(0.05)
    assert not deadline()
    time.sleep(0.2)
    assert not deadline()
    until = time.thread_time() + 0.06
    while time.thread_time() < until:
        pass
    assert deadline()
    monkeypatch.setattr(read_timeouts, "WALL_CLOCK_FACTOR", 2)
    deadline.begin(0.05)
    assert not deadline()
    time.sleep(0.2)
    assert deadline()


def test_a_file_is_read_again_when_it_has_changed(kit, path):
    good = path.read_bytes()
    spoil(kit, path, "family")
    table = Table.open(path)
    for _ in range(2):
        with pytest.raises(TableError, match="takes too long"):
            table.neighbours(kit.problem, kit.device)
    Path(path).write_bytes(good)
    assert table.neighbours(kit.problem, kit.device)


def test_the_statements_of_a_lookup_share_their_time(kit, tmp_path):
    """A sound table may hold so many problems that each of a lookup's statements takes nearly as long as it may. Each
    lookup has its own time, or a process that looks up for hours would call a shipped table endless."""
    rows = [kit.row(problem=kit.problem.resized(m, n, 512)) for m in range(1, 65) for n in range(64, 512, 8)]
    with Table.open(kit.write(tmp_path / "many.db", rows)) as table:
        for _ in range(5):
            with table._file.lookup():
                table._file._lookups.now.spend(0.05)
                assert len(table.neighbours(kit.problem, kit.device)) == 64
        with table._file.lookup():
            assert table.neighbours(kit.problem, kit.device)
            table._file._lookups.now.spend(0.2)
            with pytest.raises(TableError, match="takes too long"):
                table.neighbours(kit.problem, kit.device)
        with pytest.raises(TableError, match="takes too long"):
            table.neighbours(kit.problem, kit.device)


def test_the_pages_of_a_scan_share_their_time(kit, tmp_path, monkeypatch):
    """Else a file could make each of its many pages take nearly as long as all of it may."""
    slow = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 60000) SELECT count(*) FROM c"
    page = f"SELECT id, ({slow}) FROM problem WHERE id > ? ORDER BY id LIMIT 1"
    rows = [kit.row(problem=kit.problem.resized(m, 64, 512)) for m in range(1, 41)]
    monkeypatch.setattr(read_timeouts, "BULK_S_PER_MIB", 0)
    with Table.open(kit.write(tmp_path / "many.db", rows)) as table:
        assert len(list(table._file.pages(page, 1))) == 40
        with pytest.raises(TableError, match="takes too long"):
            list(table._file.pages(page, 1, bulk=True))


def test_texts_of_one_statement_are_bounded(kit, path, monkeypatch):
    monkeypatch.setattr(handle, "MOST_BYTES", 100)
    with Table.open(path) as table, pytest.raises(TableError, match="more memory than there is"):
        list(table.measurements())
