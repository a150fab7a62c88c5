"""The measurer of a GPU around its process, which here pretends to have a GPU: what dies or hangs costs its own row."""

import importlib
import sys
from concurrent.futures import Future
from dataclasses import replace

import pytest
from kit.gpu import algorithm

from gemmdb.errors import GemmdbError
from gemmdb.generators.backend import Candidate, Job, Outcome
from gemmdb.generators.effort import Effort
from gemmdb.generators.measure.cuda.artifacts import Emitted
from gemmdb.generators.measure.cuda.measurer import CudaMeasurer
from gemmdb.generators.measure.cuda.precompiler import Precompiler
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem
from gemmdb.processes.pool import Stopped
from gemmdb.table.measurement import Protocol, Status, Times

SESSION = """
import os, pathlib, time
from gemmdb.kernels.config import ATEN
from gemmdb.generators.measure.cuda.measurer import Loaded, Round
from gemmdb.table.measurement import Status

ENDS = {128: Loaded(Status.CRASH, detail="illegal address", fatal=True), 256: Loaded(Status.WRONG, 0.5)}

GONE = pathlib.Path(os.environ["GPU_GONE"])

begun, expected = [], []


def begin(inductor):
    if GONE.exists():
        raise RuntimeError("CUDA error: no CUDA-capable device is detected")
    begun.append(inductor)


def asked():
    return begun


def expect(problem, configs):
    expected.extend(config.values["block_k"] for config in configs)
    if 512 in expected:
        os._exit(3)


def heard():
    return expected


def proposed(problem, most):
    if problem.m == 9:
        os._exit(3)
    return [f"config {number}" for number in range(most)]


def near(problem, best, known, most):
    assert set(best) < known
    return [config.values["custom"] for config in best] + [most]


def measure(problem, configs, protocol, samples):
    assert configs[0] == ATEN
    if problem.m == 8:
        GONE.touch()
    if GONE.exists():
        failed = Loaded(Status.CRASH, detail="CUDA error: unspecified launch failure", fatal=True)
        return Round({ATEN: failed})
    if problem.m == 9:
        os._exit(3)
    loads, us = {}, {}
    for config in configs:
        depth = config.values.get("block_k", 0)
        if depth == 512:
            os._exit(3)
        if depth == 1024:
            time.sleep(100)
        loads[config] = Loaded(Status.OOM if problem.m == 7 else Status.OK, 1e-3)
        loads[config] = ENDS.get(depth, loads[config])
        if loads[config].fatal:
            return Round(loads)
        if loads[config].status is Status.OK:
            us[config] = [10.0 + depth] * samples
    return Round(loads, us, 1000.0)
"""
EFFORT = Effort(name="test", breadth=0, samples=5, estimate=3, drop=1.05, keep=5, compile_s=20.0, measure_s=3.0)
PROTOCOL = Protocol("graph", "cold", 20, 5)
PROBLEM = Problem.gemm("mm", m=16, n=512, k=512)


