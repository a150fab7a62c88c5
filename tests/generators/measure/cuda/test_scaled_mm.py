"""Products of fp8 operands with scales on a GPU: their candidates, what runs around ATen's, and the preset of them."""

from collections import Counter
from dataclasses import replace

import pytest
from kit.devices import H200

from gemmdb import Problem
from gemmdb.generators.effort import named
from gemmdb.generators.measure.cuda import elementwise, requirements
from gemmdb.generators.measure.cuda.emission import Emission
from gemmdb.generators.measure.cuda.emitted_config import only_emitted
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.generators.shapes import loading
from gemmdb.generators.shapes.strata import MOST_BYTES
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.legality import illegal
from gemmdb.key.device import Device
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Operand

TEMPLATES = {"triton:inductor_mm", "triton:inductor_scaled_tma"}
OURS = {"triton:narrow", "triton:gemv"}


def scaled(m: int = 512, n: int = 4096, k: int = 4096, **rest: object) -> Problem:
    return Problem.gemm("scaled_mm", m=m, n=n, k=k, **rest)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("effort", "m", "kernels"),
    [
        ("quick", 1, OURS), ("quick", 16, {"triton:narrow"}), ("quick", 512, TEMPLATES),
        ("standard", 2, {*OURS, "triton:inductor_mm"}), ("standard", 64, {"triton:narrow", *TEMPLATES}),
        ("standard", 65, TEMPLATES), ("standard", 512, TEMPLATES), ("full", 512, TEMPLATES),
    ],
)  # fmt: skip
def test_what_is_tried(effort: str, m: int, kernels: set[str]) -> None:
    found = CudaSpace().candidates(scaled(m, fast_accum=True), H200, named(effort, "cuda"))
    assert found[0].config == ATEN
    assert {one.config.name for one in found[1:]} == kernels
    assert len(found) <= 64
    assert not any(one.illegal or one.estimated for one in found)


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
    l4 = Device("cuda", "sm89", "NVIDIA L4", 58, 24)
    for fast, kernels in ((True, OURS), (False, {"triton:gemv"})):
        found = CudaSpace().candidates(scaled(1, fast_accum=fast), l4, named("quick", "cuda"))
        assert {one.config.name for one in found[1:]} == kernels


@pytest.mark.parametrize(
    "rest", [{}, {"scales": "row"}, {"bias": "1d"}, {"dtype": "fp8_e5m2", "weight_dtype": "fp8_e4m3"}]
)
def test_candidates_are_distinct_and_legal(rest: dict[str, str]) -> None:
    for m in (1, 2, 16, 17, 33, 64, 65, 512, 8192):
        for n, k in ((28672, 4096), (4096, 14336), (16, 32), (48, 4080)):
            problem = scaled(m, n, k, **rest)
            found = [one.config for one in CudaSpace().candidates(problem, H200, named("standard", "cuda"))[1:]]
            assert len(found) == len(set(found)) >= 3
            assert not any(illegal(config, problem, H200) for config in found)
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
    a100, l4 = Device("cuda", "sm80", "A100", 108, 80), Device("cuda", "sm89", "L4", 58, 24)
    (candidate,) = CudaSpace().candidates(scaled(), a100, named("full", "cuda"))
    assert "sm80 cannot multiply fp8" in candidate.illegal
    assert not CudaSpace().candidates(scaled(), l4, named("full", "cuda"))[0].illegal


@pytest.mark.parametrize("problem", [scaled(constant_weight=True), scaled(m=0), scaled(n=0), scaled(k=16)])
def test_where_there_is_no_template_aten_is_alone(problem: Problem) -> None:
    assert [one.config for one in CudaSpace().candidates(problem, H200, named("full", "cuda"))] == [ATEN]


def test_the_templates_are_parts_of_emitted_code() -> None:
    problem = scaled()
    for candidate in CudaSpace().candidates(problem, H200, named("standard", "cuda"))[1:]:
        assert candidate.config.name in TEMPLATES
        assert only_emitted(candidate.config)
        assert requirements.required(problem, candidate.config) == [Emission(problem, candidate.config)]
    keys = {Emission(one, candidate.config).key for one in (problem, scaled(scales="row"), scaled(fast_accum=True))}
    assert len(keys) == 3


@pytest.mark.parametrize("rest", [{}, {"scales": "row", "fast_accum": True, "bias": "1d"}])
def test_what_follows_is_that_of_a_product_in_the_outputs_dtype(rest: dict[str, object]) -> None:
    assert elementwise.around(scaled(**rest)) == (None, None)
    before, after = elementwise.around(scaled(fusion="pointwise", out_dtype="fp16", **rest))
    assert before is None
    plain = Problem.gemm("mm", m=512, n=4096, k=4096, dtype="fp16", fusion="pointwise")
    assert after == elementwise.after(plain, "fp16")


def test_the_preset() -> None:
    problems = loading.load("h200-scaled", "cuda")
    assert len(problems) == 115
    assert {problem.op for problem in problems} == {"scaled_mm"}
    assert {problem.m for problem in problems} == {1, 2, 4, 8, 16, 32, 64, 128, 512, 2048, 8192}
    kinds = Counter((problem.scales, problem.numerics.fast) for problem in problems)
    assert kinds["row", True] >= 80
    assert min(kinds.values()) >= 5
    assert len(kinds) == 4
    assert {problem.fusion for problem in problems} == {"none", "pointwise"}
    assert {problem.bias is None for problem in problems} == {True, False}
    for problem in problems:
        assert problem.bytes <= MOST_BYTES
        assert problem.flops < 2e12
        assert len(CudaSpace().candidates(problem, H200, named(None, "cuda"))) >= 4
