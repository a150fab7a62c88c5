"""The writer: idempotent, safe against kill -9, and with several processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from kit.tables import edit

from gemmdb import InputError, TableError
from gemmdb.generators.files.verify import verify
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store, record_live


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


def test_a_new_table_needs_no_sqlite_utils(tmp_path):
    """The first compile of a user that stores a row would wait 0.25 s for its import."""
    code = (
        "import sys; from gemmdb.table.writer import Store; Store.open(sys.argv[1]).close();"
        "print('sqlite_utils' in sys.modules)"
    )
    told = subprocess.check_output([sys.executable, "-c", code, tmp_path / "new.db"], text=True)
    assert told.strip() == "False"


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


def test_builds_that_changed_rows_raise_the_generation_and_live_tuning_does_not(kit, tmp_path):
    path = tmp_path / "t.db"
    for rows, expected in (([kit.row()], 1), ([kit.row()], 1), ([kit.row(run="run-2")], 2)):
        kit.write(path, rows)
        assert generation(path) == expected
    record_live(path, [kit.row(problem=kit.problems[1]), kit.row(kit.configs[1], 4.0, problem=kit.problems[1])])
    with Table.open(path) as table:
        assert table.generation == 2
        assert table.verdict(kit.problems[1], kit.device).pick == kit.configs[1]
    with Store.open(path) as build:
        build.add([kit.row(run="run-3")])
        record_live(path, [kit.row(problem=kit.problems[2])])  # It makes the verdicts of the build, too.
        build.refresh()
    assert generation(path) == 3
    assert verify(path) == []


def test_a_run_keeps_its_provenance(kit, tmp_path):
    path = tmp_path / "t.db"
    with Store.open(path) as store:
        run = store.begin_run({"command": "gemmdb build", "clock_mhz": 1980.0})
        assert store.begin_run({"run": run}) != run
        store.add([kit.row(run=run), kit.row(run="unheard-of")])
        for reading in (object(), float("nan")):
            with pytest.raises(InputError, match="JSON"):
                store.begin_run({"reading": reading})
    with Table.open(path) as table:
        runs = {entry.pop("run"): entry for entry in table.provenance()}
    assert runs[run]["clock_mhz"] == 1980.0
    assert runs["unheard-of"] == {}


def test_a_failing_row_takes_its_whole_batch_back(kit, tmp_path):
    path = kit.write(tmp_path / "t.db", [kit.row()])
    fresh = kit.row(kit.configs[1], problem=kit.problems[1])
    with Store.open(path) as store:
        with pytest.raises(AttributeError):
            store.add([fresh, None])
        assert store.add([fresh]) == 1
        store.refresh()
    assert verify(path) == []


def test_two_texts_under_one_key_are_refused(kit, tmp_path):
    path = kit.write(tmp_path / "t.db", [kit.row()])
    edit(path, "UPDATE problem SET text = 'another'")
    with Store.open(path) as store, pytest.raises(TableError, match="share a 64-bit key"):
        store.add([kit.row(run="run-2")])


def test_an_unusable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TableError, match="cannot be made"):
        Store.open(tmp_path / "file" / "t.db")


@pytest.fixture
def shared():
    """A folder that other users may enter, as they may not that of a test, nor one of its own in TMPDIR."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize(("modes", "told"), [
    ((0o555, 0o666), "cannot be written: its directory is not writable; check its permissions, or name another file"),
    ((0o777, 0o444), "cannot be written: it is read-only; check its permissions, or name another file"),
    ((0o000, 0o666), "cannot be opened (Permission denied); check the permissions of its folder"),
])  # fmt: skip
@pytest.mark.parametrize("linked", [False, True])
def test_what_may_not_be_written_is_told_when_it_is_opened(kit, shared, modes, told, linked):
    folder = shared / "tables"
    folder.mkdir()
    path = kit.write(folder / "t.db", [kit.row()])
    asked = shared / "link.db" if linked else path
    if linked:
        asked.symlink_to(path)
    path.chmod(modes[1])
    folder.chmod(modes[0])
    assert _told_a_user(asked) == f"{asked} {told}"
    folder.chmod(0o755)
    assert [one.name for one in folder.iterdir()] == ["t.db"]


def _told_a_user(path):
    """What a user is told who opens a table for writing and whom modes stop, as they do not stop root. Skips the test
    where root cannot become one."""
    read, write = os.pipe()
    if not (pid := os.fork()):
        try:
            if not os.geteuid():
                os.setgid(65534)
                os.setuid(65534)
        except OSError:
            os._exit(77)
        try:
            Store.open(path).close()
        except BaseException as error:
            os.write(write, (str(error) if isinstance(error, TableError) else repr(error)).encode())
        finally:
            os._exit(0)
    os.close(write)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 77:
        pytest.skip("root cannot become another user here")
    with os.fdopen(read) as pipe:
        return pipe.read()


def test_a_table_that_is_removed_while_it_is_written_is_an_error(kit, tmp_path):
    path = tmp_path / "table.db"
    with Store.open(path) as store:
        store.add([kit.row()])
        path.unlink()
        with pytest.raises(TableError, match="was removed while it was being written"):
            store.add([kit.row(kit.configs[1])])
    assert not path.exists()


@pytest.mark.parametrize("name", [":memory:", "file:x.db?mode=memory", "empty.db"])
def test_names_that_sqlite_reads_otherwise_and_empty_files_become_tables(kit, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("empty.db").touch()
    kit.write(Path(name), [kit.row()])
    with Table.open(Path(name)) as table:
        assert table.rows(kit.problem, kit.device)
    assert (tmp_path / name).is_file()
