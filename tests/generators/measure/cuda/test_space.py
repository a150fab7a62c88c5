"""The space: legal, in a fixed order, ATen first, and built around what fits on a multiprocessor."""

from dataclasses import replace

import pytest

from gemmdb.generators.effort import NAMES, named
from gemmdb.generators.measure.cuda import space
from gemmdb.generators.measure.cuda.space import CudaSpace, everything, from_menu
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.menus.gemv import MAX_ROWS
from gemmdb.kernels.triton.memory import shared_bytes
from gemmdb.key.problem import Problem

PROBLEMS = [
    Problem.gemm("mixed_mm", m=1, n=14336, k=4096, fusion="scale"),
    Problem.gemm("mixed_mm", m=64, n=4096, k=4096, dtype="fp16", weight_dtype="uint8"),
    Problem.gemm("int_mm", m=33, n=1000, k=776),
    Problem.gemm("mm", m=4096, n=4096, k=4096, layout="tn"),
    Problem.gemm("mm", m=17, n=1001, k=777),
    Problem.gemm("addmm", m=2, n=768, k=3072, dtype="fp32"),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.text[:32])
def test_candidates_are_legal_distinct_and_always_the_same(problem, h200):
    sizes = []
    for effort in map(named, NAMES):
        found = [candidate.config for candidate in CudaSpace().candidates(problem, h200, effort)]
        assert found[0] == ATEN
        assert len(set(found)) == len(found)
        assert found == [candidate.config for candidate in CudaSpace().candidates(problem, h200, effort)]
        assert all(config.rejection(problem, h200) is None for config in found)
        sizes.append(len(found))
    assert 5 < sizes[0] <= sizes[1] < sizes[2]


def test_where_the_model_knows_the_problem_what_is_likely_is_tried(h200):
    for problem in PROBLEMS[:4]:
        whole = from_menu(problem, h200)
        gemv = sum(config.kernel == "gemv" for config in whole)
        tried = list(CudaSpace().candidates(problem, h200, named("quick"))[1:])
        assert len(tried) == min(len(whole), space.MAX_CONFIGS + gemv)
        assert [c.config for c in tried] == [config for config in whole if config in {c.config for c in tried}]
        assert all(candidate.estimated for candidate in tried) == (len(tried) < len(whole))


def test_where_no_trees_were_fitted_more_is_tried(h200):
    other = replace(h200, arch="sm80", sku="NVIDIA A100-SXM4-80GB", units=108)
    problem = Problem.gemm("mm", m=64, n=4096, k=4096)
    whole = from_menu(problem, other)
    assert len(whole) > space.MAX_UNCORRECTED
    assert len(space.likely(whole, problem, other)) == space.MAX_UNCORRECTED


def test_what_the_model_does_not_know_is_tried_whole(h200):
    odd = Problem.gemm("mm", m=17, n=1001, k=777)
    assert space.likely(from_menu(odd, h200), odd, h200) == from_menu(odd, h200)


def test_what_is_likely_depends_on_the_problem(h200):
    few, many = (Problem.gemm("mm", m=m, n=4096, k=4096) for m in (16, 64))
    tried = [{c.config for c in CudaSpace().candidates(p, h200, named("quick"))} for p in (few, many)]
    assert tried[0] != tried[1]


def test_the_menu_is_the_first_part_of_the_whole(h200):
    problem = PROBLEMS[0]
    found = [candidate.config for candidate in CudaSpace().candidates(problem, h200, named("full"))]
    menu = from_menu(problem, h200)
    assert found[1 : len(menu) + 1] == menu
    assert len(everything(problem, h200)) > 1000


def test_vector_kernels_are_for_few_rows(h200):
    for rows in (1, 2, 3, 16):
        configs = from_menu(Problem.gemm("mixed_mm", m=rows, n=4096, k=4096), h200)
        assert any(config.kernel == "gemv" for config in configs) == (rows <= MAX_ROWS)


def test_blocks_that_share_a_multiprocessor_fit_into_it(h200):
    problem = Problem.gemm("mixed_mm", m=16, n=4096, k=4096)
    tiles = [config for config in everything(problem, h200) if config.kernel == "tile"]
    assert max(shared_bytes(config, problem) for config in tiles) <= 232448
    assert any(4 * shared_bytes(config, problem) <= 232448 for config in tiles)


def test_int8_to_bf16_is_left_to_the_compiler_and_other_casts_are_not(h200):
    ways = {
        (dtype, weight): {config.values["dequant"] for config in from_menu(problem, h200)}
        for dtype, weight in (("bf16", "int8"), ("bf16", "uint8"), ("fp16", "int8"))
        for problem in [Problem.gemm("mixed_mm", m=16, n=4096, k=4096, dtype=dtype, weight_dtype=weight)]
    }
    assert ways == {("bf16", "int8"): {"cast"}, ("bf16", "uint8"): {"bits"}, ("fp16", "int8"): {"bits"}}


@pytest.mark.parametrize("op", ["mm", "mixed_mm", "int_mm"])
def test_few_rows_are_for_narrow_kernels_and_many_for_persistent_ones(op, h200):
    kernels = {}
    for rows in (32, 512):
        problem = Problem.gemm(op, m=rows, n=4096, k=4096)
        for configs in (from_menu, everything):
            kernels[rows, configs] = {config.kernel for config in configs(problem, h200)}
    for configs in (from_menu, everything):
        assert kernels[32, configs] == {"tile", "narrow"}
        assert kernels[512, configs] == {"tile", "persistent"}


def test_a_narrow_kernel_is_tried_in_several_ways(h200):
    problem = Problem.gemm("mixed_mm", m=8, n=14336, k=4096, fusion="scale")
    narrow = [config.values for config in from_menu(problem, h200) if config.kernel == "narrow"]
    assert {(value["rows"], value["stagger"]) for value in narrow} == {("mask", 0), ("wrap", 0), ("mask", 1)}
    assert any(value["split_k"] != 1 for value in narrow)


def test_a_tile_of_wider_elements_is_as_many_bytes_deep(h200):
    depths = {
        dtype: {config.values["block_k"] for config in from_menu(problem, h200) if config.kernel == "tile"}
        for dtype in ("bf16", "fp32")
        for problem in [Problem.gemm("mm", m=2048, n=4096, k=4096, dtype=dtype)]
    }
    assert depths["fp32"] == {depth // 2 for depth in depths["bf16"]}
