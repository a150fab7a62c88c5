"""What is compiled before it is measured: what fails or dies, what is waited for, and in which order jobs compile."""

import multiprocessing
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from queue import SimpleQueue

import pytest

from gemmdb.generators.backend import Candidate, Job, Outcome
from gemmdb.generators.measure.cuda import precompiler
from gemmdb.generators.measure.cuda.artifacts import Emitted
from gemmdb.generators.measure.cuda.compile_pool import Priority
from gemmdb.generators.measure.cuda.precompiler import Precompiler
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.menus import cutlass as cutlass_menu
from gemmdb.key.problem import Problem
from gemmdb.processes.pool import Stopped
from gemmdb.table.measurement import Protocol, Status

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
