"""The processes that compile: what goes first, how many at a time, what fails or dies, and what is waited for."""

import importlib
import multiprocessing
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from queue import SimpleQueue

import pytest

from gemmdb.generators.backend import Candidate, Job, Outcome
from gemmdb.generators.measure.cuda import precompiler
from gemmdb.generators.measure.cuda.artifacts import Emitted
from gemmdb.generators.measure.cuda.compile_pool import PRELOAD, WEIGHTS, CompilePool, Priority
from gemmdb.generators.measure.cuda.precompiler import Precompiler
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.menus import cutlass as cutlass_menu
from gemmdb.key.problem import Problem
from gemmdb.processes.pool import Stopped
from gemmdb.table.measurement import Protocol, Status

ARTIFACTS = """
import dataclasses, os, sys, time
from pathlib import Path
from gemmdb.generators.measure.cuda.artifacts import Built


@dataclasses.dataclass(frozen=True)
class Artifact:
    key: str
    work: str = ""
    log: str = ""
    optional: bool = False

    def build(self, capability):
        what, _, seconds = self.key.partition(" ")
        if what == "die":
            os._exit(3)
        if what == "sleep":
            time.sleep(float(seconds))
        if what == "raise":
            raise OSError("no space left")
        if what == "memory":
            return Built("AcceleratorError: CUDA error: out of memory", 0.25)
        if what == "imports":
            return Built(" ".join(sorted({"torch", "torch._inductor.graph"} & set(sys.modules))), 0.0)
        if self.log:
            self.note("begins")
            time.sleep(0.2)
            self.note("ends")
        return Built("", 0.25, 10**6 if what == "large" else 0)

    def note(self, text):
        with Path(self.log).open("a") as file:
            file.write(f"{self.key} {text}\\n")
"""


@pytest.fixture
def kind(importable, monkeypatch, tmp_path):
    """A class of artifacts that do what their key says."""
    importable("artifacts_of_a_test", ARTIFACTS)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    yield importlib.import_module("artifacts_of_a_test").Artifact
    del sys.modules["artifacts_of_a_test"]


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
    """Makes pools of so many processes."""
    made = []

    def make(count):
        made.append(CompilePool(90, count))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_processes_that_compile_do_not_import_torch():
    modules = "gemmdb.generators.measure.cuda.compile_pool, gemmdb.generators.measure.cuda.compilers"
    script = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_what_is_urgent_goes_first_and_an_artifact_can_be_hurried(processes, artifact, tmp_path):
    one = processes(1)
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
    four = processes(4)
    wait([four.submit(artifact(kind), kind, Priority.NORMAL) for kind in ("cutlass", "triton")], 60)  # Processes start.
    artifacts = [(f"{kind}-{index}", kind) for kind in ("cutlass", "triton") for index in range(6)]
    wait([four.submit(artifact(key), kind, Priority.NORMAL) for key, kind in artifacts], 60)
    assert max(map(len, together(tmp_path))) <= 4
    order = begun(tmp_path)
    assert len(order) == 14
    assert order.index("triton-0") < order.index("cutlass-5")  # What came later is not put off to the end.


def test_what_a_worker_waits_for_has_more_processors_than_nvcc_for_later(processes, artifact, tmp_path):
    three = processes(3)
    artifacts = [(f"cutlass-{index}", "cutlass", Priority.NORMAL) for index in range(9)]
    artifacts += [(f"inductor-{index}", "inductor", Priority.URGENT) for index in range(6)]
    wait([three.submit(artifact(key), kind, priority) for key, kind, priority in artifacts], 60)
    order = begun(tmp_path)
    assert order.index("inductor-5") < order.index("cutlass-6")


