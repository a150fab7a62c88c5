"""The host's GPUs are shared out: tasks that run at the same time never have one in common, and none is lost."""

import argparse
import json
import sys

import pytest

from benchmarks import h200
from benchmarks import torch as torch_tools
from benchmarks.command import parser
from benchmarks.h200 import figures
from benchmarks.h200.figures import Task

PROGRAM = """
import json, os, sys, time
begun = time.time()
time.sleep(0.4)
print(json.dumps([os.environ["CUDA_VISIBLE_DEVICES"].split(","), begun, time.time(), sys.argv[1:]]))
"""


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Runs tasks on a host of three GPUs; what each printed, by name."""
    monkeypatch.setattr(figures, "visible_gpus", lambda: ["3", "5", "6"])

    def run(tasks, minutes):
        table = tmp_path / "t.db"
        options = argparse.Namespace(out=tmp_path, table=table, minutes=minutes, caches=tmp_path / "caches")
        figures.run(options, list(tasks))
        said = {path.stem: path.read_text() for path in tmp_path.glob("*.log")}
        return {name: json.loads(text) for name, text in said.items() if text.startswith("[")}

    return run


def task(name, gpus, minutes=1.0):
    return Task(name, (sys.executable, "-c", PROGRAM, "{out}.json", "{table}"), minutes, gpus)


def test_tasks_share_the_gpus_out(ran, tmp_path):
    found = ran([task("a", 2), task("b", 2), task("c", 1), task("d", 3)], 2)
    assert {name: len(gpus) for name, (gpus, *_) in found.items()} == {"a": 2, "b": 2, "c": 1, "d": 3}
    for one, (gpus, begun, ended, arguments) in found.items():
        assert arguments == [str(tmp_path / f"{one}.json"), str(tmp_path / "t.db")]
        for other, (others, since, until, _) in found.items():
            assert one == other or not set(gpus) & set(others) or ended <= since or until <= begun
    assert found["c"][1] < found["b"][1]  # It found room first.


def test_a_task_that_wants_more_gpus_than_there_are_gets_all(ran):
    found = ran([task("one", 1), task("many", 6)], 2)
    assert found["many"][0] == ["3", "5", "6"]
    assert found["one"][2] <= found["many"][1]


def test_a_task_that_could_not_end_in_time_is_not_begun_and_a_late_one_is_ended(ran, capsys):
    assert list(ran([task("long", 1, minutes=3), task("late", 1, minutes=0.002), task("short", 1)], 2)) == ["short"]
    said = capsys.readouterr().out
    assert "long: left out" in said
    assert "late: exit code 124" in said


PACKAGES = {"benchmarks.h200": h200.TOOLS, "benchmarks.torch": torch_tools.TOOLS}


@pytest.mark.parametrize("task", [task for task in figures.TASKS if task.command[2] in PACKAGES], ids=lambda t: t.name)
def test_every_task_calls_a_tool_with_options_that_it_has(task):
    package, tool, *rest = task.command[2:]
    parsed = parser(package, PACKAGES[package], tool).parse_args([tool, *rest])
    assert parsed.main.__module__ == f"{package}.{tool}"


def test_the_other_tasks_run_gemmdb_and_the_tests_on_a_gpu():
    others = {task.name: task.command[2] for task in figures.TASKS if task.command[2] not in PACKAGES}
    assert others == {"verify": "gemmdb", "tests": "pytest"}


def test_tasks_run_in_the_order_they_are_named_in():
    names = [task.name for task in figures.chosen(["verify", "models-1", "repeat", "models-16-bf16"])]
    assert names == ["verify", "models-1-int8", "models-16-int8", "models-1-bf16", "models-16-bf16", "repeat"]
    assert figures.chosen([]) == list(figures.TASKS)


CACHES = (
    'import json, os; print(json.dumps([os.environ.get(n) for n in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]))'
)


def test_builds_share_their_caches_and_the_others_start_without(ran, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/given")
    shared = tmp_path / "caches" / "builds"
    (shared / "ab").mkdir(parents=True)
    (shared / "ab" / "kernel.cu").write_text("")
    command = (sys.executable, "-c", CACHES)
    found = ran([Task("one", command, 1, 0, True), Task("two", command, 1, 1, True), Task("model", command, 1)], 2)
    assert found["one"] == found["two"] == [str(shared), "/given"]
    assert found["model"] == [str(shared.with_name("model")), None]
    assert (shared.with_name("model") / "ab" / "kernel.cu").exists()
