"""Products of fp8 operands on a GPU: which kernels are tried where, what none multiplies, and what their preset has."""

from collections import Counter
from dataclasses import replace

import pytest
from kit.devices import A100, H200, L4

from gemmdb import Problem
from gemmdb.generators.effort import named
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.generators.shapes import loading
from gemmdb.kernels.config import ATEN
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Operand

TEMPLATES = {"triton:inductor_mm", "triton:inductor_scaled_tma"}
OURS = {"triton:narrow", "triton:gemv"}


def scaled(m: int = 512, n: int = 4096, k: int = 4096, **rest: object) -> Problem:
    return Problem.gemm("scaled_mm", m=m, n=n, k=k, **rest)  # type: ignore[arg-type]


def test_all_of_our_space_is_within_reach_of_few_rows() -> None:
    found = [one.config for one in CudaSpace().candidates(scaled(1, fast_accum=True), H200, named("full", "cuda"))]
    menu = CudaSpace().candidates(scaled(1, fast_accum=True), H200, named("standard", "cuda"))
    assert len(found) == len(set(found)) == len(menu) + 300
    assert {config.name for config in found[len(menu) :]} == OURS


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
    assert reason in candidate.illegal


def test_no_fp8_before_ada() -> None:
    (candidate,) = CudaSpace().candidates(scaled(), A100, named("full", "cuda"))
    assert "sm80 cannot multiply fp8" in candidate.illegal
    assert not CudaSpace().candidates(scaled(), L4, named("full", "cuda"))[0].illegal


def test_what_the_preset_has() -> None:
    problems = loading.load("h200-scaled", "cuda")
    assert {problem.m for problem in problems} == {1, 2, 4, 8, 16, 32, 64, 128, 512, 2048, 8192}
    kinds = Counter((problem.scales, problem.numerics.fast) for problem in problems)
    assert kinds["row", True] >= 80
    assert min(kinds.values()) >= 5
    assert len(kinds) == 4
    assert {problem.fusion for problem in problems} == {"none", "pointwise"}
    assert {problem.bias is None for problem in problems} == {True, False}
    for problem in problems:
        assert problem.flops < 2e12
