"""Expected times of builds against those of recorded builds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest
from kit.replay import DEVICE, ReplayBackend, rows_of

from gemmdb.devices import detect, load, registry, speed
from gemmdb.devices.load import Load
from gemmdb.generators import effort as efforts
from gemmdb.generators import estimate, shapes
from gemmdb.generators.backend import Job
from gemmdb.generators.build import queue
from gemmdb.generators.build.expected import expected_of
from gemmdb.generators.files import archive
from gemmdb.generators.measure.cpu import compiled
from gemmdb.generators.measure.cpu.measurer import CpuBackend
from gemmdb.generators.measure.cpu.space import CpuSpace
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.generators.progress import Tracker
from gemmdb.inductor.benchmark import limits
from gemmdb.key.problem import Problem
from gemmdb.lookup.ranking import LIVE_CANDIDATES

RECORDED = Path(__file__).parents[2] / "benchmarks/results/h200/2026-11-22/build.json"
BUILT_ON_FOUR = RECORDED.parents[1] / "dense/built-2026-11-28e.jsonl.xz"
FACTOR = 1.5
PIPELINED = 22
"""The first recorded build that compiled ahead as builds do now."""
LEAN = (6626, 2800, 2995, 684, 170, 300)
"""Numbers of jobs of the builds with effort `lean`: dense GEMMs, and those with a residual."""
EXPERTS = (101, 162)
"""Numbers of jobs of the builds of grouped_mm alone."""
CUDA = (359, 238, 64)
"""Those of builds of `cutlass:scaled_blocks` alone: nvcc compiled the same few kernels for each problem's emitted code,
as the archive did not have them yet; in the last, ATen has no reference for most problems."""
QUICK = efforts.named("quick", "cpu")
SLOWNESS = 0.55
"""Of the machine on which builds on a CPU were recorded. It was not recorded: one speed has to explain them all."""


def cpu_seconds(problems: Sequence[Problem], slower: float = 1.0, slowness: float = 1.0) -> float:
    """Expected seconds of a build on two cores of a machine that is that many times slower than an idle one, which is
    that many times slower than that of the rates."""
    backend = ReplayBackend(rows_of(problems), space=CpuSpace(), slowness=lambda: slowness)
    jobs = queue.jobs(problems, backend, QUICK)
    start_s = estimate.start_s(backend, QUICK, slower)
    return start_s + slower * sum(estimate.job_s(job, backend, QUICK) for job in jobs)


def five() -> list[Problem]:
    """Five GEMMs of a small model."""
    packed = {"constant_weight": True}
    return [
        *(Problem.gemm("mm", m=m, n=1024, k=1024, dtype="fp32", **packed) for m in (4, 16)),
        *(Problem.gemm("addmm", m=16, n=1024, k=512, dtype=dtype, **packed) for dtype in ("fp32", "bf16")),
        Problem.gemm("mixed_mm", m=8, n=1024, k=1024, dtype="bf16", **packed),
    ]


def layers() -> list[Problem]:
    """Two layers at both ends of the range of their batch."""
    sizes = [(m, n, k) for m in (2, 16) for n, k in ((512, 256), (256, 512))]
    return [Problem.gemm("addmm", m=m, n=n, k=k, dtype="fp32", constant_weight=True) for m, n, k in sizes]


@pytest.mark.parametrize(
    ("problems", "queued", "took_s"), [(None, 2.75, 292.7), (five(), 3.5, 180.3), (layers(), 5.7, 259.0)]
)
def test_a_build_on_a_cpu_takes_what_is_expected(monkeypatch, problems, queued, took_s):
    """Recorded on the two cores of an AMD EPYC beside other programs; `queued` of them per core. The second build had
    a higher priority."""
    monkeypatch.setattr(load, "now", lambda seconds=0.5, threads=None: Load(2.0, threads=2))
    monkeypatch.setattr(load, "queued", lambda: queued)
    monkeypatch.setattr(detect, "cores", lambda: 2)
    slower = CpuBackend(DEVICE).slowdown()
    expected_s = cpu_seconds(problems or shapes.load("cpu-quick", "cpu"), slower, SLOWNESS)
    assert took_s / FACTOR < expected_s < took_s * FACTOR


def test_a_compile_says_of_a_cpu_what_a_build_of_as_few_candidates_takes():
    backend = ReplayBackend(rows_of(layers()), space=CpuSpace())
    jobs = [replace(job, candidates=job.candidates[:LIVE_CANDIDATES]) for job in queue.jobs(layers(), backend, QUICK)]
    # Live tuning confirms no winner.
    seconds = [estimate.job_s(job, backend, QUICK) - estimate.confirm_s(job, backend, QUICK) for job in jobs]
    first_s = estimate.start_s(backend, QUICK) + seconds[0]
    assert first_s / FACTOR < limits.CPU_FIRST_S < first_s * FACTOR
    assert all(one / FACTOR < limits.CPU_FURTHER_S < one * FACTOR for one in seconds[1:])


def recorded() -> list[dict]:
    found = [one for one in json.loads(RECORDED.read_text())[PIPELINED:] if one["jobs"] not in CUDA]
    return [one for one in found if not one["before"] or one["measured"] > 50]


@pytest.mark.parametrize("build", recorded(), ids=lambda one: f"{one['measured']} problems")
def test_a_build_on_a_gpu_takes_what_is_expected(build):
    """A build of a GPU takes as long as its candidates; how many a problem has is the space's affair."""
    rates = estimate.RATES["lean" if build["jobs"] in LEAN else "standard"]
    candidate_s = rates.candidate_s * (estimate.GROUPED if build["jobs"] in EXPERTS else 1.0)
    expected_s = rates.start_s + candidate_s * build["rows"] / build["lanes"]
    assert build["seconds"] / FACTOR < expected_s < build["seconds"] * FACTOR


