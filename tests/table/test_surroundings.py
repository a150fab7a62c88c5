"""What surrounds a table: signal handlers, files that are cut short while they are open, file systems without locks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path

import pytest
from kit.tables import refusal

from gemmdb import TableError
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

ROOT = Path(__file__).parents[2]


def program(source, *arguments, **environment):
    """What a program prints, as JSON."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *map(str, arguments)],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


HANDLER = """
    import json, signal, sys, time
    from pathlib import Path
    from gemmdb import Device, Problem
    from gemmdb.table.reader import Table

    table = Table.open(Path(sys.argv[1]), immutable=sys.argv[4] == "True")
    problem, device = Problem.parse(sys.argv[2]), Device.parse(sys.argv[3])
    wanted = table.verdict(problem, device), table.rows(problem, device)
    handled = []

    def handle(number, frame):
        handled.append((table.verdict(problem, device), table.rows(problem, device)) == wanted)
        signal.setitimer(signal.ITIMER_REAL, 0.003)

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.003)
    until = time.monotonic() + 2
    seen = []
    while time.monotonic() < until or (min(len(seen), len(handled)) < 21 and time.monotonic() < until + 30):
        seen.append(table.verdict(problem, device) == wanted[0])
        seen.append(table.rows(problem, device) == wanted[1])
        table._file.fetch("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 9000)"
                          " SELECT max(x) FROM c", ())
    signal.signal(signal.SIGALRM, signal.SIG_IGN)  # A handler in progress starts the timer again.
    print(json.dumps([all(seen), all(handled), len(seen), len(handled)]))
"""


@pytest.mark.parametrize("immutable", [False, True])
def test_a_signal_handler_looks_up_in_the_middle_of_a_lookup(kit, path, immutable):
    """It waited for itself. The long statement is one that SQLite interrupts to ask about its deadline, when handlers
    run inside of SQLite."""
    seen, handled, lookups, signals = program(HANDLER, path, kit.problem.text, kit.device.text, immutable)
    assert seen
    assert handled
    assert min(lookups, signals) > 20


CUT = """
    import json, os, sys
    from pathlib import Path
    from gemmdb import TableError
    from gemmdb.table.reader import Table

    path = Path(sys.argv[1])
    with Table.open(path, immutable=True) as table:
        pairs = list(table.pairs())
        table._file.close()
        table.verdict(*pairs[0])  # Open again, with nothing read but this.
        os.truncate(path, 3 * 8192)
        faults = 0
        for pair in pairs:
            try:
                table.verdict(*pair)
                table.record(*pair)
            except TableError as error:
                faults += "corrupted" in str(error) or "malformed" in str(error)
        print(json.dumps(faults))
"""


def test_a_shipped_table_that_is_cut_short_while_it_is_open_is_a_table_error(tmp_path):
    """Its pages were mapped, and reading a page that is gone ended the process with SIGBUS."""
    path = shutil.copy(ROOT / "tables" / "sm89-nvidia-l4.db", tmp_path / "cut.db")
    assert program(CUT, path) > 100


def test_a_table_that_another_process_writes_is_still_locked(path):
    holder = Store.open(path)
    with holder.transaction() as db:
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        pid = os.fork()
        if not pid:
            try:
                start = time.monotonic()
                Store.open(path, 0.2)
            except TableError as error:
                os._exit(0 if "locked by another process" in str(error) and time.monotonic() - start < 20 else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    holder.close()


def test_a_child_that_a_signal_handler_forked_reads(kit, path):
    with Table.open(path) as table:
        table.verdict(kit.problem, kit.device)
        codes = []

        def handle(number, frame):
            pid = os.fork()
            if not pid:
                os._exit(0 if table.verdict(kit.problem, kit.device) is not None else 1)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            for _ in range(20):
                signal.raise_signal(signal.SIGUSR1)
                table.verdict(kit.problem, kit.device)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert codes == [0] * 20


@pytest.fixture
def logged(kit, tmp_path):
    """A table that somebody turned to WAL mode, alone in its folder. To read it, SQLite writes two files beside it."""
    path = kit.write(tmp_path / "alone" / "table.db", [kit.row()])
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    return path


@pytest.mark.parametrize("opening", [Table.open, Store.open])
def test_a_file_in_wal_mode_is_refused_and_nothing_is_written_beside_it(logged, opening):
    before = logged.read_bytes()
    refusal(opening, logged, match="has a write-ahead log")
    assert [one.name for one in logged.parent.iterdir()] == ["table.db"]
    assert logged.read_bytes() == before


def test_it_is_refused_in_a_folder_that_cannot_be_written_and_while_its_log_is_in_use(logged):
    logged.parent.chmod(0o555)
    try:
        with pytest.raises(TableError, match="has a write-ahead log"):
            Table.open(logged)
    finally:
        logged.parent.chmod(0o755)
    with closing(sqlite3.connect(logged)) as db:
        db.execute("UPDATE meta SET value = value")
        db.commit()
        with pytest.raises(TableError, match="has a write-ahead log"):
            Table.open(logged)


def test_what_the_message_says_helps(logged, kit):
    statement = refusal(Table.open, logged).split("'")[1]
    with closing(sqlite3.connect(logged)) as db:
        db.execute(statement)
    with Table.open(logged) as table:
        assert list(table.measurements()) == [kit.row()]


def test_a_reader_leaves_the_file_to_writers_once_it_is_open(kit, tmp_path):
    path = kit.write(tmp_path / "table.db", [kit.row()])
    with Table.open(path), closing(sqlite3.connect(path, timeout=0)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
