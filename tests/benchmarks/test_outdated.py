"""Which problems `benchmarks.h200 outdated` lists."""

from benchmarks.h200.outdated import lacking, told
from gemmdb import Problem
from gemmdb.devices import registry
from gemmdb.generators import effort as efforts
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.kernels.config import ATEN

DEVICE, EFFORT = registry.find("NVIDIA H200"), efforts.named("standard", "cuda")


def ours(problem):
    """The configs of Triton that a build tries today."""
    found = [one.config for one in CudaSpace().candidates(problem, DEVICE, EFFORT)]
    return [one for one in found if one.backend == "triton" and not one.kernel.startswith("inductor_")]


def test_a_problem_lacks_the_configs_that_no_row_has():
    whole = Problem.gemm("mixed_mm", m=16, n=4096, k=4096)
    half, dense = Problem.gemm("mixed_mm", m=32, n=4096, k=4096), Problem.gemm("mm", m=16, n=512, k=512)
    known = ours(half)
    rows = {whole: {ATEN, *ours(whole)}, half: {ATEN, *known[len(known) // 2 :]}, dense: {ATEN}}
    found = {one.problem: one.part for one in lacking(rows, DEVICE, EFFORT)}
    assert found == {whole: 0.0, half: (len(known) // 2) / len(known)}
    (line,) = told(list(lacking(rows, DEVICE, EFFORT)), 0.25)
    assert line.startswith("mixed_mm: 2 problems lack ")
    assert line.endswith("1 at least 25%")


def test_block_scales_have_a_kernel_of_cuda_too():
    blocks = Problem.gemm("scaled_mm", m=16, n=4096, k=4096, scales="block")
    (found,) = lacking({blocks: {ATEN, *ours(blocks)}}, DEVICE, EFFORT)
    assert 0.2 < found.part < 0.8
