"""What the rows of a build say of the software that they were measured with."""

from gemmdb.generators.backend import Candidate, Job, Outcome, row
from gemmdb.kernels import triton
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Protocol, Status, Times


def test_a_row_of_our_own_kernel_names_the_kernels_source(replay_backend):
    gemv = Config.of("triton", "gemv", block_n=8, block_k=256, unroll=2, dequant="cast", warps=4, stages=5)
    job = Job(Problem.gemm("mm", m=1, n=64, k=64), Protocol("host", "cold", 1, 30), (Candidate(ATEN), Candidate(gemv)))
    times, backend = Times(50.0, 49.0, 51.0, 30, 100.0), replay_backend([])
    found = {c: row(job, Outcome(c, Status.OK, times), backend, "run").toolchain for c in (ATEN, gemv)}
    assert found[ATEN] == backend.toolchain
    assert found[gemv].source == triton.digest("gemv")
    assert found[gemv].klass == backend.toolchain.klass