@pytest.mark.parametrize(("preset", "effort", "rows"), [("dense", "lean", 28.7), ("h200-grouped", "standard", 22.8)])
def test_as_many_candidates_are_expected_as_were_tried(preset, effort, rows):
    """`rows`: recorded per problem, with confirmations."""
    device, chosen = registry.find("NVIDIA H200"), efforts.named(effort, "cuda")
    rates, seconds = estimate.RATES[effort], []
    for problem in shapes.load(preset, "cuda")[::40][:12]:
        candidates = tuple(CudaSpace().candidates(problem, device, chosen))
        backend = ReplayBackend([], device=device)
        (protocol,) = backend.protocols(chosen)
        seconds.append(estimate.job_s(Job(problem, protocol, candidates), backend, chosen))
    splits = estimate.GROUPED if preset == "h200-grouped" else 1.0
    tried = sum(seconds) / len(seconds) / (rates.candidate_s * splits)
    assert rows / FACTOR < tried < rows * FACTOR


def test_only_what_cublaslt_can_solve_counts_algorithms_that_it_proposes():
    """An int8 linear scales its output: builds of two took a third of what was expected."""
    device, effort = registry.find("NVIDIA H200"), efforts.named("standard", "cuda")
    backend = ReplayBackend([], device=device)
    (protocol,) = backend.protocols(effort)

    def expected_s(fusion: str, out: str) -> float:
        problem = replace(Problem.gemm("int_mm", m=64, n=4096, k=4096, dtype="int8"), fusion=fusion, out=out)
        # The same candidates for both: only the proposals differ.
        candidates = tuple(CudaSpace().candidates(replace(problem, fusion="scale", out="bf16"), device, effort))
        return estimate.job_s(Job(problem, protocol, candidates), backend, effort)

    proposals = effort.proposals + effort.neighbours
    more_s = expected_s("none", "int32") - expected_s("scale", "bf16")
    assert more_s == pytest.approx(proposals * estimate.RATES["standard"].library_s, rel=0.3)
    assert expected_s("scale", "bf16") < 1.5


def test_a_winner_that_is_only_confirmed_takes_less_than_a_whole_job():
    backend = ReplayBackend(rows_of(five()))
    job, *_ = queue.jobs(five(), backend, QUICK)
    outcomes = backend.measurer(0, QUICK).measure(job.problem, job.legal, job.protocol, 30)
    left = Job(job.problem, job.protocol, (), tuple(outcomes))
    assert 0 < estimate.job_s(left, backend, QUICK) < estimate.job_s(job, backend, QUICK) / 2


def test_a_problem_that_only_aten_can_run_takes_little():
    plain = Problem.gemm("mm", m=64, n=512, k=512, dtype="fp32")
    assert cpu_seconds([plain]) - estimate.RATES["cpu"].start_s < 4


