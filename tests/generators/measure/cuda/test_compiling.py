"""The processes that compile: which artifacts go first, how many at a time, and what dies."""

import multiprocessing
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

import pytest

from gemmdb.generators.measure.cuda.compile_pool import PRELOAD, WEIGHTS, CompilePool, Priority


@pytest.fixture
def artifact(kind, tmp_path):
    """Makes artifacts that note in a file when they begin and end."""
    return lambda key, work="": kind(key, work, str(tmp_path / "log"))


def events(tmp_path):
    return [line.split() for line in (tmp_path / "log").read_text().splitlines()]


def begun(tmp_path):
    """The artifacts in the order in which they began."""
    return [key for key, what in events(tmp_path) if what == "begins"]


def together(tmp_path):
    """The artifacts that were being compiled, at each event."""
    running = set()
    for key, what in events(tmp_path):
        (running.add if what == "begins" else running.discard)(key)
        yield set(running)


@pytest.fixture
def processes():
    """Makes pools of so many processes, or of threads, which start at once."""
    made = []

    def make(count, executor=None):
        made.append(CompilePool(90, count, executor and (lambda kind: executor(count))))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_what_is_urgent_goes_first_and_an_artifact_can_be_hurried(processes, artifact, tmp_path):
    one = processes(1, ThreadPoolExecutor)
    futures = [one.submit(artifact("first"), "triton", Priority.NORMAL)]
    while not futures[0].running():
        time.sleep(0.01)
    asked = [("later", Priority.LATER), ("hurried", Priority.LATER), ("normal", Priority.NORMAL)]
    asked += [("urgent", Priority.URGENT)]
    futures += [one.submit(artifact(key), "triton", priority) for key, priority in asked]
    one.hurry("hurried", Priority.URGENT)
    one.hurry("normal", Priority.LATER)  # Nothing is put off.
    assert {future.result(60).seconds for future in futures} == {0.25}
    assert begun(tmp_path) == ["first", "urgent", "hurried", "normal", "later"]


def test_kinds_share_the_processors(processes, artifact, tmp_path):
    four = processes(4, ThreadPoolExecutor)
    artifacts = [(f"{kind}-{index}", kind) for kind in ("cutlass", "triton") for index in range(6)]
    wait([four.submit(artifact(key), kind, Priority.NORMAL) for key, kind in artifacts], 60)
    assert max(map(len, together(tmp_path))) <= 4
    order = begun(tmp_path)
    assert len(order) == 12
    assert order.index("triton-0") < order.index("cutlass-5")  # What came later is not put off to the end.


def test_what_a_worker_waits_for_has_more_processors_than_nvcc_for_later(processes, artifact, tmp_path):
    three = processes(3, ThreadPoolExecutor)
    artifacts = [(f"cutlass-{index}", "cutlass", Priority.NORMAL) for index in range(9)]
    artifacts += [(f"inductor-{index}", "inductor", Priority.URGENT) for index in range(6)]
    wait([three.submit(artifact(key), kind, priority) for key, kind, priority in artifacts], 60)
    order = begun(tmp_path)
    assert order.index("inductor-5") < order.index("cutlass-6")


def test_artifacts_that_need_the_same_do_not_wait_for_each_other_in_processes(processes, artifact, tmp_path):
    two = processes(2, ThreadPoolExecutor)
    asked = [("a1", "nvcc"), ("a2", "nvcc"), ("a3", "nvcc"), ("b", "other"), ("c", ""), ("d", "")]
    wait([two.submit(artifact(key, work), "cutlass", Priority.NORMAL) for key, work in asked], 60)
    assert all(len(running & {"a1", "a2", "a3"}) <= 1 for running in together(tmp_path))
    order = begun(tmp_path)
    assert sorted(order) == sorted(key for key, _ in asked)
    assert order.index("b") < order.index("a2") < order.index("a3")


def test_processes_can_start_before_there_is_anything_to_compile(processes, artifact):
    three = processes(3)
    before = set(multiprocessing.active_children())
    three.warm("triton", 2)
    started = set(multiprocessing.active_children()) - before
    assert len(started) == 2
    assert three.submit(artifact("one"), "triton", Priority.NORMAL).result(60).seconds == 0.25
    running = set(multiprocessing.active_children()) - before
    three.close()
    three.warm("triton", 2)  # Nothing starts, and nobody is told.
    assert not set(multiprocessing.active_children()) - before - running
    deadline = time.monotonic() + 60
    # No join: the executor waits for its processes in another thread, and only one of the two learns of the end.
    while any(process.is_alive() for process in running):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_process_that_dies_breaks_what_is_running_and_nothing_that_waits(processes, artifact, tmp_path):
    one = processes(1)
    dead, waiting = (one.submit(artifact(key), "triton", Priority.NORMAL) for key in ("die", "good"))
    with pytest.raises(BrokenProcessPool):
        dead.result(60)
    assert waiting.result(60).failure == ""


def test_after_closing_everything_is_cancelled(processes, artifact):
    one = processes(1)
    waiting = [one.submit(artifact(f"{index}"), "triton", Priority.NORMAL) for index in range(5)]
    one.close()
    one.close()
    assert waiting[-1].cancelled()
    assert one.submit(artifact("late"), "triton", Priority.NORMAL).cancelled()


def test_processes_that_generate_code_begin_with_inductor_imported_and_no_others(processes, artifact):
    one = processes(1)
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
