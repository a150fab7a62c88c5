"""Commands that read whole files, on files whose pages share children: each ends soon, in one line, losing nothing."""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from kit.btree import File
from kit.tables import Kit, shorten_reads

from gemmdb.generators.files.pack import pack
from gemmdb.key import canonical
from gemmdb.table import read_timeouts

KIT = Kit()
AT_ONCE_S = 6.0
"""Processor time of one command; the deadlines of statements are much shorter here."""
READ_WHOLE = (
    "tables pack bad.db --out new.db", "merge bad.db --out new.db", "export bad.db --to jsonl --out new",
)  # fmt: skip
LOOPS = {
    "verify bad.db": "measurement verdict problem problem_family config device protocol toolchain run",
    "merge plain.db bad.db --out bad.db": "measurement run",
    "merge plain.db bad.db --out new.db": "measurement run",
    "tables pack bad.db --out new.db": "measurement device protocol toolchain run",
    "export bad.db --to csv --out new": "measurement",
    "export bad.db --to jsonl --out new": "measurement run",
    "export bad.db --to verdicts --out new": "measurement verdict",
    "export bad.db --to lookup-table --out new": "measurement",
    "show bad.db": "measurement verdict",
    "tables": "measurement device",
}
PACKED_LOOPS = {
    "show bad.db": "record",
    "tables": "record device",
    "verify bad.db": "record device protocol toolchain run",
}


def pairs(loops: dict[str, str]) -> list[tuple[str, str]]:
    """Each command with each name of a table."""
    return [(command, name) for command, names in loops.items() for name in names.split()]


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    shorten_reads(monkeypatch)


@pytest.fixture
def bad(environment, monkeypatch) -> Path:
    """A copy of the good table plain.db; GEMMDB_TABLES names it."""
    rows = [
        KIT.row(problem=problem, config=config, us=us)
        for problem in KIT.problems
        for config, us in zip(KIT.configs, (10.0, 5.0, 7.0, 20.0), strict=True)
    ]
    KIT.write(Path("plain.db"), rows)
    monkeypatch.setenv("GEMMDB_TABLES", "bad.db")
    return Path(shutil.copy("plain.db", "bad.db"))


def loop(path: Path, name: str) -> None:
    """Make the pages of a table in the file share children."""
    file = File(path)
    file.repeat(name)
    file.save()


def ends(gemmdb, command: str) -> int:
    """The exit code of a command, which ends soon. It names the file in one line, and changes no file."""
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    began = time.thread_time()
    done = gemmdb(*command.split())
    assert time.thread_time() - began < AT_ONCE_S
    if done.code == 2:
        done.refused("bad.db")
        assert "check the folder" not in done.err, "it is the file"
        assert {path: path.read_bytes() for path in Path().iterdir() if path.is_file()} == before
    return done.code


@pytest.mark.parametrize(("command", "name"), pairs(LOOPS))
def test_a_loop_ends_soon(gemmdb, bad, command, name):
    loop(bad, name)
    assert ends(gemmdb, command) == (1 if command.startswith("verify") else 2)


@pytest.mark.parametrize(("command", "name"), pairs(PACKED_LOOPS))
def test_a_loop_in_a_packed_table_ends_soon(gemmdb, bad, command, name):
    bad.unlink()
    pack(Path("plain.db"), bad)
    loop(bad, name)
    assert ends(gemmdb, command) == (1 if command.startswith("verify") else 2)


@pytest.mark.parametrize("command", READ_WHOLE)
def test_what_repeats_is_seen_before_any_deadline(gemmdb, bad, command, monkeypatch):
    monkeypatch.setattr(read_timeouts, "BULK_S", 600.0)
    monkeypatch.setattr(read_timeouts.Deadline.begin, "__defaults__", (600.0,))
    loop(bad, "measurement")
    began = time.thread_time()
    gemmdb(*command.split()).refused(f"{bad} is corrupted (its rows repeat, or are not in the order of their keys)")
    assert time.thread_time() - began < AT_ONCE_S


@pytest.mark.parametrize("command", READ_WHOLE)
def test_long_values_that_share_their_end_are_refused(gemmdb, bad, command):
    file = File(bad)
    runs = ("run-1", "run-2", "run-3", "run-4")
    file.long_table("run", {canonical.key(run): (None, run, "{}") for run in runs}, length=57_780)
    file.save()
    assert ends(gemmdb, command) == 2


@pytest.mark.parametrize("damage", [
    "UPDATE config SET text = x'00'", "UPDATE problem SET text = 'mm'", "UPDATE run SET text = x'00'",
])  # fmt: skip
def test_pack_names_the_table_that_is_damaged(gemmdb, bad, damage):
    with closing(sqlite3.connect(bad)) as db, db:
        db.execute("INSERT INTO problem SELECT 1, text, op, m, n, k, family FROM problem LIMIT 1")
        db.execute(damage)
    assert ends(gemmdb, "tables pack bad.db --out new.db") == 2
