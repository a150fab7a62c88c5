"""Which artifacts are compiled first, how many at a time, and what becomes of them when a process dies."""

import importlib
import multiprocessing
import subprocess
import sys
import time
from concurrent.futures import wait
from concurrent.futures.process import BrokenProcessPool

import pytest

from gemmdb.generators.measure.cuda.compile_pool import PRELOAD, WEIGHTS, CompilePool, Priority

ARTIFACTS = """
import dataclasses, os, sys, time
from pathlib import Path
from gemmdb.generators.measure.cuda.artifacts import Built


@dataclasses.dataclass(frozen=True)
class Artifact:
    key: str
    log: str
    work: str = ""

    def build(self, capability):
        if self.key == "die":
            os._exit(3)
        if self.key == "imports":
            return Built(" ".join(sorted({"torch", "torch._inductor.graph"} & set(sys.modules))), 0.0)
        note(self.log, f"{self.key} begins")
        time.sleep(0.2)
        note(self.log, f"{self.key} ends")
        return Built("", float(capability))


def note(path, text):
    with Path(path).open("a") as file:
        file.write(text + "\\n")
"""


@pytest.fixture
def artifact(importable, monkeypatch, tmp_path):
    """Makes artifacts that note in a file when they begin and end."""
    importable("artifacts_that_note", ARTIFACTS)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    module = importlib.import_module("artifacts_that_note")
    yield lambda key, work="": module.Artifact(key, str(tmp_path / "log"), work)
    del sys.modules["artifacts_that_note"]


@pytest.fixture
def pool():
    made = []

    def make(processes):
        made.append(CompilePool(90, processes))
        return made[-1]

    yield make
    for one in made:
        one.close()


def events(tmp_path):
    return (tmp_path / "log").read_text().split("\n")[:-1]


def test_what_is_urgent_goes_first_and_an_artifact_can_be_hurried(pool, artifact, tmp_path):
    one = pool(1)
    futures = [one.submit(artifact("first"), "triton", Priority.NORMAL)]
    while not futures[0].running():
        time.sleep(0.01)
    asked = [("later", Priority.LATER), ("hurried", Priority.LATER), ("normal", Priority.NORMAL)]
    asked += [("urgent", Priority.URGENT)]
    futures += [one.submit(artifact(key), "triton", priority) for key, priority in asked]
    one.hurry("hurried", Priority.URGENT)
    one.hurry("normal", Priority.LATER)  # Nothing is put off.
    assert {future.result(60).seconds for future in futures} == {90.0}
    begun = [event.split()[0] for event in events(tmp_path) if event.endswith("begins")]
    assert begun == ["first", "urgent", "hurried", "normal", "later"]


def test_kinds_share_the_processors(pool, artifact, tmp_path):
    four = pool(4)
    wait([four.submit(artifact(kind), kind, Priority.NORMAL) for kind in ("cutlass", "triton")], 60)  # Processes start.
    artifacts = [(f"{kind}-{index}", kind) for kind in ("cutlass", "triton") for index in range(6)]
    wait([four.submit(artifact(key), kind, Priority.NORMAL) for key, kind in artifacts], 60)
    running, most = set(), 0
    for event in events(tmp_path):
        key, what = event.split()
        (running.add if what == "begins" else running.discard)(key)
        most = max(most, len(running))
    assert most <= 4
    begun = [event for event in events(tmp_path) if event.endswith("begins")]
    assert len(begun) == 14
    # What came later is not put off to the end.
    assert begun.index("triton-0 begins") < begun.index("cutlass-5 begins")


def test_what_a_worker_waits_for_has_more_processors_than_nvcc_for_later(pool, artifact, tmp_path):
    three = pool(3)
    artifacts = [(f"cutlass-{index}", "cutlass", Priority.NORMAL) for index in range(9)]
    artifacts += [(f"inductor-{index}", "inductor", Priority.URGENT) for index in range(6)]
    wait([three.submit(artifact(key), kind, priority) for key, kind, priority in artifacts], 60)
    begun = [event.split()[0] for event in events(tmp_path) if event.endswith("begins")]
    assert begun.index("inductor-5") < begun.index("cutlass-6")


def test_artifacts_that_need_the_same_do_not_wait_for_each_other_in_processes(pool, artifact, tmp_path):
    two = pool(2)
    asked = [("a1", "nvcc"), ("a2", "nvcc"), ("a3", "nvcc"), ("b", "other"), ("c", ""), ("d", "")]
    wait([two.submit(artifact(key, work), "cutlass", Priority.NORMAL) for key, work in asked], 60)
    running = set()
    for event in events(tmp_path):
        key, what = event.split()
        (running.add if what == "begins" else running.discard)(key)
        assert len(running & {"a1", "a2", "a3"}) <= 1
    begun = [event.split()[0] for event in events(tmp_path) if event.endswith("begins")]
    assert sorted(begun) == sorted(key for key, _ in asked)
    assert begun.index("b") < begun.index("a2") < begun.index("a3")


def test_an_artifact_can_be_asked_for_again(pool, artifact):
    one = pool(1)
    for kind in ("triton", "triton", "cutlass", "triton"):
        assert one.submit(artifact("again"), kind, Priority.NORMAL).result(60).seconds == 90.0


def test_processes_can_start_before_there_is_anything_to_compile(pool, artifact):
    three = pool(3)
    before = set(multiprocessing.active_children())
    three.warm("triton", 2)
    started = set(multiprocessing.active_children()) - before
    assert len(started) == 2
    assert three.submit(artifact("one"), "triton", Priority.NORMAL).result(60).seconds == 90.0
    running = set(multiprocessing.active_children()) - before
    three.close()
    three.warm("triton", 2)  # Nothing starts, and nobody is told.
    assert not set(multiprocessing.active_children()) - before - running
    deadline = time.monotonic() + 60
    # No join: the executor waits for its processes in another thread, and only one of the two learns of the end.
    while any(process.is_alive() for process in running):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_process_that_dies_breaks_what_is_running_and_nothing_that_waits(pool, artifact, tmp_path):
    one = pool(1)
    dead, waiting = (one.submit(artifact(key), "triton", Priority.NORMAL) for key in ("die", "good"))
    with pytest.raises(BrokenProcessPool):
        dead.result(60)
    assert waiting.result(60).failure == ""


def test_after_closing_everything_is_cancelled(pool, artifact):
    one = pool(1)
    waiting = [one.submit(artifact(f"{index}"), "triton", Priority.NORMAL) for index in range(5)]
    one.close()
    one.close()
    assert waiting[-1].cancelled()
    assert one.submit(artifact("late"), "triton", Priority.NORMAL).cancelled()


def test_processes_that_generate_code_begin_with_inductor_imported_and_no_others(pool, artifact):
    one = pool(1)
    found = {kind: one.submit(artifact("imports"), kind, Priority.NORMAL).result(120).failure for kind in WEIGHTS}
    assert found == {"triton": "", "inductor": "torch torch._inductor.graph", "cutlass": "torch torch._inductor.graph"}


def test_what_is_imported_before_a_fork_asks_no_driver():
    """One that was asked refuses to work after the fork."""
    script = (
        "import torch\n"
        "def ask(): raise AssertionError\n"
        "torch._C._cuda_getDeviceCount = torch.cuda._lazy_init = ask\n"
        f"import os, {PRELOAD}; print(torch.cuda.is_initialized(), os.environ['PYTORCH_NVML_BASED_CUDA_CHECK'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "1"]
