"""What has to be compiled before a candidate can run, emitted code among it, and with which ptxas."""

import copy
import importlib.util
import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
from kit.devices import H200

from gemmdb.generators.effort import named
from gemmdb.generators.measure.cpu.space import AUTO, template
from gemmdb.generators.measure.cuda import compilers
from gemmdb.generators.measure.cuda.artifacts import (
    Emission,
    Emitted,
    Library,
    compiler,
    only_emitted,
    required,
    required_promptly,
)
from gemmdb.generators.measure.cuda.measurer import CudaMeasurer
from gemmdb.generators.measure.cuda.precompiler import Precompiler
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.menus import cutlass as cutlass_menu
from gemmdb.key.problem import Problem

gemm = Problem.gemm
SCALED_WEIGHT = gemm("mixed_mm", m=64, n=4096, k=4096, fusion="scale")
TILE = Config.of(
    "triton", "inductor_mm", block_m=64, block_n=64, block_k=64, group_m=8, stages=3, warps=4
)  # fmt: skip


def test_emitted_code_is_a_candidate_of_its_own_in_every_process():
    for plain in (TILE, template(AUTO, (1, 1, 1))):
        emitted = Emitted.code_of(plain)
        assert emitted != plain
        assert len({emitted, plain, Emitted.code_of(plain)}) == 2
        assert (emitted, emitted.plain) == (Emitted.code_of(plain), plain)
        for config in (emitted, plain):
            for again in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config), copy.copy(config)):
                assert (type(again), again, hash(again)) == (type(config), config, hash(config))
                assert only_emitted(again) == only_emitted(config)
    assert only_emitted(TILE)


def test_emitted_code_is_one_artifact_for_each_problem():
    problem = gemm("mm", m=64, n=64, k=64)
    assert required(problem, TILE) == [Emission(problem, TILE)]
    assert Emission(problem, TILE).key == Emission(problem, Emitted.code_of(TILE)).key
    assert Emission(problem, TILE).key != Emission(gemm("mm", m=64, n=64, k=128), TILE).key


SIZES = {"m": 512, "n": 4096, "k": 4096}


@pytest.mark.parametrize("problems", [
    [gemm("bmm", batch=batch, m=64, n=64, k=128) for batch in (8, 9)],
    [gemm("scaled_mm", **SIZES, **rest) for rest in ({}, {"scales": "row"}, {"fast_accum": True})],
], ids=["bmm", "scaled_mm"])  # fmt: skip
def test_templates_of_inductor_are_emitted_code(problems):
    candidates = CudaSpace().candidates(problems[0], H200, named("standard", "cuda"))[1:]
    for candidate in (one for one in candidates if one.config.backend != "cublaslt"):
        assert only_emitted(candidate.config)
        assert required(problems[0], candidate.config) == [Emission(problems[0], candidate.config)]
        assert len({Emission(one, candidate.config).key for one in problems}) == len(problems)


def test_all_but_aten_is_confirmed_as_emitted_code(make):
    measurer = CudaMeasurer(0, named("standard", "cuda"), Precompiler(90, 232448, 1))
    for reduce in ("fixup", "kernel"):
        config = make.tile(split_k=2, reduce=reduce)
        assert measurer.emitted(config) == Emitted.code_of(config)
    assert measurer.emitted(ATEN) == ATEN
    measurer.close()


def test_what_surrounds_atens_gemm_is_compiled_with_it():
    bare, mixed = gemm("mm", m=64, n=4096, k=4096), gemm("mixed_mm", m=64, n=4096, k=4096)
    sizes = [len({artifact.key for artifact in required(problem, ATEN)}) for problem in (bare, mixed, SCALED_WEIGHT)]
    assert sizes == [1, 3, 4]  # The flush, the cast of the weight, the scale, default mode's code.
    *kernels, code = required(SCALED_WEIGHT, ATEN)
    assert (code, code.optional) == (Emission(SCALED_WEIGHT, ATEN), True)
    assert compiler(ATEN, code) == "inductor"
    assert {compiler(ATEN, artifact) for artifact in kernels} == {"triton"}
    assert not any(artifact.optional for artifact in kernels)
    assert required_promptly(SCALED_WEIGHT, ATEN) == kernels


@pytest.mark.parametrize(("rest", "count"), [({}, 1), ({"packing": "low-first"}, 3)])
def test_the_operator_of_a_tiled_int4_weight_needs_no_kernel_around_it(rest, count):
    problem = gemm("mixed_mm", m=16, n=4096, k=4096, weight_dtype="int4", **rest)
    assert len(required(problem, ATEN)) == count
    assert len(required_promptly(problem, ATEN)) == min(count, 2)


