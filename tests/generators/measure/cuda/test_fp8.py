"""Products of fp8 operands on a GPU: which kernels are tried where, and what none multiplies."""

from dataclasses import replace

import pytest
from kit.devices import A100, H200, L4

from gemmdb import Problem
from gemmdb.generators.effort import named
from gemmdb.generators.measure.cuda.space import MAX_CONFIGS, CudaSpace, from_menu, likely
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.menus import inductor as inductor_menu
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Operand
from gemmdb.settings import shipped_tables
from gemmdb.table.reader import Table

TEMPLATES = {"triton:inductor_mm", "triton:inductor_scaled_tma"}
OURS = {"triton:narrow", "triton:gemv"}


def scaled(m: int = 512, n: int = 4096, k: int = 4096, **rest: object) -> Problem:
    return Problem.gemm("scaled_mm", m=m, n=n, k=k, **rest)  # type: ignore[arg-type]


def test_all_of_our_space_is_within_reach_of_few_rows() -> None:
    problem = scaled(1, fast_accum=True)
    found = [one.config for one in CudaSpace().candidates(problem, H200, named("full", "cuda"))]
    menu = 1 + len(from_menu(problem, H200)) + len(inductor_menu.configs(problem, H200))
    assert len(found) == len(set(found)) == menu + 300
    assert {config.name for config in found[menu:]} == OURS


@pytest.mark.parametrize("m", [1, 16, 48])
def test_without_a_fast_accumulation_no_sum_stays_in_the_matrix_unit(m: int) -> None:
    for fast, wanted in ((True, {True, False}), (False, {False})):
        found = CudaSpace().candidates(scaled(m, fast_accum=fast), H200, named("quick", "cuda"))
        ours = [one.config.values for one in found if one.config.kernel == "narrow"]
        grouped = {value["block_n" if value["swap"] else "block_m"] >= 64 and value["warps"] % 4 == 0 for value in ours}
        assert grouped == wanted


def test_what_an_arch_does_with_small_tiles_is_not_taken_for_granted() -> None:
    for fast, kernels in ((True, OURS), (False, {"triton:gemv"})):
        found = CudaSpace().candidates(scaled(1, fast_accum=fast), L4, named("quick", "cuda"))
        assert {one.config.name for one in found[1:]} == kernels


@pytest.mark.parametrize(
    "rest", [{}, {"scales": "row"}, {"bias": "1d"}, {"dtype": "fp8_e5m2", "weight_dtype": "fp8_e4m3"}]
)
def test_which_kernels_are_tried_at_which_sizes(rest: dict[str, str]) -> None:
    for m in (1, 2, 16, 17, 33, 64, 65, 512, 8192):
        for n, k in ((28672, 4096), (4096, 14336), (16, 32), (48, 4080)):
            problem = scaled(m, n, k, **rest)
            found = [one.config for one in CudaSpace().candidates(problem, H200, named("standard", "cuda"))[1:]]
            assert k < 64 or OURS.isdisjoint(config.name for config in found) == (m > 64)
            mapped = [config for config in found if config.kernel == "inductor_scaled_tma"]
            assert bool(mapped) == (m >= 33 and "bias" not in rest)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (scaled(k=4088), "multiples of 16"),
        (scaled(n=8), "multiples of 16"),
        (scaled(dtype="fp8_e5m2"), "two e5m2"),
        (scaled(bias="1d", out_dtype="fp32"), "a bias of fp32 is not added to fp32"),
        (replace(scaled(), b=Operand("fp8_e4m3", Layout("col-padded", 8))), "multiples of 16 bytes"),
    ],
)
def test_what_torch_does_not_multiply_is_one_illegal_row(problem: Problem, reason: str) -> None:
    (candidate,) = CudaSpace().candidates(problem, H200, named("full", "cuda"))
    assert candidate.config == ATEN
    assert reason in str(candidate.rejected)


@pytest.mark.parametrize("m", [1, 16, 48, 512])
def test_what_is_tried_with_scales_of_blocks(m: int) -> None:
    problem = scaled(m, 4096, 7168, scales="block")
    found = CudaSpace().candidates(problem, H200, named("standard", "cuda"))
    assert {one.config.name for one in found[1:]} == {"triton:scaled_blocks"}
    assert 4 < len(found) <= 16
    assert {1} < {one.config.values["split_k"] for one in found[1:]}
    (refused,) = CudaSpace().candidates(problem, L4, named("standard", "cuda"))
    assert "Hopper" in str(refused.rejected)
    for config in (one.config for one in found[1:]):
        assert config.rejection(problem, H200) is None
        assert "applies scales of blocks" in str(config.rejection(scaled(m, 4096, 7168), H200))
        assert config.values["block_k"] == 128
    others = CudaSpace().candidates(scaled(m, 4096, 7168, fast_accum=True), H200, named("standard", "cuda"))
    assert all("within the sum" in str(one.config.rejection(problem, H200)) for one in others[1:])


def test_no_fp8_before_ada() -> None:
    (candidate,) = CudaSpace().candidates(scaled(), A100, named("full", "cuda"))
    assert "sm80 cannot multiply fp8" in str(candidate.rejected)
    assert not CudaSpace().candidates(scaled(), L4, named("full", "cuda"))[0].rejected


def test_what_is_likely_has_the_best_that_was_measured() -> None:
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