def test_artifacts_that_need_the_same_do_not_wait_for_each_other_in_processes(processes, artifact, tmp_path):
    two = processes(2)
    asked = [("a1", "nvcc"), ("a2", "nvcc"), ("a3", "nvcc"), ("b", "other"), ("c", ""), ("d", "")]
    wait([two.submit(artifact(key, work), "cutlass", Priority.NORMAL) for key, work in asked], 60)
    assert all(len(running & {"a1", "a2", "a3"}) <= 1 for running in together(tmp_path))
    order = begun(tmp_path)
    assert sorted(order) == sorted(key for key, _ in asked)
    assert order.index("b") < order.index("a2") < order.index("a3")


def test_an_artifact_can_be_asked_for_again(processes, artifact):
    one = processes(1)
    for kind in ("triton", "triton", "cutlass", "triton"):
        assert one.submit(artifact("again"), kind, Priority.NORMAL).result(60).seconds == 0.25


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


TASKS: dict[Problem, tuple[str, ...]] = {}


@pytest.fixture
def pool(monkeypatch, kind):
    """A pool of two processes whose artifacts do what TASKS says of a problem."""
    monkeypatch.setattr(precompiler, "compiler", lambda config, artifact=None: "triton")
    found = Precompiler(90, 232448, 2, lambda problem, config: [kind(key) for key in TASKS[problem]])
    yield found
    found.close()


def problem(m):
    return Problem.gemm("mm", m=m, n=512, k=512)


def waiting(pool, m, *tasks, limit_s=60.0):
    TASKS[problem(m)] = tasks
    return pool.failure(problem(m), ATEN, limit_s)


def test_parts_that_fail_say_why(pool):
    assert waiting(pool, 1, "good", "also good") is None
    assert waiting(pool, 2, "good", "raise")[:2] == (Status.ERROR, "OSError: no space left")
    assert "1000000 bytes of shared memory" in waiting(pool, 3, "large")[1]
    assert waiting(pool, 5, "memory")[0] is Status.OOM
    assert waiting(pool, 4, "sleep 3", limit_s=0.3)[0] is Status.TIMEOUT
    assert pool.seconds(problem(1), ATEN) == 0.5


@pytest.mark.parametrize("task", ["sleep 3", "memory"])
def test_an_optional_artifact_may_be_missing(pool, task):
    needs = pool.needs
    pool.needs = lambda problem, config: [replace(made, optional=True) for made in needs(problem, config)]
    assert waiting(pool, 6, task, limit_s=0.3) is None


def test_what_everything_needs_can_be_built_first(pool, kind):
    TASKS[problem(9)] = ("good",)
    pool.warm(kind("good"))
    (early,) = pool._futures.values()
    assert pool.submit(problem(9), ATEN) == [early]
    assert early.result(60).failure == ""


def test_waiting_for_a_process_is_not_compiling(pool):
    TASKS.update({problem(m): (f"sleep 1.0{m}",) for m in range(4)})
    for m in range(4):
        pool.submit(problem(m), ATEN)
    assert pool.failure(problem(3), ATEN, 1.8) is None  # It comes after another one in either process.


def test_a_part_that_takes_its_process_down_is_not_tried_for_ever(pool):
    assert waiting(pool, 1, "die") is None  # The process that measures compiles it itself, and is isolated.
    assert waiting(pool, 2, "good") is None
    assert waiting(pool, 1, "die") is None
    assert waiting(pool, 1, "die") is None
    assert all(future.done() for future in pool.submit(problem(2), ATEN))
    assert pool.submit(problem(1), ATEN) == []


