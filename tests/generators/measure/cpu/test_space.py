"""The candidates of a CPU, and the rules that exclude some."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import strategies

from gemmdb.devices import detect
from gemmdb.generators.effort import named, names
from gemmdb.generators.measure.candidates import only_aten
from gemmdb.generators.measure.cpu import space
from gemmdb.generators.measure.cpu.space import AUTO, CpuSpace, rejection, template, threadings
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import Toolchain
from gemmdb.lookup import lowering

SPACE = CpuSpace()
NAMES = names("cpu")


def cpu(threads):
    return Device("cpu", "cpu", "Test CPU", threads, isa="avx512")


SIZES = st.integers(0, 5000)


@given(strategies.problems, st.sampled_from(NAMES), st.sampled_from([1, 2, 16]))
def test_a_build_leaves_to_aten_what_strict_mode_does(problem, effort, threads):
    """Strict mode accepts ATen for exactly those GEMMs that a build does not measure for want of other kernels."""
    device = cpu(threads)
    left_out = only_aten(problem, device, SPACE, named(effort))
    assert bool(left_out) == bool(lowering.only_aten(Query(problem, device)))


@given(
    st.sampled_from(["mm", "addmm", "int_mm", "mixed_mm"]), SIZES, SIZES, SIZES, st.booleans(),
    st.sampled_from(NAMES), st.sampled_from([1, 2, 6, 16, 96]),
)  # fmt: skip
def test_candidates_are_distinct_and_begin_with_aten(op, m, n, k, constant, effort, threads):
    problem = Problem.gemm(op, m=m, n=n, k=k, constant_weight=constant)
    found = SPACE.candidates(problem, cpu(threads), named(effort))
    configs = [candidate.config for candidate in found]
    assert configs[0] == ATEN
    assert len(configs) == len(set(configs))
    assert bool(found[0].rejected) == (0 in (m, n, k))
    assert list(found) == list(SPACE.candidates(problem, cpu(threads), named(effort)))
    for candidate in found:
        if not candidate.rejected and candidate.config.backend == "cpp":
            factors = [candidate.config.values[f"threads_{axis}"] for axis in "mnk"]
            assert factors == [0, 0, 0] or factors[0] * factors[1] * factors[2] == threads


def test_quick_tries_aten_and_a_few():
    problem = Problem.gemm("mm", m=16, n=1024, k=1024, dtype="fp32", constant_weight=True)
    counts = [len(SPACE.candidates(problem, cpu(2), effort)) for effort in map(named, NAMES)]
    assert counts[0] == 5  # ATen counts twice, in the form for symbolic rows, too.
    assert counts[0] < counts[1] < counts[2]


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem.gemm("mm", m=8, n=64, k=64), "need constant weights"),
        (Problem.gemm("int_mm", m=8, n=64, k=64, constant_weight=True), "int_mm"),
        (Problem.gemm("mm", m=0, n=64, k=64, constant_weight=True), "size zero"),
    ],
)
def test_where_the_template_is_illegal_one_row_says_why(problem, reason):
    found = SPACE.candidates(problem, cpu(2), named("full"))
    (candidate,) = (candidate for candidate in found if candidate.config.backend == "cpp")
    assert reason in str(candidate.rejected)


def test_thread_factors_are_those_of_the_device():
    problem = Problem.gemm("mm", m=64, n=1024, k=1024, constant_weight=True)
    config = template((1, 4, 1), AUTO)
    assert not rejection(config, problem, cpu(4))
    assert "threads" in str(rejection(config, problem, cpu(2)))


@pytest.mark.parametrize("supported", [False, True])
def test_tf32_is_a_problem_of_cpus_that_have_it(monkeypatch, supported):
    monkeypatch.setattr(detect, "_cpuinfo", lambda: {"flags": "avx2 amx_fp16" if supported else "avx2"})
    problem = Problem.gemm("mm", m=8, n=64, k=64, dtype="fp32", tf32=True)
    assert bool(rejection(ATEN, problem, cpu(2))) is not supported


def test_threadings_fit_the_problem_and_move_little():
    small = Problem.gemm("mm", m=1, n=4096, k=4096, constant_weight=True)
    ways = threadings(small, 16)
    assert all(way[0] == 1 for way in ways)
    assert ways[0] == (1, 16, 1)
    large = Problem.gemm("mm", m=4096, n=4096, k=64, constant_weight=True)
    assert threadings(large, 16)[0] == (4, 4, 1)


def test_one_thread_has_no_threadings_to_try():
    problem = Problem.gemm("mm", m=64, n=1024, k=1024, constant_weight=True)
    configs = [candidate.config for candidate in SPACE.candidates(problem, cpu(1), named("full"))]
    assert {config.values["threads_n"] for config in configs if config.backend == "cpp"} == {0}


def batch(batch, m, n, k):
    return Problem.gemm("bmm", batch=batch, m=m, n=n, k=k)


def fp8(op="scaled_mm", **rest):
    return Problem.gemm(op, m=24, n=48, k=256, dtype="fp8_e4m3", **rest)


@pytest.mark.parametrize(("problem", "release", "reason"), [
    *((batch(*sizes), "2.13.0", "") for sizes in ((3, 8, 16, 32), (1, 8, 16, 32), (3, 1, 16, 32))),
    (batch(0, 8, 16, 32), "2.13.0", "size zero"),
    *((batch(*sizes), "2.13.0", "multiplies their elements") for sizes in ((3, 8, 16, 1), (3, 1, 1, 32))),
    *((fp8(constant_weight=True), release, "") for release in ("2.11.0+cpu", "2.12.0", "2.13.0a0")),
    (fp8(scales="row", constant_weight=True), "2.11.0+cpu", "from torch 2.12 on"),
    *((fp8(scales="row", constant_weight=True), release, "") for release in ("2.12.0", "2.13.0a0")),
    (fp8("grouped_mm", groups=5), "2.13.0", "ATen multiplies groups of fp8 only on a GPU"),
])  # fmt: skip
def test_aten_is_all_there_is_for_a_batch_and_for_fp8(monkeypatch, problem, release, reason):
    monkeypatch.setattr(space, "installed", lambda kind: Toolchain(torch=release))
    (candidate,) = SPACE.candidates(problem, cpu(2), named("full"))
    assert candidate.config == ATEN
    assert reason in str(candidate.rejected)
    assert bool(reason) == bool(candidate.rejected)
