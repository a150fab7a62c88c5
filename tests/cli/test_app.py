"""Exit codes, one-line errors and help of the application as a whole."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import pytest
import typer

import gemmdb as library
from gemmdb.cli import app, tables

COMMANDS = sorted(typer.main.get_command(app.app).commands)  # type: ignore[attr-defined]


def test_help_lists_every_command_and_the_usual_flow(process):
    done = process("--help")
    assert (done.code, done.err) == (0, "")
    positions = [done.out.index(f"gemmdb {name}") for name in ("record", "build", "coverage")]
    assert positions == sorted(positions)
    assert 'torch.compile(model, backend="gemmdb")' in done.out
    for name in COMMANDS:
        assert f"\n  {name} " in done.out


def test_no_arguments_is_help(gemmdb):
    done = gemmdb()
    assert (done.code, done.out) == (0, gemmdb("--help").out)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches(gemmdb, name):
    done = gemmdb(name, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"gemmdb {name}" in done.out.split("Examples:\n")[1]
    assert "Exit codes:" in done.out


def test_version(gemmdb):
    assert gemmdb("--version").out == f"gemmdb {library.__version__}\n"


def broken(kind: str, good: Path) -> Path:
    """A file that is no usable table, of that kind."""
    path = good.with_name(f"{kind}.db")
    if kind == "directory":
        path.mkdir()
    elif kind == "text":
        path.write_text("not a database, but long enough to have a header" * 10)
    elif kind == "empty":
        path.touch()
    elif kind == "foreign":
        sqlite3.connect(path).executescript("create table t (x)").close()
    elif kind == "newer":
        shutil.copy(good, path)
        with sqlite3.connect(path) as connection:
            connection.execute("pragma user_version = 99")
        connection.close()
    elif kind == "truncated":
        path.write_bytes(good.read_bytes()[:5000])
    return path


@pytest.mark.parametrize("kind", ["missing", "directory", "text", "empty", "foreign", "newer", "truncated"])
@pytest.mark.parametrize("command", [["verify", "{}"], ["merge", "{}", "--out", "c.db"], ["diff", "good.db", "{}"]])
def test_a_file_that_is_no_table_is_refused(gemmdb, make_table, kind, command):
    path = broken(kind, make_table("good.db"))
    gemmdb(*(word.format(path) for word in command)).refused(path.name)
    assert not Path("c.db").exists()


def test_a_broken_table_in_force_is_a_warning(gemmdb, make_table, flags, monkeypatch):
    good = make_table("good.db")
    text = broken("text", good)
    monkeypatch.setenv("GEMMDB_TABLES", f"{text}{os.pathsep}{good}")
    done = gemmdb("lookup", *flags)
    assert (done.code, done.err.count("\n")) == (0, 1)
    assert text.name in done.err


def test_a_closed_pipe_is_quiet(table):
    script = f"{sys.executable} -m gemmdb tables --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def crash(monkeypatch):
    """Makes `gemmdb tables` raise what a test gives."""

    def install(error: BaseException) -> None:
        def raising(*_: object) -> None:
            raise error

        monkeypatch.setattr(tables.Catalog, "load", raising)

    return install


def test_a_bug_is_one_line_and_exit_70(gemmdb, crash):
    crash(ValueError("two\nlines"))
    done = gemmdb("tables")
    assert (done.code, done.out, done.err.count("\n")) == (app.UNEXPECTED, "", 1)
    assert "ValueError: two lines" in done.err
    assert "GEMMDB_LOG=DEBUG" in done.err


def test_debug_shows_the_traceback(gemmdb, crash, monkeypatch):
    monkeypatch.setenv("GEMMDB_LOG", "debug")
    crash(ValueError("x"))
    assert "Traceback" in gemmdb("tables").err
    monkeypatch.delenv("GEMMDB_LOG")
    assert "Traceback" not in gemmdb("tables").err
    assert logging.getLogger("gemmdb").level == logging.WARNING


def test_ctrl_c_is_130(gemmdb, crash):
    crash(KeyboardInterrupt())
    done = gemmdb("tables")
    assert (done.code, done.out, done.err) == (130, "", "gemmdb: interrupted; no file was left incomplete\n")


@pytest.mark.parametrize("value", ["1", "0"])
def test_what_a_compile_serves_is_shown_with_a_note_while_gemmdb_is_disabled(gemmdb, table, monkeypatch, value):
    monkeypatch.setenv("GEMMDB_DISABLE", value)
    for command in ("lookup", "explain"):
        done = gemmdb(command, "--op", "mm", "--m", "1", "--n", "64", "--k", "64")
        assert ("GEMMDB_DISABLE is set, so a compile ignores gemmdb" in done.err) == (value == "1")
    assert "GEMMDB_DISABLE" not in gemmdb("tables").err


def test_tables_are_listed(gemmdb, table):
    done = gemmdb("tables", "--json")
    (entry,) = json.loads(done.out)["tables"]
    names = ["path", "arch", "device", "schema_version", "packed", "digest", "origin", "problems", "measurements"]
    assert list(entry) == names
    assert entry["path"] == str(table)
    assert (entry["arch"], entry["device"], entry["origin"]) == ("cpu", "Example CPU", "measured")
    assert (entry["problems"], entry["measurements"]) == ({"mm": 1}, 2)
    done = gemmdb("tables")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[1].split()[:3] == ["Example", "CPU", "cpu"]
    assert str(table) in done.out


def test_no_tables(gemmdb):
    assert json.loads(gemmdb("tables", "--json").out)["tables"] == []
    done = gemmdb("tables")
    assert (done.code, done.out) == (0, "")
    assert "gemmdb build" in done.err


@pytest.mark.timed
def test_help_and_lookup_are_quick(process, table, flags):
    """They take about 1.5 and 2.5 times as long as importing typer, whatever the machine, which is 0.14 s on a fast
    one; importing sqlite-utils by accident takes as long once more and a third, torch ten times."""

    def seconds(run: Callable[..., object], *arguments: object) -> float:
        # Processor time, which other load on the machine hardly changes.
        start = sum(getrusage(RUSAGE_CHILDREN)[:2])
        run(*arguments)
        return sum(getrusage(RUSAGE_CHILDREN)[:2]) - start

    typer = [sys.executable, "-c", "import typer.main, typer.rich_utils"]
    unit = min(seconds(subprocess.run, typer) for _ in range(9))
    assert min(seconds(process, "--help") for _ in range(9)) < 2.5 * unit
    assert min(seconds(process, "lookup", *flags) for _ in range(9)) < 3.4 * unit


def test_out_has_the_same_short_name_everywhere():
    from typer.main import get_command

    from gemmdb.cli.app import app

    def commands(group):
        for command in group.commands.values():
            yield from commands(command) if hasattr(command, "commands") else [command]

    found = {command.name: option.opts for command in commands(get_command(app)) for option in command.params
             if "--out" in option.opts}  # fmt: skip
    assert {"record", "build", "merge", "export", "import", "report"} <= set(found)
    assert [name for name, options in found.items() if "-o" not in options] == []