def test_sizes_do_not_change_which_library_is_compiled():
    one, other = (gemm("mixed_mm", m=512, n=n, k=k, fusion="scale") for n, k in ((4096, 4096), (1024, 14336)))
    for config in cutlass_menu.configs(one, H200):
        assert Library.of(one, config) == Library.of(other, config)
        assert [artifact.key for artifact in required(one, config)] == [Library.of(other, config).key]


def test_what_a_cutlass_kernel_leaves_to_another_is_compiled_by_triton():
    problem = gemm("mm", **SIZES, fusion="pointwise")
    config = cutlass_menu.configs(problem, H200)[0]
    assert [compiler(config, artifact) for artifact in required(problem, config)] == ["cutlass", "triton"]


def test_without_nvcc_a_candidate_fails_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("CUDACXX", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    problem = gemm("mm", m=64, n=4096, k=4096)
    (artifact,) = required(problem, cutlass_menu.configs(problem, H200)[0])
    assert artifact.build(90).failure == "nvcc is not there"
    assert artifact.build(80).failure == "sm80 does not run Hopper's instructions"


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="triton is installed here")
def test_a_missing_compiler_is_the_outcome_of_the_candidate(make, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    pool = Precompiler(90, 232448, processes=1)
    try:
        status, reason, _ = pool.failure(gemm("mm", m=16, n=512, k=512), make.tile(), 60)
    finally:
        pool.close()
    assert str(status) == "error"
    assert "No module named 'triton'" in reason


@pytest.mark.parametrize(("outer", "count", "wanted"), [("", 4, "0123"), ("3,5", 8, "35"), ("", 1, ""), ("6", 1, "6")])
def test_processes_that_generate_code_share_the_gpus(monkeypatch, outer, count, wanted):
    from gemmdb.generators.measure.cuda.emitted import share_gpus

    chosen = set()
    for process in range(100, 108):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", outer)
        monkeypatch.setattr("torch.cuda.device_count", lambda: count)
        monkeypatch.setattr("os.getpid", lambda process=process: process)
        share_gpus()
        chosen.add(os.environ["CUDA_VISIBLE_DEVICES"])
    assert "".join(sorted(chosen)) == wanted


@pytest.fixture
def torch_with(tmp_path, monkeypatch):
    """Pretends that torch lies in a folder, whose `bin/ptxas` has this mode; None for no such file."""

    def make(mode, parent=2):
        setter = tmp_path / compilers.PTXAS_SETTER
        setter.parent.mkdir(parents=True)
        setter.write_text(f'ptxas = Path(__file__).absolute().parents[{parent}] / "bin" / "ptxas"\n')
        (tmp_path / "bin").mkdir()
        if mode is not None:
            path = tmp_path / "bin" / "ptxas"
            path.touch()
            path.chmod(mode)
        spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
        monkeypatch.setattr(importlib.util, "find_spec", {"torch": spec}.get)
        return str(tmp_path / "bin" / "ptxas")

    monkeypatch.setenv(compilers.PTXAS_VARIABLE, "")
    monkeypatch.delenv(compilers.PTXAS_VARIABLE)
    return make


def chosen():
    compilers.choose_ptxas()
    return os.environ.get(compilers.PTXAS_VARIABLE)


@pytest.mark.parametrize(("mode", "parent", "found"), [(0o755, 2, True), (None, 2, False), (0o644, 2, False),
                                                       (0o755, 1, False)])  # fmt: skip
def test_the_ptxas_of_torch_is_used_if_torch_has_one_where_it_looks(torch_with, mode, parent, found):
    path = torch_with(mode, parent)
    assert chosen() == (path if found else None)


def test_the_ptxas_is_that_which_the_installed_torch_would_set(torch_with):
    tasks = pytest.importorskip("torch._inductor.runtime.compile_tasks")
    tasks._set_triton_ptxas_path.cache_clear()
    tasks._set_triton_ptxas_path()
    wanted = os.environ.pop(compilers.PTXAS_VARIABLE, None)
    assert chosen() == wanted
    assert compilers._RELATIVE.search(Path(tasks.__file__).read_text())


def test_the_ptxas_that_the_user_names_stays_and_without_torch_none_is_chosen(torch_with, monkeypatch):
    torch_with(0o755)
    monkeypatch.setenv(compilers.PTXAS_VARIABLE, "/opt/ptxas")
    assert chosen() == "/opt/ptxas"
    monkeypatch.delenv(compilers.PTXAS_VARIABLE)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert chosen() is None
