"""A file in WAL mode is refused: to read one, SQLite writes two files beside it."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from gemmdb import TableError
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store


@pytest.fixture
def logged(kit, tmp_path):
    """A table that somebody turned to WAL mode, alone in its folder."""
    path = kit.write(tmp_path / "alone" / "table.db", [kit.row()])
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    return path


@pytest.mark.parametrize("opening", [Table.open, Store.open])
def test_it_is_refused_and_nothing_is_written_beside_it(logged, opening):
    before = logged.read_bytes()
    with pytest.raises(TableError, match="has a write-ahead log") as raised:
        opening(logged)
    assert "\n" not in str(raised.value)
    assert [one.name for one in logged.parent.iterdir()] == ["table.db"]
    assert logged.read_bytes() == before


def test_it_is_refused_in_a_folder_that_cannot_be_written(logged):
    logged.parent.chmod(0o555)
    try:
        with pytest.raises(TableError, match="has a write-ahead log"):
            Table.open(logged)
    finally:
        logged.parent.chmod(0o755)


def test_it_is_refused_while_its_log_is_in_use(logged):
    with closing(sqlite3.connect(logged)) as db:
        db.execute("UPDATE meta SET value = value")
        db.commit()
        with pytest.raises(TableError, match="has a write-ahead log"):
            Table.open(logged)


def test_what_the_message_says_helps(logged, kit):
    with pytest.raises(TableError) as raised:
        Table.open(logged)
    statement = str(raised.value).split("'")[1]
    with closing(sqlite3.connect(logged)) as db:
        db.execute(statement)
    with Table.open(logged) as table:
        assert list(table.measurements()) == [kit.row()]


def test_a_reader_leaves_the_file_to_writers_once_it_is_open(kit, tmp_path):
    path = kit.write(tmp_path / "table.db", [kit.row()])
    with Table.open(path), closing(sqlite3.connect(path, timeout=0)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
