"""What lookups remember of a file that others may write: nothing once it has changed."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from kit.tables import edit

from gemmdb import TableError
from gemmdb.table import lookup_cache, schema
from gemmdb.table.lookup_cache import file_system
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

pytestmark = pytest.mark.skipif(not hasattr(os, "O_PATH"), reason="only Linux tells cheaply whether a file has changed")
SETTLED_S = 0.05
"""Shortened for these tests, and still longer than the steps of a file system's clock."""


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(lookup_cache, "SETTLED_S", SETTLED_S)
    monkeypatch.setattr(lookup_cache, "file_system", lambda *_: "ext4")  # Whatever the tests run on.


def settle():
    time.sleep(1.2 * SETTLED_S)


@contextlib.contextmanager
def opened(path, immutable=False):
    """A table that has been open for long enough."""
    with Table.open(path, immutable=immutable) as table:
        settle()
        yield table


def reads(table, act):
    """How many lookups of verdicts the file answers while something runs."""
    seen: list[str] = []
    table._file.db.set_trace_callback(seen.append)
    act()
    table._file.db.set_trace_callback(None)
    return sum(text.startswith(schema.VERDICT_SQL.partition("?")[0]) for text in seen)


@pytest.mark.parametrize("immutable", [False, True])
def test_a_file_that_has_not_changed_is_read_once(kit, path, immutable):
    """Also where it holds no verdict."""
    problems = [*kit.problems, kit.problem.resized(7, 8, 8)]
    with opened(path, immutable=immutable) as table:

        def read():
            return [table.verdict(problem, kit.device, l2) for problem in problems for l2 in ("cold", "hot")]

        *known, cold, hot = read()
        assert all(known)
        assert (cold, hot) == (None, None)
        again = []
        assert reads(table, lambda: again.extend(read())) == 0
        assert again == [*known, None, None]


def test_the_devices_of_a_file_that_never_changes_are_read_once(kit, path):
    """A lookup asks each table for similar ones."""
    for immutable in (False, True):
        with Table.open(path, immutable=immutable) as table:
            known, seen = table.devices(), []
            table._file.db.set_trace_callback(seen.append)
            assert table.devices() == known == (kit.device,)
            table._file.db.set_trace_callback(None)
            assert any("FROM device" in text for text in seen) != immutable


def test_every_write_is_seen_by_the_next_lookup(kit, tmp_path):
    """The clock of a file system has steps: a file that was just opened or written is read again, since another write
    in the step of the last one would not show."""
    path = kit.write(tmp_path / "t.db", [kit.row(), kit.row(kit.configs[1], 5.0)])
    with Table.open(path) as table, Store.open(path) as store:
        for number in range(12):
            if number % 3:
                settle()
                table.verdict(kit.problem, kit.device)  # The first look at the new times.
                settle()
            before = table.verdict(kit.problem, kit.device)
            # A busy machine may take so long that the file is not a new one any more.
            assert reads(table, lambda: table.verdict(kit.problem, kit.device)) <= (number % 3 == 0)
            assert table.verdict(kit.problem, kit.device) == before
            store.add([kit.row(kit.configs[1], 4.0 - number / 10, run=f"late-{number}")])
            store.refresh()
            assert table.verdict(kit.problem, kit.device).runs == before.runs + 1


def test_a_write_that_takes_back_the_time_of_the_file_and_damage_are_seen(kit, path):
    with opened(path) as table:
        before, found = table.verdict(kit.problem, kit.device), path.stat()
        kit.write(path, [kit.row(kit.configs[2], 1.0, run="late")])
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
        assert table.verdict(kit.problem, kit.device).pick == kit.configs[2] != before.pick
        os.truncate(path, 8192)
        with pytest.raises(TableError):
            table.verdict(kit.problem, kit.device)


