"""Frozen settings: only named tables are read, and those that are pinned only with their digests."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from pathlib import Path

import pytest
from kit.tables import names

from gemmdb import InputError, TableError
from gemmdb.lookup import environment
from gemmdb.settings import Settings
from gemmdb.table import read_timeouts
from gemmdb.table.catalog import Catalog, sources
from gemmdb.table.reader import Table


@pytest.fixture
def everywhere(kit, home, monkeypatch):
    """A table in each place that is searched."""
    data = home / "data" / "gemmdb"
    for path in (home / "arg.db", home / "env.db", data / "built.db", data / "user.db", home / "shipped" / "s.db"):
        kit.write(path, [kit.row()])
    monkeypatch.setenv("GEMMDB_TABLES", str(home / "env.db"))
    monkeypatch.setenv("GEMMDB_FROZEN", "1")
    return home


@pytest.fixture
def pinned(everywhere, monkeypatch):
    """A folder with a list of two tables: one next to it, and a shipped one."""
    folder = everywhere / "serve"
    folder.mkdir()
    shutil.copy(everywhere / "arg.db", folder / "frozen.db")
    lines = [line(folder / "frozen.db"), line(everywhere / "shipped" / "s.db")]
    (folder / "frozen.sha256").write_text("# of a program\n" + "".join(lines))
    monkeypatch.setenv("GEMMDB_FROZEN", str(folder / "frozen.sha256"))
    return folder


def line(path: Path) -> str:
    return f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"


def test_without_a_list_the_named_and_the_shipped_tables_are_read(everywhere):
    assert names(Catalog.load(tables=[everywhere / "arg.db"])) == ["arg.db", "env.db", "s.db"]


def test_the_users_table_counts_only_where_it_is_named(everywhere, monkeypatch):
    user = Settings.read().user_table
    monkeypatch.setenv("GEMMDB_TABLES", str(user))
    catalog = Catalog.load()
    assert names(catalog) == ["user.db", "s.db"]
    assert [source.origin for source in sources(Settings.read())] == ["explicit", "shipped"]
    with sqlite3.connect(user) as db:
        db.execute("UPDATE meta SET value = 'other' WHERE name = 'digest'")
    assert Catalog.load().identity() != catalog.identity(), "its rows are part of what is frozen"


def test_with_a_list_its_tables_are_read_and_no_other(pinned, everywhere, monkeypatch):
    monkeypatch.delenv("GEMMDB_TABLES")
    assert names(Catalog.load(strict=True)) == ["frozen.db", "s.db"]


def test_a_named_table_has_to_be_pinned(pinned, everywhere, caplog):
    copy = Path(shutil.copy(pinned / "frozen.db", everywhere / "copy.db"))
    assert names(Catalog.load(tables=[copy])) == ["copy.db", "frozen.db", "s.db"]
    assert "env.db is not the table that" in caplog.text
    with pytest.raises(TableError, match=r"env\.db is not the table that .*frozen\.sha256 lists"):
        Catalog.load(tables=[copy], strict=True)


@pytest.mark.parametrize("which", ["serve/frozen.db", "shipped/s.db"])
def test_with_a_changed_table_none_is_read(pinned, everywhere, which, caplog, monkeypatch):
    monkeypatch.delenv("GEMMDB_TABLES")
    before = len(Catalog.load().tables)
    with sqlite3.connect(everywhere / which) as db:
        db.execute("PRAGMA user_version = 12345")
    assert before == 2
    assert Catalog.load().tables == ()
    (record,) = caplog.records
    assert f"{everywhere / which} is not the table that {pinned / 'frozen.sha256'} lists" in record.message
    assert "restore the file, or run `gemmdb freeze` again (so no table is used, and ATen runs)" in record.message
    environment.refresh()
    with pytest.raises(TableError, match="its SHA-256 differs"):
        environment.current_catalog()
    environment.refresh()


def test_a_missing_table_is_named_with_its_remedy(pinned, caplog):
    (pinned / "frozen.db").unlink()
    assert Catalog.load().tables == ()
    assert "frozen.db does not exist, but" in caplog.text
    assert "copy it there, or run `gemmdb freeze` again" in caplog.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "GEMMDB_FROZEN=.*it cannot be read .*; `gemmdb freeze` makes it"),
        ("nonsense\n", "frozen.sha256:1: not a line that `sha256sum` prints"),
        (f"{'0' * 64}\n", "the line of 000000000000... names no file"),
        (f"{'0' * 64}  ../other.db\n", "is not the name of a file next to it"),
        (f"{'0' * 64}  /srv/other.db\n", "is not the name of a file next to it"),
        (f"{'0' * 64}  ..\n", "is not the name of a file next to it"),
    ],
)
def test_a_list_that_cannot_be_read_is_an_error(pinned, text, said):
    path = pinned / "frozen.sha256"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(InputError, match=said):
        Catalog.load()


def test_reading_pinned_tables_writes_nothing_beside_them(pinned, kit):
    pinned.chmod(0o555)
    try:
        catalog = Catalog.load()
        (table, *_) = catalog.tables
        assert table.devices()
        catalog.close()
        assert sorted(path.name for path in pinned.iterdir()) == ["frozen.db", "frozen.sha256"]
    finally:
        pinned.chmod(0o755)


def test_a_slow_machine_does_not_change_what_a_pinned_table_answers(pinned, kit, monkeypatch):
    """Reading any other table ends at a deadline."""
    monkeypatch.setattr(read_timeouts, "_STEPS", 1)
    monkeypatch.setattr(read_timeouts.Deadline, "__call__", lambda self: True)
    (table, *_) = Catalog.load().tables
    assert table.devices()
    with pytest.raises(TableError, match="takes too long to read"):
        Table.open(pinned / "frozen.db")