@pytest.fixture
def gpu(importable, monkeypatch, tmp_path):
    """A measurer that compiles nothing and whose processes run SESSION."""
    importable("session_of_a_test", SESSION)
    monkeypatch.setenv("GPU_GONE", str(tmp_path / "gone"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    pool = Precompiler(90, 232448, 1, lambda problem, config: [])
    found = CudaMeasurer(0, EFFORT, pool, importlib.import_module("session_of_a_test"))
    yield found
    found.close()
    pool.close()
    del sys.modules["session_of_a_test"]


def statuses(gpu, make, *depths, problem=PROBLEM):
    configs = [ATEN, *(make.tile(block_k=depth) for depth in depths)]
    outcomes = gpu.measure(problem, configs, PROTOCOL, 5)
    assert [outcome.config for outcome in outcomes] == configs
    for outcome, depth in zip(outcomes, (0, *depths), strict=True):
        if outcome.status is Status.OK:
            assert outcome.times.median_us == 10.0 + depth
            assert outcome.times.aten_us == 10.0
    return [str(outcome.status) for outcome in outcomes]


def test_a_gpu_that_disappears_ends_the_work_and_leaves_no_errors_behind(gpu, make, tmp_path):
    assert statuses(gpu, make, 16) == ["ok", "ok"]
    with pytest.raises(GemmdbError, match=r"^GPU 0 no longer works \(RuntimeError: CUDA error: no CUDA"):
        statuses(gpu, make, 16, 64, problem=replace(PROBLEM, m=8))
    (tmp_path / "gone").unlink()
    assert statuses(gpu, make, 16) == ["ok", "ok"]


def test_a_gemm_whose_reference_dies_is_an_error_of_its_own(gpu, make):
    assert statuses(gpu, make, 16, 64, problem=replace(PROBLEM, m=9)) == ["crash", "error", "error"]
    assert statuses(gpu, make, 16) == ["ok", "ok"]


def test_the_process_that_confirms_is_started_where_winners_are_confirmed(gpu):
    gpu.start(confirms=False)
    gpu.ready(60)
    assert gpu.process.call(10, gpu.functions.asked).value == [False]
    assert gpu._other is None
    gpu.start()
    gpu.fresh().ready(60)
    assert gpu.fresh().process.call(10, gpu.functions.asked).value == [True]
    assert gpu.fresh().process.pid != gpu.process.pid


def test_inductor_is_loaded_where_something_has_to_be_measured_as_emitted_code(gpu, make):
    def prepared(config):
        gpu.prepare([Job(PROBLEM, PROTOCOL, (Candidate(ATEN), Candidate(config)))])
        gpu.ready(60)
        return gpu.process.call(10, gpu.functions.asked).value

    gpu.start(confirms=False)
    assert prepared(make.tile(block_k=64)) == [False]
    for _ in range(2):
        assert prepared(Emitted.code_of(make.tile(block_k=64))) == [False, True]


def test_the_process_names_the_configs_that_a_library_proposes(gpu, make):
    assert gpu.proposed(PROBLEM) == ()  # Nothing is asked for.
    gpu.effort = replace(EFFORT, proposals=2)
    assert gpu.proposed(PROBLEM) == ["config 0", "config 1"]
    assert gpu.proposed(replace(PROBLEM, m=9)) == ()  # It died.
    assert statuses(gpu, make, 16) == ["ok", "ok"]


def test_configs_like_cublaslts_best_are_tried_unless_others_are_much_faster(gpu, make):
    def outcome(config, us):
        return Outcome(config, Status.OK, Times(us, us, us, 3, 10.0))

    found = [outcome(ATEN, 10.0), Outcome(algorithm(custom=7), Status.ERROR)]
    found += [outcome(algorithm(custom=custom), us) for custom, us in ((1, 9.0), (2, 8.0), (3, 9.5), (4, 8.5))]
    assert gpu.near(PROBLEM, found) == ()  # Nothing is asked for.
    gpu.effort = replace(EFFORT, neighbours=6)
    assert gpu.near(PROBLEM, found) == [2, 4, 6]
    assert gpu.near(PROBLEM, [*found, outcome(make.tile(), 7.0)]) == [2, 6]
    assert gpu.near(PROBLEM, [*found, outcome(make.tile(), 4.0)]) == ()
    assert gpu.near(PROBLEM, []) == ()


def test_who_waits_for_the_process_can_stop_waiting(gpu, make):
    assert gpu.ready(0.0)  # It was not asked to start: it will, with the first measurement.
    gpu.start(confirms=False)
    assert not gpu.ready(0.0)
    assert gpu.ready(60.0)
    assert statuses(gpu, make, 16) == ["ok", "ok"]


def test_a_config_is_compiled_when_all_that_it_needs_is(make):
    class Pending:
        def __init__(self):
            self.futures = [Future(), Future()]

        def submit(self, problem, config):
            return self.futures

    measurer = CudaMeasurer(0, EFFORT, Pending())
    seen = [measurer.compiled(PROBLEM, make.tile(block_k=16))]
    for future in measurer.precompiler.futures:
        future.set_result(None)
        seen.append(measurer.compiled(PROBLEM, make.tile(block_k=16)))
    measurer.close()
    assert seen == [False, False, True]


@pytest.mark.parametrize(("depths", "found"), [
    ((16, 256, 64), ["ok", "ok", "wrong", "ok"]),
    ((16, 128, 64, 256), ["ok", "ok", "crash", "ok", "wrong"]),  # The first request timed nothing.
])  # fmt: skip
def test_wrong_candidates_and_those_that_spoil_the_process_cost_their_own_row(gpu, make, depths, found):
    assert statuses(gpu, make, *depths) == found
    assert gpu.busy_s == pytest.approx(1e-3)


@pytest.mark.parametrize(("depth", "status"), [(512, "crash"), (1024, "timeout")])
def test_what_kills_or_stops_the_process_is_found_by_trying_each(gpu, make, depth, status):
    assert statuses(gpu, make, 16, depth, 128, 256, 64) == ["ok", "ok", status, "crash", "wrong", "ok"]
    assert statuses(gpu, make, 16) == ["ok", "ok"]


def test_without_a_reference_there_are_no_times(gpu, make):
    assert statuses(gpu, make, 16, problem=Problem.gemm("mm", m=7, n=512, k=512)) == ["oom", "oom"]


def test_another_process_confirms_and_stays(gpu, make):
    job = Job(PROBLEM, PROTOCOL, (Candidate(ATEN), Candidate(make.tile(block_k=16))))
    ready = []
    gpu.start().prepare([job], ready.append)
    assert ready == [job]
    other = gpu.fresh()
    assert statuses(gpu, make, 16) == statuses(other, make, 16) == ["ok", "ok"]
    assert gpu.fresh() is other
    assert None is not gpu.process.pid != other.process.pid is not None
    assert gpu.busy_s == pytest.approx(2e-3)
    gpu.close()
    with pytest.raises(Stopped):
        other.measure(PROBLEM, [ATEN], PROTOCOL, 5)


def test_emitted_code_is_loaded_before_it_is_measured_and_nothing_else(gpu, make):
    gpu.expect(PROBLEM, [make.tile(block_k=32), Emitted.code_of(make.tile(block_k=64)), Emitted.code_of(make.tile())])
    gpu.expect(PROBLEM, [make.tile(block_k=128)])
    assert statuses(gpu, make, 16) == ["ok", "ok"]
    assert gpu.process.call(10, gpu.functions.heard).value == [64, make.tile().values["block_k"]]


def test_what_dies_while_it_is_loaded_ahead_costs_nothing(gpu, make):
    gpu.expect(PROBLEM, [Emitted.code_of(make.tile(block_k=512))])
    assert statuses(gpu, make, 16, 64) == ["ok", "ok", "ok"]
    gpu.close()
    gpu.expect(PROBLEM, [Emitted.code_of(make.tile(block_k=64))])
    gpu.ready(60)
