"""Candidates on a GPU: legal, in a fixed order, ATen first, by op, dtype and size; and which of the menu are likely."""

from dataclasses import replace

import pytest
from kit.devices import A100, H200, L4
from kit.gpu import algorithm

from gemmdb.generators.effort import named
from gemmdb.generators.measure.cuda import space
from gemmdb.generators.measure.cuda.space import MAX_CONFIGS, CudaSpace, everything, from_menu, likely
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.menus import inductor as inductor_menu
from gemmdb.kernels.menus.gemv import MAX_ROWS
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Operand
from gemmdb.key.problem import Problem
from gemmdb.settings import shipped_tables
from gemmdb.table.reader import Table

NAMES = ("quick", "standard", "full")
BATCHED = {"triton:inductor_bmm"}
SLICED = {"triton:inductor_bmm", "triton:batch"}
"""Where swapped tiles or slices of K may help."""
SCALED = {"triton:inductor_mm", "triton:inductor_scaled_tma"}
OURS = {"triton:narrow", "triton:gemv"}
PROBLEMS = [
    Problem.gemm("mixed_mm", m=1, n=14336, k=4096, fusion="scale"),
    Problem.gemm("mixed_mm", m=64, n=4096, k=4096, dtype="fp16", weight_dtype="uint8"),
    Problem.gemm("int_mm", m=33, n=1000, k=776),
    Problem.gemm("mm", m=4096, n=4096, k=4096, layout="tn"),
    Problem.gemm("mm", m=17, n=1001, k=777),
    Problem.gemm("addmm", m=2, n=768, k=3072, dtype="fp32"),
]


def gemm(m=64, n=4096, k=4096, op="mm", **rest) -> Problem:
    return Problem.gemm(op, m=m, n=n, k=k, **rest)


def bmm(batch=8, m=64, n=64, k=128, **rest) -> Problem:
    return Problem.gemm("bmm", batch=batch, m=m, n=n, k=k, **rest)


def scaled(m=512, n=4096, k=4096, **rest) -> Problem:
    return Problem.gemm("scaled_mm", m=m, n=n, k=k, **rest)


def fast(m) -> Problem:
    return scaled(m, fast_accum=True)


def int4(m=16, n=4096, k=4096, **rest) -> Problem:
    return Problem.gemm("mixed_mm", m=m, n=n, k=k, weight_dtype="int4", **rest)


def candidates(problem, effort="standard", device=H200):
    return CudaSpace().candidates(problem, device, named(effort, "cuda"))


def tried(problem, effort="standard", device=H200) -> list[Config]:
    """The candidates but ATen, which comes first, and cuBLASLt's algorithms."""
    first, *found = (one.config for one in candidates(problem, effort, device))
    assert first == ATEN
    return [config for config in found if config.backend != "cublaslt"]


def names(configs) -> set[str]:
    return {config.name for config in configs}


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


@pytest.mark.parametrize(
    ("problem", "effort", "kernels", "most"),
    [
        *((bmm(), effort, BATCHED, 11) for effort in ("quick", "standard")), (bmm(), "full", SLICED, 310),
        (bmm(m=8), "standard", SLICED, 12), (bmm(k=4096), "standard", SLICED, 14),
        (fast(1), "quick", OURS, 35), (fast(16), "quick", {"triton:narrow"}, 17), (fast(512), "quick", SCALED, 10),
        (fast(2), "standard", {*OURS, "triton:inductor_mm"}, 38),
        (fast(64), "standard", {"triton:narrow", *SCALED}, 22),
        (fast(65), "standard", SCALED, 10), (fast(512), "standard", SCALED, 10), (fast(512), "full", SCALED, 10),
    ],
)  # fmt: skip
def test_what_is_tried(problem, effort, kernels, most):
    found = [one for one in candidates(problem, effort) if one.config.backend != "cublaslt"]
    assert names(tried(problem, effort)) == kernels
    assert 3 <= len(found) <= most
    assert not any(one.rejected for one in found)
    # The cost model ranks our kernels; of other kernels everything is tried.
    assert {one.config.name for one in found if one.estimated} <= OURS


KINDS = {
    "bf16": (bmm, {}, 2),
    "fp32": (bmm, {"dtype": "fp32"}, 2),
    "fp8": (scaled, {}, 3),
    "fp8, scales of rows": (scaled, {"scales": "row"}, 3),
    "fp8, a bias": (scaled, {"bias": "1d"}, 3),
    "fp8, two dtypes": (scaled, {"dtype": "fp8_e5m2", "weight_dtype": "fp8_e4m3"}, 3),
}
"""Problems of all kinds, with the least number of candidates besides ATen."""
SIZES = {
    bmm: ([1, 2, 13, 16, 17, 33, 64, 65, 197, 4096], [(64, 2048), (2048, 64), (14336, 4096), (13, 7)]),
    scaled: ([1, 2, 16, 17, 33, 64, 65, 512, 8192], [(28672, 4096), (4096, 14336), (16, 32), (48, 4080)]),
}


