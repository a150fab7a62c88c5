"""Live tuning: which candidates, how many samples. The measuring itself: tests/inductor/benchmark/test_tune.py."""

import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from kit.devices import H200
from kit.gpu import algorithm

from gemmdb.devices import detect
from gemmdb.errors import GemmdbError
from gemmdb.generators.live import planning
from gemmdb.generators.measure import backends
from gemmdb.generators.measure.cuda.space import CudaSpace, from_menu
from gemmdb.inductor.benchmark import client
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.default_mode import padded_form
from gemmdb.key.problem import Problem
from gemmdb.lookup.ranking import LIVE_CANDIDATES
from gemmdb.settings import Policy
from gemmdb.table.measurement import Protocol

CPU = detect.cpu()
SMALL = Problem.gemm("mm", m=8, n=64, k=64, dtype="fp32", constant_weight=True)
LARGE = SMALL.resized(4096, 4096, 4096)


def job(problem, *candidates, budget_s=1.0):
    request = client.Request(problem, CPU, Path("unused.db"), candidates, budget_s)
    backend = backends.backend_for(CPU)
    made = planning.job(request, backend)
    return made, planning.within(request, backend, made)


def blocking(n):
    threads = {f"threads_{size}": 0 for size in "mnk"}
    return Config.of("cpp", "packed_gemm", **threads, blocks_m=n, blocks_n=1, blocks_k=1)


def test_at_most_four_candidates_are_tried_the_illegal_ones_left_out():
    legal, beyond = [blocking(n) for n in (1, 2, 3, 4, 5)], blocking(100)
    assert job(SMALL, beyond, *legal)[0].legal == (ATEN, *legal[:4])
    aten, *menu = job(SMALL)[0].legal  # Without candidates, the head of the menu.
    assert aten == ATEN
    assert 0 < len(menu) <= LIVE_CANDIDATES


def test_what_nvcc_has_to_compile_is_not_tried():
    slow = Config.of(
        "cutlass", "gemm", tile_m=128, tile_n=128, tile_k=64, cluster_m=1, cluster_n=1, schedule="pingpong",
        split_k=1, swizzle=1, raster="auto", swap=0,
    )  # fmt: skip
    large = Problem.gemm("mm", m=512, n=1024, k=1024)
    backend = Gpu()
    request = client.Request(large, H200, Path("user.db"), (slow,))
    assert planning.job(request, backend).legal == (ATEN,)
    cost = slow.spec.cost
    patient = replace(request, policy=Policy(live_cost=cost, compile_cost=cost))
    assert planning.job(patient, backend).legal == (ATEN, slow)
    for strict in (Policy(live_cost=cost), Policy(deny="cutlass", live_cost=cost, compile_cost=cost)):
        assert planning.job(replace(request, policy=strict), backend).legal == (ATEN,)
    head = replace(request, candidates=())  # Of the menu.
    assert len(planning.job(head, backend).legal) > 1
    assert planning.job(replace(head, policy=Policy(deny="triton|cublaslt")), backend).legal == (ATEN,)


def test_what_a_library_proposes_must_be_allowed_and_fit_into_the_budget():
    request = client.Request(Problem.gemm("mm", m=512, n=1024, k=1024), H200, Path("user.db"), budget_s=8.0)

    def accepts(**changes):
        return planning.job(replace(request, **changes), Gpu()).accepts(algorithm())

    assert accepts()
    assert not accepts(policy=Policy(deny="cublaslt"))
    assert not accepts(budget_s=1e-6)


class Gpu:
    """What a job asks of the backend of a GPU, without one."""

    device = H200
    space = CudaSpace()

    def protocols(self, chosen):
        return [Protocol("graph", "cold", 20, 30)]


@pytest.mark.parametrize("candidates", [(), tuple(from_menu(Problem.gemm("mm", m=512, n=4096, k=4093), H200)[:6])])
def test_where_rows_are_misaligned_padded_gemms_are_among_the_four(candidates):
    """Inductor's own pass, which would time one, is kept from it. What it would run comes first."""
    misaligned = Problem.gemm("mm", m=512, n=4096, k=4093)
    request = client.Request(misaligned, H200, Path("user.db"), candidates)
    legal = planning.job(request, Gpu()).legal
    assert len(legal) == 1 + LIVE_CANDIDATES
    assert legal[-2:] == (padded_form(misaligned), Config.of("aten", "padded", multiple=64))
    assert legal[1:-2] == (candidates[:2] or legal[1:-2])
    aligned = replace(request, problem=misaligned.resized(512, 4096, 4096))
    assert "padded" not in [config.kernel for config in planning.job(aligned, Gpu()).legal]
    denied = replace(request, policy=Policy(deny="padded"))
    assert "padded" not in [config.kernel for config in planning.job(denied, Gpu()).legal]


@pytest.mark.parametrize(
    ("size", "budget_s", "most"), [(1024, 0.3, 4), (16384, 1.0, 4), (12288, 0.3, 3), (16384, 0.3, 0), (32768, 1.0, 0)]
)
def test_of_a_large_gemm_fewer_are_tried(size, budget_s, most):
    large = Problem.gemm("mm", m=size, n=size, k=size)
    request = client.Request(large, H200, Path("user.db"), budget_s=budget_s)
    made = planning.job(request, Gpu())
    assert len(made.legal) == 1 + most
    why = planning.rejection(made, request, Gpu())
    assert (why is None) == bool(most)
    assert most or why.reason == f"ATen and one more would take longer than {budget_s:g} s of the device"


def test_whoever_has_a_gpu_measured_need_not_load_torch():
    program = """
        import sys
        from gemmdb.kernels.config import ATEN
        from gemmdb.generators.live import planning
        from gemmdb.generators.measure.cuda import backend, artifacts
        from gemmdb.key.problem import Problem
        assert artifacts.required(Problem.gemm("mixed_mm", m=8, n=64, k=64, fusion="scale"), ATEN)
        print("torch" in sys.modules)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_failure_in_the_process_is_an_error_here(tmp_path):
    request = client.Request(SMALL, CPU, tmp_path / "user.db")
    request.table.write_text("this is no table")
    with pytest.raises(GemmdbError, match=r"user\.db"):
        client.tune([request])
    client.close()


def test_the_budget_limits_the_samples_and_leaves_the_protocol_alone():
    made, generous = job(SMALL, budget_s=100.0)
    same, short = job(SMALL, budget_s=0.01)
    assert made.protocol == same.protocol
    assert generous.samples == made.protocol.samples
    assert short.samples == planning.FEWEST_SAMPLES
    assert job(LARGE)[1].samples < generous.samples
