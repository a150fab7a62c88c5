"""Products of fp8 operands on the ladder: answered by what was measured near them, and what our kernels multiply."""

import pytest
from kit.devices import A100, H200
from kit.gpu import make

from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.lookup import answer
from gemmdb.settings import Policy

VALUES = {"block_m": 128, "block_n": 128, "block_k": 128, "group_m": 8, "stages": 3, "warps": 4}
MAPPED = Config.of("triton", "inductor_scaled_tma", **VALUES)
NARROW = make("narrow", block_k=128, swap=1, stagger=0, stages=5)
GEMV = make("gemv")


def changed(**values: int) -> Config:
    return Config.of(NARROW.backend, NARROW.kernel, **{**NARROW.values, **values})


def scaled(m: int = 512, n: int = 4096, k: int = 4096, **rest: object) -> Problem:
    return Problem.gemm("scaled_mm", m=m, n=n, k=k, **rest)  # type: ignore[arg-type]


def around(lab, times, **rest):
    """Rows of the problems around M = 512."""
    return [row for m in (256, 384, 768, 1024) for row in lab.rows(scaled(m=m, **rest), times, device=H200)]


def test_near_sizes_answer(lab, ask):
    hit = ask(scaled(), around(lab, {MAPPED: 0.5}))
    assert (hit.rung, hit.config) == ("near", MAPPED)
    assert hit.speedup == pytest.approx(2, rel=0.1)
    assert ask(scaled(), around(lab, {})).config == ATEN


def test_a_matrix_vector_gemm_is_near_those_alone(lab, ask):
    fast = {"fast_accum": True, "scales": "row", "out_dtype": "fp16"}
    rows = [row for n in (3072, 5120) for row in lab.rows(scaled(1, n, **fast), {GEMV: 0.5}, device=H200)]
    assert ask(scaled(1, **fast), rows).config == GEMV
    assert answer(lab.query(scaled(2, **fast), H200), lab.catalog(rows), Policy(model=False)) is None


def test_a_range_is_served_by_a_kernel_of_any_number_of_rows(lab, ask):
    fast = {"fast_accum": True}
    rows = [row for m in (2, 4, 8, 16) for row in lab.rows(scaled(m, **fast), {NARROW: 0.5}, device=H200)]
    hit = ask(scaled(8, **fast), rows, ranges={"m": (2, 16)})
    assert hit.config == NARROW
    assert "accumulation" in str(NARROW.rejection(scaled(8), H200))


def test_a_range_is_atens(lab, ask):
    every = [row for m in (256, 512, 1024) for row in lab.rows(scaled(m=m), {MAPPED: 0.5}, device=H200)]
    hit = ask(scaled(), every, ranges={"m": (256, 1024)})
    assert hit.config == ATEN


@pytest.mark.parametrize(
    ("config", "problem", "reason"),
    [
        (MAPPED, scaled(bias="1d"), "takes no bias"),
        (MAPPED, scaled(m=1), "size of 1"),
        (Config.of("triton", "inductor_scaled_tma", **VALUES | {"warps": 2, "block_m": 64}), scaled(), "fewer than 4"),
        (Config.of("triton", "inductor_mm", **{**VALUES, "block_k": 16}), scaled(), "32 fp8 of K at once"),
        (Config.of("triton", "inductor_mm", **{**VALUES, "stages": 8}), scaled(), "do not fit into shared memory"),
        (Config.of("triton", "inductor_persistent_tma", **VALUES), scaled(), "does not solve scaled_mm"),
    ],
)  # fmt: skip
def test_what_one_of_them_cannot_run_says_why(config, problem, reason):
    assert reason in str(config.rejection(problem, H200))


@pytest.mark.parametrize(
    ("config", "problem", "reason"),
    [
        (NARROW, scaled(), "the fast accumulation"),
        (NARROW, scaled(fast_accum=True), None),
        (changed(swap=0), scaled(), None),
        (changed(warps=2), scaled(), None),
        (changed(block_k=16), scaled(fast_accum=True),
         "32 fp8_e4m3 of K at once"),
        (NARROW, scaled(k=4088, fast_accum=True), "multiples of 16"),
        (GEMV, scaled(8), None),
        (GEMV, scaled(9), "more than 8"),
        (GEMV, scaled(1, dtype="fp8_e5m2"), "two e5m2"),
    ],
)  # fmt: skip
def test_what_our_kernels_multiply(config, problem, reason):
    found = config.rejection(problem, H200)
    assert found is None if reason is None else reason in str(found)
    assert "sm80 cannot multiply fp8" in str(config.rejection(problem, A100))
