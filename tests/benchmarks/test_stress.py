"""The stress tools work on a small scale."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from benchmarks.common import json_lines
from benchmarks.stress import compiles, contents, crowd, invented, readers, rows, victims, writers
from gemmdb.generators.files.verify import verify
from gemmdb.table.measurement import Status

ROOT = Path(__file__).parents[2]


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for each other take minutes beside other workers of the tests."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("one_thread")
def test_two_processes_compile_with_one_table(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "compiles.jsonl"
    command = [sys.executable, "-m", "benchmarks.stress", "compiles", "--processes", "2", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=280)
    (found,) = json_lines(out)
    for name in ("alone", "beside a writer"):
        assert (found[name]["compiled"], found[name]["errors"], found[name]["error"]) == (2, 0, "")
        assert found[name]["memory_mib"] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("one_thread")
def test_processes_compile_while_a_build_writes_their_table(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "building.jsonl"
    command = [sys.executable, "-m", "benchmarks.stress", "building", "--processes", "2", "--rows", "4"]
    call = [*command, "--pause", "4", "--out", str(out)]
    subprocess.run(call, cwd=ROOT, check=True, capture_output=True, timeout=600)
    (found,) = json_lines(out)
    assert (found["code"], found["errors"], found["error"], found["last"]) == (0, 0, "", 2)
    assert found["pairs"] > 1
    assert [found[name] for name in ("missing", "more", "untimed", "given_up", "findings") if found[name]] == []
    assert sum(found["compiles"].values()) >= 2


def test_eight_compilers_run_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty processes call the script; the compiler notes how many of it run."""
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\ntouch "$1/$$"; sleep 0.05; ls "$1" | wc -l >> "$2"; rm "$1/$$"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    script = compiles.few_at_a_time(tmp_path / "g++")
    running, counts = tmp_path / "running", tmp_path / "counts"
    running.mkdir()
    started = [subprocess.Popen([script, running, counts]) for _ in range(20)]
    assert [one.wait(60) for one in started] == [0] * 20
    found = [int(line) for line in counts.read_text().split()]
    assert len(found) == 20
    assert 1 < max(found) <= compiles.COMPILERS


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stress") / "table.db"
    assert rows.make(path, 0, 40) == path.stat().st_size
    return path


def test_an_invented_table_is_sound_and_its_problems_are_distinct(table: Path) -> None:
    assert verify(table) == []
    assert len({problem.text for problem in invented.problems(5_000)}) == 5_000
    assert rows.look_up(table, 40, immutable=False)["median"] > 0


def test_a_step_tells_its_memory_and_a_failing_one_ends_the_tool(capfd: pytest.CaptureFixture[str]) -> None:
    # Bytes that are written: pages of zeros take no memory before.
    found, nothing = rows.step(lambda: len(b"x" * (200 * 2**20))), rows.step(lambda: 0)
    assert found["result"] == 200 * 2**20
    assert 190 < found["peak_mib"] - nothing["peak_mib"] < 250
    with pytest.raises(SystemExit, match="a step failed"):
        rows.step(lambda: json.loads("{"))
    assert "JSONDecodeError" in capfd.readouterr().err


def test_a_few_readers_and_writers(table: Path, tmp_path: Path) -> None:
    found = readers.measured(table, 3, 20)
    assert (found["lookups"], found["errors"]) == (60, 0)
    seconds, told, errors = crowd.at_once(3, partial(writers.write, tmp_path / "user.db", 2))
    assert seconds > 0
    assert [len(one) for one in told] == [2, 2, 2]
    assert errors == []
    assert verify(tmp_path / "user.db") == []
    _, told, errors = crowd.at_once(2, lambda number: [1 / number])
    assert told == [[1.0]]
    assert "ZeroDivisionError" in errors[0]
    stop = multiprocessing.get_context("fork").Event()
    stop.set()
    readers.write(tmp_path / "user.db", 0.0, stop)


def test_what_differs_between_two_tables_is_named() -> None:
    ok, oom = frozenset({Status.OK}), frozenset({Status.OOM})
    wanted = {("p", "a"): ok, ("p", "b"): ok, ("p", "c"): ok, ("p", "d"): frozenset({Status.ERROR})}
    found = {("p", "a"): ok | oom, ("p", "b"): oom, ("p", "c"): frozenset({Status.ERROR}), ("q", "a"): ok}
    assert contents.differences(wanted, found) == {
        "missing": ["p d"], "more": ["q a"], "untimed": ["p c: error"], "given_up": ["p b"],
    }  # fmt: skip


def test_what_a_node_needs_is_not_taken_for_a_worker(tmp_path: Path) -> None:
    names = (b"ray::Measuring.answer", b"ray::IDLE", b"ray::DashboardAgent", b"ray::RuntimeEnvAgent")
    assert [victims._kind(tmp_path, [name, b""]) for name in names] == ["worker", "idle", "other", "other"]
