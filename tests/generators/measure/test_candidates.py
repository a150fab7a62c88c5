"""The candidates of a problem are found once, and rows name the source of the kernel that they measured."""

from collections import Counter

import pytest

from gemmdb.devices.detect import cpu
from gemmdb.generators.backend import Candidate, Job, Outcome, row
from gemmdb.generators.build import queue
from gemmdb.generators.build.recorded import Recorded, Rounds, tables_with
from gemmdb.generators.effort import named
from gemmdb.generators.measure import candidates
from gemmdb.generators.measure.cpu.measurer import CpuBackend
from gemmdb.generators.measure.cpu.space import CpuSpace
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.kernels import triton
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup.acceptance.ranges import QUICK_CALLS
from gemmdb.table.measurement import Protocol, Status, Times
from gemmdb.table.writer import Store

H200 = Device("cuda", "sm90", "NVIDIA H200", 132, 140)
PROBLEM, OTHER = (Problem.gemm("mm", m=m, n=64, k=64, dtype="fp32", constant_weight=True) for m in (4, 8))


def test_the_candidates_of_each_problem_are_found_once(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    asked = Counter()
    real = CpuSpace.candidates

    def counted(self, problem, device, effort):
        asked[problem, effort.name] += 1
        return real(self, problem, device, effort)

    monkeypatch.setattr(CpuSpace, "candidates", counted)
    backend, effort = CpuBackend(), named("quick")
    recorded = Recorded((Query(PROBLEM, cpu()),), (Query(OTHER, cpu(), {"m": (2, 32)}),))
    with Store.open(tmp_path / "empty.db"):
        pass
    with tables_with(tmp_path / "empty.db") as tables:
        wanted = Rounds(backend, effort, tables).first(recorded)
    jobs = queue.jobs(wanted.problems, backend, effort)
    assert {PROBLEM, OTHER} < {job.problem for job in jobs}
    assert set(asked.values()) == {1}
    assert all(job.candidates == tuple(real(CpuSpace(), job.problem, cpu(), effort)) for job in jobs)
    assert backend.space.candidates(PROBLEM, cpu(), named("full")) != jobs[0].candidates
    assert set(asked.values()) == {1}


def test_a_row_of_our_own_kernel_names_the_kernels_source(replay_backend):
    gemv = Config.of("triton", "gemv", block_n=8, block_k=256, unroll=2, dequant="cast", warps=4, stages=5)
    job = Job(Problem.gemm("mm", m=1, n=64, k=64), Protocol("host", "cold", 1, 30), (Candidate(ATEN), Candidate(gemv)))
    times, backend = Times(50.0, 49.0, 51.0, 30, 100.0), replay_backend([])
    found = {c: row(job, Outcome(c, Status.OK, times), backend, "run").toolchain for c in (ATEN, gemv)}
    assert found[ATEN] == backend.toolchain
    assert found[gemv].source == triton.digest("gemv")
    assert found[gemv].klass == backend.toolchain.klass


def test_the_candidates_of_many_problems_are_computed_in_processes(monkeypatch):
    monkeypatch.setattr(candidates, "PER_PROCESS", 2)
    effort = named("lean", "cuda")
    problems = [Problem.gemm("mm", m=m, n=256, k=512) for m in (17, 24, 40, 64)]
    space = candidates.CachedSpace(CudaSpace())
    space.compute(problems, H200, effort)
    monkeypatch.setattr(space, "_space", None)  # What was computed is not computed again.
    assert [space.candidates(one, H200, effort) for one in problems] == [
        tuple(CudaSpace().candidates(one, H200, effort)) for one in problems
    ]


def test_the_candidates_of_few_problems_are_computed_when_they_are_needed():
    space, problem = candidates.CachedSpace(CudaSpace()), Problem.gemm("mm", m=17, n=256, k=512)
    space.compute([problem], H200, named("lean", "cuda"))
    assert not space._known
    assert space.candidates(problem, H200, named("lean", "cuda"))


def test_a_quick_build_on_a_cpu_times_a_size_as_often_as_a_compile_assumes():
    """A summary tells which ranges a build leaves out."""
    quick, problem = named("quick", "cpu"), Problem.gemm("mm", m=4, n=768, k=256, dtype="bf16", constant_weight=True)
    device = Device("cpu", "cpu", "Test CPU", 2, isa="avx512_bf16")
    assert quick.samples * sum(not one.rejected for one in CpuSpace().candidates(problem, device, quick)) == QUICK_CALLS
