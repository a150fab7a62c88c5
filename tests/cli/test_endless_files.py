"""Commands that read whole files, on files whose pages share children: each ends soon, in one line, losing nothing."""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from kit.btree import File
from kit.tables import Kit

from gemmdb.cli.app import run
from gemmdb.generators.files.pack import pack
from gemmdb.key import canonical
from gemmdb.table import read_timeouts

KIT = Kit()
AT_ONCE = 6.0
"""Seconds of processor time of one command; the deadlines of statements are much shorter here."""
BAD = ("bad.db", "new.db")
NAMES = ("measurement", "verdict", "problem", "problem_family", "config", "device", "protocol", "toolchain", "run")


@pytest.fixture(autouse=True)
def hurried(monkeypatch, tmp_path):
    monkeypatch.setattr(read_timeouts, "_slow_files", {})
    monkeypatch.setattr(read_timeouts.Deadline.begin, "__defaults__", (0.2,))
    monkeypatch.setattr(read_timeouts, "STATEMENT_S", 0.2)
    monkeypatch.setattr(read_timeouts, "BULK_S", 0.2)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    rows = [
        KIT.row(problem=problem, config=config, us=us)
        for problem in KIT.problems
        for config, us in zip(KIT.configs, (10.0, 5.0, 7.0, 20.0), strict=True)
    ]
    return KIT.write(tmp_path / "plain.db", rows)


@pytest.fixture
def packed(plain: Path, tmp_path: Path) -> Path:
    pack(plain, tmp_path / "packed.db")
    return tmp_path / "packed.db"


def looping(good: Path, name: str) -> Path:
    bad = Path(shutil.copy(good, good.with_name("bad.db")))
    file = File(bad)
    file.repeat(name)
    file.save()
    return bad


def ends(capsys, folder: Path, *words: object) -> int:
    """The exit code of a command, which ends soon. It says what is wrong in one line that names the file, and leaves no
    file behind that was not there."""
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    began = time.thread_time()
    code = run([str(word) for word in words])
    assert time.thread_time() - began < AT_ONCE
    said = capsys.readouterr()
    if code == 2:
        assert said.err.count("\n") == 1
        assert str(folder / "bad.db") in said.err
        assert "check the folder" not in said.err, "it is the file"
        assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    return code


@pytest.mark.parametrize("name", NAMES)
def test_verify_finds_it(plain, name, capsys, tmp_path):
    assert ends(capsys, tmp_path, "verify", looping(plain, name)) == 1


@pytest.mark.parametrize("name", ["measurement", "run"])
@pytest.mark.parametrize("out", ["bad.db", "new.db"])
def test_merge_refuses_it(plain, name, out, capsys, tmp_path):
    bad = looping(plain, name)
    assert ends(capsys, tmp_path, "merge", plain, bad, "--out", tmp_path / out) == 2


@pytest.mark.parametrize(
    "name", ["measurement", "verdict", "problem", "config", "device", "protocol", "toolchain", "run"]
)
def test_pack_refuses_it(plain, name, capsys, tmp_path):
    assert ends(capsys, tmp_path, "tables", "pack", looping(plain, name), "--out", tmp_path / "new.db") == 2


@pytest.mark.parametrize("words", [
    ("tables", "pack", "bad.db", "--out", "new.db"), ("merge", "bad.db", "--out", "new.db"),
    ("export", "bad.db", "--to", "jsonl", "--out", "new"),
])  # fmt: skip
def test_what_repeats_is_seen_before_any_deadline(plain, words, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(read_timeouts, "BULK_S", 600.0)
    monkeypatch.setattr(read_timeouts.Deadline.begin, "__defaults__", (600.0,))
    bad = looping(plain, "measurement")
    began = time.thread_time()
    assert run([str(tmp_path / word) if word in ("new", *BAD) else word for word in words]) == 2
    assert time.thread_time() - began < AT_ONCE
    assert f"{bad} is corrupted (its rows repeat, or are not in the order of their keys)" in capsys.readouterr().err


@pytest.mark.parametrize("words", [
    ("tables", "pack", "bad.db", "--out", "new.db"), ("export", "bad.db", "--to", "jsonl", "--out", "new"),
    ("merge", "bad.db", "--out", "new.db"),
])  # fmt: skip
def test_long_values_that_share_their_end_are_refused(plain, words, capsys, tmp_path):
    bad = Path(shutil.copy(plain, tmp_path / "bad.db"))
    file = File(bad)
    runs = ("run-1", "run-2", "run-3", "run-4")
    file.long_table("run", {canonical.key(run): (None, run, "{}") for run in runs}, length=57_780)
    file.save()
    assert ends(capsys, tmp_path, *(tmp_path / word if word in ("new", *BAD) else word for word in words)) == 2


@pytest.mark.parametrize("damage", [
    "UPDATE config SET text = x'00'", "UPDATE problem SET text = 'mm' WHERE id = 1", "UPDATE run SET text = x'00'",
])  # fmt: skip
def test_pack_names_the_table_that_is_damaged(plain, damage, capsys, tmp_path):
    bad = Path(shutil.copy(plain, tmp_path / "bad.db"))
    with closing(sqlite3.connect(bad)) as db, db:
        db.execute("INSERT INTO problem SELECT 1, text, op, m, n, k, family FROM problem LIMIT 1")
        db.execute(damage)
    assert ends(capsys, tmp_path, "tables", "pack", bad, "--out", tmp_path / "new.db") == 2


@pytest.mark.parametrize(("name", "to"), [
    ("measurement", "csv"), ("measurement", "jsonl"), ("measurement", "verdicts"), ("measurement", "lookup-table"),
    ("run", "jsonl"), ("verdict", "verdicts"),
])  # fmt: skip
def test_export_refuses_it(plain, name, to, capsys, tmp_path):
    assert ends(capsys, tmp_path, "export", looping(plain, name), "--to", to, "--out", tmp_path / "new") == 2


@pytest.mark.parametrize("name", ["measurement", "verdict"])
def test_show_refuses_it(plain, name, capsys, tmp_path):
    assert ends(capsys, tmp_path, "show", looping(plain, name)) == 2


@pytest.mark.parametrize("name", ["record", "verdict"])
def test_show_refuses_a_packed_one(packed, name, capsys, tmp_path):
    assert ends(capsys, tmp_path, "show", looping(packed, name)) == 2


@pytest.mark.parametrize("name", ["measurement", "device"])
def test_tables_refuses_it(plain, name, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMDB_TABLES", str(looping(plain, name)))
    assert ends(capsys, tmp_path, "tables") == 2


@pytest.mark.parametrize("name", ["record", "device"])
def test_tables_refuses_a_packed_one(packed, name, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMDB_TABLES", str(looping(packed, name)))
    assert ends(capsys, tmp_path, "tables") == 2


@pytest.mark.parametrize("name", ["record", "verdict", "config", "problem"])
def test_verify_finds_a_packed_one(packed, name, capsys, tmp_path):
    assert ends(capsys, tmp_path, "verify", looping(packed, name)) == 1