def test_closing_ends_every_wait_and_every_process(pool):
    outcome = []

    def wait():
        try:
            waiting(pool, 1, "sleep 100")
        except Stopped as error:
            outcome.append(error)

    others = set(multiprocessing.active_children())  # Inductor keeps processes that compile, after other tests.
    thread = threading.Thread(target=wait)
    thread.start()
    deadline = time.monotonic() + 30
    while not (children := set(multiprocessing.active_children()) - others) and time.monotonic() < deadline:
        time.sleep(0.05)
    pool.close()
    thread.join(10)
    assert len(outcome) == 1
    assert children
    # The executor's own thread waits for them too: whoever comes second is told for a moment that they live.
    deadline = time.monotonic() + 10
    while any(child.is_alive() for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(child.is_alive() for child in children)
    with pytest.raises(Stopped):
        waiting(pool, 2, "good")


def job(m, *configs):
    return Job(problem(m), Protocol("graph", "cold", 20, 30), tuple(map(Candidate, configs or (ATEN,))))


def test_a_job_is_ready_when_its_last_part_is(pool):
    TASKS.update({problem(1): ("sleep 0.6", "one"), problem(2): ("one",), problem(3): ()})
    found = SimpleQueue()
    for m in (1, 2, 3):
        pool.prepare(job(m), lambda ready: found.put((ready.problem.m, all(f.done() for f in futures(pool, ready)))))
    assert [found.get(timeout=60) for _ in range(3)] == [(3, True), (2, True), (1, True)]
    pool.prepare(job(1), lambda ready: found.put(ready.problem.m))  # All is there.
    assert found.get_nowait() == 1


def futures(pool, ready):
    return [future for config in ready.legal for future in pool.submit(ready.problem, config)]


def test_a_job_whose_compiler_dies_is_ready_to_be_measured(pool):
    TASKS[problem(1)] = ("die",)
    found = SimpleQueue()
    pool.prepare(job(1), found.put)
    assert found.get(timeout=60).problem == problem(1)


@dataclass(frozen=True)
class Named:
    """An artifact that is never built."""

    key: str
    optional: bool = False


class Recorder:
    """Notes what a pool asks for, and compiles nothing."""

    def __init__(self):
        self.begun = []

    def submit(self, artifact, kind, priority):
        self.begun.append((artifact.key, kind, priority))
        return Future()

    def hurry(self, key, priority):
        self.begun.append((key, "hurry", priority))

    def close(self):
        pass


def recorded(monkeypatch, needs):
    """A pool that only notes what it is to compile."""
    pool = Precompiler(90, 232448, 2, needs)
    monkeypatch.setattr(pool, "_pool", Recorder())
    return pool, pool._pool.begun


def test_nvcc_begins_with_what_most_problems_wait_for(monkeypatch, h200):
    tasks = {1: ("rare",), 2: ("often",), 3: ("often", "twice"), 4: ("often", "twice")}
    library = cutlass_menu.configs(problem(1), h200)[0]
    pool, begun = recorded(monkeypatch, lambda problem, config: list(map(Named, tasks[problem.m])))
    pool.begin(job(m, library) for m in tasks)
    assert [key for key, kind, _ in begun if kind == "cutlass"] == ["often", "twice", "rare"]


def test_what_waits_for_nvcc_anyway_makes_way_and_winners_go_first(monkeypatch, h200, make):
    library, tile = cutlass_menu.configs(problem(1), h200)[0], make.tile()
    pool, begun = recorded(monkeypatch, lambda problem, config: [Named(f"{type(config).__name__} {config.backend}")])
    pool.prepare(job(1, tile, library), print)
    pool.prepare(job(2, tile), print)
    pool.prepare(job(1, Emitted.code_of(tile)), print)
    assert begun == [
        ("Config cutlass", "cutlass", Priority.NORMAL),
        ("Config triton", "triton", Priority.LATER),
        ("Config triton", "hurry", Priority.NORMAL),  # A problem wants it that need not wait for nvcc.
        ("Emitted triton", "inductor", Priority.URGENT),
    ]
    earlier = replace(job(3, Emitted.code_of(tile)), searched=(Outcome(tile, Status.ERROR),))
    pool, begun = recorded(monkeypatch, lambda problem, config: [Named(f"{problem.m}")])
    pool.prepare(earlier, print)
    assert begun == [("3", "inductor", Priority.NORMAL)]  # Of a race before this build.
