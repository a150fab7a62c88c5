"""Candidates on a GPU: legal, in a fixed order, ATen first, by op, dtype and size; and which of the menu are likely."""

from dataclasses import replace

import pytest
from kit.candidates import OURS, candidates, fast, gemm, int4, names, tried
from kit.devices import H200
from kit.gpu import algorithm

from gemmdb.generators.measure.cuda import space
from gemmdb.generators.measure.cuda.space import MAX_CONFIGS, everything, from_menu, likely
from gemmdb.kernels.menus import inductor as inductor_menu
from gemmdb.kernels.menus.gemv import MAX_ROWS
from gemmdb.key.problem import Problem
from gemmdb.settings import shipped_tables
from gemmdb.table.reader import Table

NAMES = ("quick", "standard", "full")
PROBLEMS = [
    Problem.gemm("mixed_mm", m=1, n=14336, k=4096, fusion="scale"),
    Problem.gemm("mixed_mm", m=64, n=4096, k=4096, dtype="fp16", weight_dtype="uint8"),
    Problem.gemm("int_mm", m=33, n=1000, k=776),
    Problem.gemm("mm", m=4096, n=4096, k=4096, layout="tn"),
    Problem.gemm("mm", m=17, n=1001, k=777),
    Problem.gemm("addmm", m=2, n=768, k=3072, dtype="fp32"),
]


def test_lean_tries_few_of_our_kernels_and_no_other_compilers():
    found = tried(gemm(m=256), "lean")
    assert 0 < sum(config.backend == "triton" for config in found) <= 4
    assert {config.backend for config in found} == {"triton"}
    assert set(found) <= set(tried(gemm(m=256), "quick"))


def test_the_menu_of_cublaslt_is_tried_where_it_is_legal(monkeypatch):
    algorithms = [algorithm(custom=custom) for custom in range(20)]
    monkeypatch.setattr(space.cublaslt_menu, "configs", lambda problem, device: [*algorithms, algorithms[0]])

    def of_cublaslt(*args):
        return [one.config for one in candidates(*args) if one.config.backend == "cublaslt"]

    assert of_cublaslt(gemm()) == algorithms
    assert of_cublaslt(gemm(), "quick") == algorithms[: space.MAX_ALGORITHMS]
    assert of_cublaslt(gemm(op="mixed_mm")) == of_cublaslt(gemm(dtype="fp32")) == []


def test_candidates_are_legal_distinct_and_always_the_same():
    for problem in PROBLEMS:
        sizes = []
        for effort in NAMES:
            found = tried(problem, effort)
            assert len(set(found)) == len(found)
            assert found == tried(problem, effort)
            assert all(config.rejection(problem, H200) is None for config in found)
            sizes.append(len(found) + 1)
        assert 5 < sizes[0] <= sizes[1] < sizes[2]


def test_where_the_model_knows_the_problem_what_is_likely_is_tried():
    for problem in PROBLEMS[:4]:
        whole = from_menu(problem, H200)
        gemv = sum(config.kernel == "gemv" for config in whole)
        found = [one for one in candidates(problem, "quick")[1:] if one.config.backend == "triton"]
        assert len(found) == min(len(whole), MAX_CONFIGS + gemv)
        assert [c.config for c in found] == [config for config in whole if config in {c.config for c in found}]
        assert all(candidate.estimated for candidate in found) == (len(found) < len(whole))
    assert set(tried(gemm(16), "quick")) != set(tried(gemm(64), "quick"))


def test_where_no_trees_were_fitted_or_the_model_knows_nothing_more_is_tried():
    other = replace(H200, arch="sm80", sku="NVIDIA A100-SXM4-80GB", units=108)
    whole = from_menu(gemm(), other)
    assert len(whole) > space.MAX_UNCORRECTED
    assert len(likely(whole, gemm(), other)) == space.MAX_UNCORRECTED
    odd = PROBLEMS[4]
    assert likely(from_menu(odd, H200), odd, H200) == from_menu(odd, H200)


def test_what_is_likely_has_the_best_that_was_measured():
    """int8 stands in for fp8 in the ranking. All that is shipped was measured with larger menus."""
    lost: list[float] = []
    with Table.open(shipped_tables() / "sm90-nvidia-h200.db", immutable=True) as table:
        for problem, device in table.decided():
            times = {one.config: one.ratio for one in table.pooled(problem, device)}
            ours = [config for config in times if config.kernel == "narrow"]
            if problem.op == "scaled_mm" and len(ours) > MAX_CONFIGS:
                first = likely(ours, problem, device)
                assert len(first) == MAX_CONFIGS
                best = min(times.values())
                lost.append(min(times[one] for one in times if one in first or one not in ours) / best - 1)
    assert len(lost) >= 50
    assert max(lost) < 0.02
    assert sum(lost) / len(lost) < 0.001


def test_the_menu_is_the_first_part_of_the_whole():
    menu = from_menu(PROBLEMS[0], H200)
    assert tried(PROBLEMS[0], "full")[: len(menu)] == menu
    assert len(everything(PROBLEMS[0], H200)) > 1000
    for m in (1, 16):
        assert set(from_menu(int4(m), H200)) <= set(everything(int4(m), H200))
    found = tried(fast(1), "full")
    others = len(from_menu(fast(1), H200)) + len(inductor_menu.configs(fast(1), H200))
    assert len(found) == len(set(found)) == others + 300
    assert names(found[others:]) == OURS


def test_vector_kernels_are_for_few_rows():
    for rows in (1, 2, 3, 16):
        configs = from_menu(gemm(rows, op="mixed_mm"), H200)
        assert any(config.kernel == "gemv" for config in configs) == (rows <= MAX_ROWS)


@pytest.mark.parametrize(("dtype", "weight", "dequant"), [("bf16", "int8", "cast"), ("bf16", "uint8", "bits"),
                                                          ("fp16", "int8", "bits")])  # fmt: skip
def test_int8_to_bf16_is_left_to_the_compiler_and_other_casts_are_not(dtype, weight, dequant):
    found = from_menu(gemm(16, op="mixed_mm", dtype=dtype, weight_dtype=weight), H200)
    assert {config.values["dequant"] for config in found} == {dequant}


@pytest.mark.parametrize("op", ["mm", "mixed_mm", "int_mm"])
@pytest.mark.parametrize("configs", [from_menu, everything])
def test_few_rows_are_for_narrow_kernels_and_many_for_persistent_ones(op, configs):
    for rows, kernel in ((32, "narrow"), (512, "persistent")):
        assert {config.kernel for config in configs(gemm(rows, op=op), H200)} == {"tile", kernel}


def test_a_narrow_kernel_is_tried_in_several_ways():
    narrow = [c.values for c in from_menu(replace(PROBLEMS[0], m=8), H200) if c.kernel == "narrow"]
    assert {(value["rows"], value["stagger"]) for value in narrow} == {("mask", 0), ("wrap", 0), ("mask", 1)}
    assert any(value["split_k"] != 1 for value in narrow)


def test_a_tile_of_wider_elements_is_as_many_bytes_deep():
    depths = [
        {config.values["block_k"] for config in from_menu(gemm(2048, dtype=dtype), H200) if config.kernel == "tile"}
        for dtype in ("bf16", "fp32")
    ]
    assert depths[1] == {depth // 2 for depth in depths[0]}


def test_a_build_tries_multiply_and_sum_unless_it_is_quick():
    problem = gemm(1, op="mixed_mm")
    assert [[c.kernel for c in tried(problem, effort)].count("inductor_sum") for effort in NAMES] == [0, 1, 1]