@pytest.mark.parametrize("immutable", [False, True])
def test_a_file_put_at_the_path_is_read_once_the_table_is_opened_again(kit, tmp_path, immutable):
    """Also by a child of this process, which keeps nothing of its parent's."""
    path = kit.write(tmp_path / "a.db", [kit.row(), kit.row(kit.configs[1], 5.0)])
    other = kit.write(tmp_path / "b.db", [kit.row(), kit.row(kit.configs[2], 5.0)])
    seen = lookup_cache.LookupCache(path)
    with opened(path, immutable=immutable) as table:
        assert table.verdict(kit.problem, kit.device).pick == kit.configs[1]
        assert seen.watches_path()
        other.replace(path)
        assert not seen.watches_path()
        if not (pid := os.fork()):
            found = None
            with contextlib.suppress(TableError):
                found = table.verdict(kit.problem, kit.device)
            os._exit(0 if found and found.pick == kit.configs[2] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        table.close()
        assert table.verdict(kit.problem, kit.device).pick == kit.configs[2]


def test_the_devices_of_a_file_put_at_the_path_are_read_once_the_table_is_opened_again(kit, tmp_path):
    another = replace(kit.device, sku="Another CPU")
    path, other = (
        kit.write(tmp_path / "a.db", [kit.row()]),
        kit.write(tmp_path / "b.db", [replace(kit.row(), device=another)]),
    )
    with opened(path, immutable=True) as table:
        assert table.devices() == (kit.device,)
        other.replace(path)
        if not (pid := os.fork()):
            found = ()
            with contextlib.suppress(TableError):
                found = table.devices()
            os._exit(0 if found == (another,) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        table.close()
        assert table.devices() == (another,)
        path.unlink()
        table.close()
        with pytest.raises(TableError):
            table.devices()


def test_rows_of_before_and_after_a_write_do_not_mix(kit, path):
    """Another thread may see the change first, and keep what it reads then; or nobody sees it."""
    seen = lookup_cache.LookupCache(path)
    assert seen.place() is None
    settle()
    first = seen.place()
    first[1, 2] = [("old",)]
    assert seen.get((1, 2)) == [("old",)]
    path.touch()
    assert seen.get((1, 2)) is None
    assert seen.place() is None
    settle()
    second = seen.place()
    first[1, 2] = [("old",)]
    assert seen.get((1, 2)) is None
    second[1, 2] = [("new",)]
    assert seen.get((1, 2)) == [("new",)]
    path.touch()
    second[1, 2] = [("newer",)]
    assert seen.get((1, 2)) is None


def test_no_more_rows_are_kept_than_there_is_room_for(kit, path, monkeypatch):
    monkeypatch.setattr(lookup_cache, "MOST_LOOKUPS", 2)
    with opened(path) as table:
        for problem in kit.problems:
            table.verdict(problem, kit.device)
            assert len(table._file.cache.place()) <= 2


@pytest.mark.parametrize("large", [
    "keys = CAST(keys || zeroblob(8192) AS BLOB)", "keys = printf('%8192c', ' ')",
    "head = head || printf('%8192c', ' ')", "ratio = printf('%8192c', ' ')",
    "spread = zeroblob(8192)", "aten_us = zeroblob(8192)", "runs = zeroblob(8192)",
])  # fmt: skip
def test_large_rows_are_not_kept(kit, path, large):
    """A hostile file may hold some for each problem."""
    edit(path, (f"UPDATE verdict SET {large} WHERE protocol = ?", (kit.hot.key,)))
    with opened(path) as table:
        for problem in kit.problems:
            with contextlib.suppress(TableError):
                table.verdict(problem, kit.device)
        assert table._file.cache.place() == {}


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
31 22 0:28 / /home/a\\040b rw,relatime shared:2 master:1 - nfs4 server:/home rw,vers=4.2
32 22 0:29 / /dev/shm rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(("mount", "wanted"), [("22", "ext4"), ("31", "nfs4"), ("32", "tmpfs"), ("33", "")])
def test_the_file_system_of_an_open_file(mount, wanted, path):
    assert file_system(f"pos:\t0\nflags:\t012100000\nmnt_id:\t{mount}\nino:\t7\n", MOUNTS) == wanted
    with path.open("rb") as file:
        about, mounts = Path(f"/proc/self/fdinfo/{file.fileno()}"), Path("/proc/self/mountinfo")
        assert file_system(about.read_text(), mounts.read_text())


def test_nothing_is_kept_of_a_file_that_another_host_may_write(kit, path, monkeypatch):
    """What the system says of such a file may be seconds old."""
    monkeypatch.setattr(lookup_cache, "file_system", lambda *_: "nfs4")
    with opened(path) as table:
        assert table.verdict(kit.problem, kit.device)
        assert reads(table, lambda: table.verdict(kit.problem, kit.device)) == 1


def test_a_reader_that_lives_until_the_interpreter_ends_says_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from gemmdb.table import lookup_cache;"
        "sys.kept = lookup_cache.LookupCache(Path(sys.argv[1]));"
        "vars(lookup_cache).update(dict.fromkeys(vars(lookup_cache)))"  # As the interpreter may leave it at its end.
    )
    (tmp_path / "file").touch()
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "file")], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_commit_to_a_log_beside_the_file_is_seen(kit, path):
    """Our writers make no such log. Another program's may."""
    with opened(path) as table, contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode=WAL")
        table.verdict(kit.problem, kit.device)  # The first look at the new times.
        settle()
        assert table.verdict(kit.problem, kit.device) is not None
        other.execute("DELETE FROM verdict")
        other.commit()
        assert table.verdict(kit.problem, kit.device) is None


def test_a_descriptor_that_somebody_closed_is_not_ours_any_more(tmp_path):
    (tmp_path / "t").touch()
    (tmp_path / "other").touch()
    seen = lookup_cache.LookupCache(tmp_path / "t")
    os.close(seen._file)
    assert seen._stamp() is None
    with (tmp_path / "other").open() as other:
        assert other.fileno() == seen._file
        seen.close()
        assert os.fstat(other.fileno()).st_size == 0