def test_what_an_earlier_run_compiled_takes_less(monkeypatch, tmp_path):
    """Recorded on two cores: a build of two problems that said 38 s took 22 s, and a `verify` that said 27 s took 14 s,
    since an earlier run had compiled their candidates. ATen was not timed with symbolic rows then. The speed is that of
    the builds above."""
    monkeypatch.setattr(speed, "slowness", lambda: SLOWNESS)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    (tmp_path / "precompiled_headers").mkdir()  # Another program has compiled something.
    backend = CpuBackend(DEVICE)
    jobs = [replace(job, candidates=tuple(one for one in job.candidates if not one.config.spec.measured_only))
            for job in queue.jobs(layers()[2:], backend, QUICK)]  # fmt: skip
    start_s = estimate.start_s(backend, QUICK)

    def expected_s() -> tuple[float, float]:
        build_s = sum(estimate.job_s(job, backend, QUICK) for job in jobs)
        compile_s = sum(estimate.compile_s(job.problem, job.legal, backend, QUICK) for job in jobs)
        timed_s = sum(estimate.retimed_s(job.problem, job.legal, QUICK.samples, backend, QUICK) for job in jobs)
        return start_s + build_s, start_s + compile_s + timed_s

    cold = expected_s()
    measurer = backend.measurer(0, QUICK)
    measurer.note([(job.problem, config) for job in jobs for config in job.legal])
    measurer.close()
    build_s, verify_s = expected_s()
    assert build_s < 0.85 * cold[0]
    assert verify_s < 0.8 * cold[1]
    assert 22 / FACTOR < build_s < 22 * FACTOR
    assert 14 / FACTOR < verify_s < 14 * FACTOR
    # A note holds for one toolchain and as long as the cache.
    backend.toolchain = replace(backend.toolchain, torch="2.99.0")
    assert expected_s() == cold
    backend.toolchain = CpuBackend(DEVICE).toolchain
    (tmp_path / compiled.FOLDER).rename(tmp_path / "deleted")
    assert expected_s() == cold


def test_the_first_build_of_all_prepares_the_cache_of_the_compiler(monkeypatch, tmp_path):
    """The first candidate took 11 s beside other programs, and the same again 1 s."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    first_s = estimate.start_s(CpuBackend(DEVICE), QUICK)
    (tmp_path / "cache" / "precompiled_headers").mkdir(parents=True)
    assert first_s - estimate.start_s(CpuBackend(DEVICE), QUICK) == estimate.RATES["cpu"].cold_s > 10


def test_what_waits_for_nvcc_takes_as_long_as_nvcc():
    """Recorded on four GPUs: 160 GEMMs that said 110 s took 193 s. Most waited for CUTLASS kernels, which nvcc compiled
    for 70 s, longer than the GPUs had other GEMMs to measure."""
    device, effort = registry.find("NVIDIA H200"), efforts.named("standard", "cuda")
    rows = archive.read(BUILT_ON_FOUR)
    problems = dict.fromkeys(row.problem for row in rows)
    (protocol,) = ReplayBackend([]).protocols(effort)
    jobs = [Job(one, protocol, tuple(CudaSpace().candidates(one, device, effort))) for one in problems]
    slow = {job.problem for job in jobs if any(config.backend == "cutlass" for config in job.legal)}

    class FourGpus(ReplayBackend):
        overlap = True

        def awaited(self, jobs):
            return 1, slow

    backend = FourGpus([], workers=4, device=device)
    expected = expected_of(jobs, (), backend, effort, 4, (1.0, 1.0))
    said_s = expected.start_s + expected.left_s(0.0, expected.start_s)
    assert 193 / FACTOR < said_s < 193 * FACTOR
    assert expected.start_s + expected.work_s == pytest.approx(112, abs=2)
    assert expected.idle_s > 20
    # While they wait they are not slow, and what is left takes as long as before.
    waiting = Tracker(None, len(jobs), 0, expected)
    waiting.done_s, waiting.started = expected.work_s - expected.waiting_s, monotonic() - 60.0
    assert waiting.pace == pytest.approx(1.0, abs=0.01)
    assert waiting._eta() == pytest.approx(10 + expected.waiting_s, abs=2)


def test_atens_form_with_symbolic_rows_takes_a_fraction_of_a_template_to_compile():
    """0.3 s, where the template takes 1.5 s and more."""
    problem = layers()[0]
    backend = ReplayBackend([])
    configs = [one.config for one in CpuSpace().candidates(problem, DEVICE, QUICK)]
    others = [config for config in configs if not config.spec.measured_only]
    assert len(others) == len(configs) - 1
    all_, without = (estimate.compile_s(problem, some, backend, QUICK) for some in (configs, others))
    assert without < all_ < 1.1 * without


def test_what_is_compiled_alone_waits_for_the_last_compiler():
    """Three templates on two compilers take two turns; among those of other problems, one and a half."""
    problem, rate, backend = layers()[0], estimate.RATES["cpu"], ReplayBackend([])
    configs = [one.config for one in CpuSpace().candidates(problem, DEVICE, QUICK)]
    templates = [one for one in configs if one.backend == "cpp"]
    together, apart = (estimate.compile_s(problem, templates, backend, QUICK, apart) for apart in (False, True))
    assert (len(templates), DEVICE.units) == (3, 2)
    assert (together, apart) == (1.5 * rate.compile_s, 2 * rate.compile_s)