@pytest.mark.parametrize("name", KINDS)
def test_candidates_of_batches_and_fp8_are_distinct_legal_and_fit_the_matrices(name):
    made, rest, least = KINDS[name]
    rows, columns = SIZES[made]
    for problem in (made(m=m, n=n, k=k, **rest) for m in rows for n, k in columns):
        found = tried(problem)
        assert len(found) == len(set(found)) >= least
        assert not any(config.rejection(problem, H200) for config in found)
        if made is bmm:
            for config in found:
                for block, size in (("block_m", problem.m), ("block_n", problem.n), ("block_k", problem.k)):
                    assert config.values[block] == 16 or config.values[block] < 2 * size
        else:
            assert problem.k < 64 or OURS.isdisjoint(names(found)) == (problem.m > 64)
            mapped = any(config.kernel == "inductor_scaled_tma" for config in found)
            assert mapped == (problem.m >= 33 and "bias" not in rest)


@pytest.mark.parametrize(
    "problem",
    [
        bmm(batch=1), bmm(k=1), bmm(batch=0), bmm(m=0), bmm(dtype="fp64"), bmm(constant_weight=True),
        scaled(constant_weight=True), scaled(m=0), scaled(n=0), scaled(k=16),
    ],
    ids=lambda problem: problem.text,
)  # fmt: skip
def test_where_there_is_no_template_aten_is_alone(problem):
    assert tried(problem, "full") == []


@pytest.mark.parametrize("m", [1, 16, 48])
def test_without_a_fast_accumulation_no_sum_stays_in_the_matrix_unit(m):
    for accum, wanted in ((True, {True, False}), (False, {False})):
        ours = [c.values for c in tried(scaled(m, fast_accum=accum), "quick") if c.kernel == "narrow"]
        grouped = {value["block_n" if value["swap"] else "block_m"] >= 64 and value["warps"] % 4 == 0 for value in ours}
        assert grouped == wanted
    for accum, kernels in (
        (True, OURS),
        (False, {"triton:gemv"}),
    ):  # What another arch does with small tiles is unknown.
        assert names(tried(scaled(1, fast_accum=accum), "quick", L4)) == kernels


@pytest.mark.parametrize(
    ("problem", "device", "reason"),
    [
        (scaled(k=4088), H200, "multiples of 16"),
        (scaled(n=8), H200, "multiples of 16"),
        (scaled(dtype="fp8_e5m2"), H200, "two e5m2"),
        (scaled(bias="1d", out_dtype="fp32"), H200, "a bias of fp32 is not added to fp32"),
        (replace(scaled(), b=Operand("fp8_e4m3", Layout("col-padded", 8))), H200, "multiples of 16 bytes"),
        (scaled(), A100, "sm80 cannot multiply fp8"),
        (scaled(), L4, ""),
        (scaled(16, 4096, 7168, scales="block"), L4, "Hopper"),
        (int4(k=4160), H200, "wants K in steps of 128"),
    ],
)
def test_what_cannot_be_multiplied_is_one_illegal_row(problem, device, reason):
    first, *others = candidates(problem, "full", device)
    assert first.config == ATEN
    assert bool(others) == (not reason)
    assert reason in str(first.rejected or "")
    assert bool(first.rejected) == bool(reason)


@pytest.mark.parametrize("m", [1, 16, 48, 512])
def test_what_is_tried_with_scales_of_blocks(m):
    problem = scaled(m, 4096, 7168, scales="block")
    found = tried(problem)
    assert names(found) == {"triton:scaled_blocks"}
    assert 4 <= len(found) < 16
    assert {1} < {config.values["split_k"] for config in found}
    for config in found:
        assert config.rejection(problem, H200) is None
        assert "applies scales of blocks" in str(config.rejection(scaled(m, 4096, 7168), H200))
        assert config.values["block_k"] == 128
    others = tried(scaled(m, 4096, 7168, fast_accum=True))
    assert all("within the sum" in str(config.rejection(problem, H200)) for config in others)


@pytest.mark.parametrize("flags", [{}, {"group": 32}, {"packing": "tinygemm2", "group": 64}, {"packing": "low-first"},
                                   {"packing": "high-first", "zeros": "uint8", "group": 64}], ids=str)  # fmt: skip
def test_which_kernels_of_int4_are_tried_at_which_sizes(flags):
    for m in (1, 8, 16, 33, 64, 65, 512, 4096):
        for n, k in ((28672, 8192), (4096, 14336), (1032, 4352)):
            for device in (H200, A100):
                found = tried(int4(m, n, k, **flags), device=device)
                others = {"triton:int4_skinny"} if m <= 16 else set()
                others |= {"aten:dequantised"} if "-" not in str(flags) else set()
                assert names(found) == {"triton:int4", *others}
                assert len(found) >= 4
    assert {config.values["block_m"] for config in from_menu(int4(24, **flags), H200)} == {32}


def test_a_build_tries_multiply_and_sum_unless_it_is_quick():
    problem = gemm(1, op="mixed_mm")
    assert [[c.kernel for c in tried(problem, effort)].count("inductor_sum") for effort in NAMES] == [0, 1, 1]
