"""The menu of our CUTLASS kernel, and what is compiled for it."""

import pytest

from gemmdb.generators.effort import NAMES, named
from gemmdb.generators.measure.cuda.artifacts import Emission, Library, compiler, required, required_promptly
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.menus import cutlass as cutlass_menu
from gemmdb.key.problem import Problem

ROWS = (1, 16, 17, 32, 64, 100, 128, 256, 1000, 4096)
OPS = [
    ("mixed_mm", {"fusion": "scale"}), ("int_mm", {"fusion": "scale"}), ("mm", {"layout": "tn"}), ("addmm", {}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "rest"), OPS, ids=[op for op, _ in OPS])
@pytest.mark.parametrize("m", ROWS)
def test_the_menu_is_legal_distinct_and_small(op, rest, m, h200):
    # A transposed activation has rows along M.
    size = m if "layout" not in rest else (m + 7) // 8 * 8
    problem = Problem.gemm(op, m=size, n=4096, k=4096, **rest)
    found = cutlass_menu.configs(problem, h200)
    assert 0 < len(found) == len(set(found)) <= 16
    assert all(config.rejection(problem, h200) is None for config in found)
    assert len({Library.of(problem, config).key for config in found}) <= 8


def test_no_kernel_of_the_menu_is_illegal_for_every_problem(h200):
    for op, rest in OPS:
        found = set()
        entries = set()
        for m in ROWS:
            problem = Problem.gemm(op, m=(m + 7) // 8 * 8, n=4096, k=4096, **rest)
            entries |= {(e.m, e.n, e.k, e.schedule, e.swap, e.split) for e in cutlass_menu.entries(problem)}
            for config in cutlass_menu.configs(problem, h200):
                v = config.values
                split = v["split_k"] != 1
                found.add((v["tile_m"], v["tile_n"], v["tile_k"], v["schedule"], v["swap"], split))
        assert found == entries


def test_sizes_do_not_change_what_is_compiled(h200):
    one, other = (Problem.gemm("mixed_mm", m=512, n=n, k=k, fusion="scale") for n, k in ((4096, 4096), (1024, 14336)))
    for config in cutlass_menu.configs(one, h200):
        assert Library.of(one, config) == Library.of(other, config)
        assert [artifact.key for artifact in required(one, config)] == [Library.of(other, config).key]


def test_candidates_from_effort_standard_on_and_where_they_can_be_compiled(h200):
    problem = Problem.gemm("mixed_mm", m=64, n=4096, k=4096)
    with_nvcc = {
        name: [c.config for c in CudaSpace().candidates(problem, h200, effort) if c.config.backend == "cutlass"]
        for name, effort in zip(NAMES, map(named, NAMES), strict=True)
    }
    assert with_nvcc == {
        "quick": [],
        "standard": cutlass_menu.configs(problem, h200),
        "full": cutlass_menu.configs(problem, h200),
    }
    without = CudaSpace(cutlass=False).candidates(problem, h200, named("standard"))
    assert "cutlass" not in {candidate.config.backend for candidate in without}


def test_without_nvcc_a_candidate_fails_with_the_reason(monkeypatch, tmp_path, h200):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("CUDACXX", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    problem = Problem.gemm("mm", m=64, n=4096, k=4096)
    (artifact,) = required(problem, cutlass_menu.configs(problem, h200)[0])
    assert artifact.build(90).failure == "nvcc is not there"


def test_what_surrounds_the_product_is_compiled_with_it():
    bare, mixed = Problem.gemm("mm", m=64, n=4096, k=4096), Problem.gemm("mixed_mm", m=64, n=4096, k=4096)
    scaled = Problem.gemm("mixed_mm", m=64, n=4096, k=4096, fusion="scale")
    sizes = [len({artifact.key for artifact in required(problem, ATEN)}) for problem in (bare, mixed, scaled)]
    assert sizes == [1, 3, 4]  # The flush, the cast of the weight, the scale, default mode's code.
    *kernels, code = required(scaled, ATEN)
    assert (code, code.optional) == (Emission(scaled, ATEN), True)
    assert compiler(ATEN, code) == "inductor"
    assert {compiler(ATEN, artifact) for artifact in kernels} == {"triton"}


def test_live_tuning_does_without_the_code_of_default_mode():
    scaled = Problem.gemm("mixed_mm", m=64, n=4096, k=4096, fusion="scale")
    assert required_promptly(scaled, ATEN) == required(scaled, ATEN)[:-1]


def test_what_a_kernel_leaves_to_another_is_compiled_by_triton(h200):
    problem = Problem.gemm("mm", m=512, n=4096, k=4096, fusion="pointwise")
    config = cutlass_menu.configs(problem, h200)[0]
    assert [compiler(config, artifact) for artifact in required(problem, config)] == ["cutlass", "triton"]
