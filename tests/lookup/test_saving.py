"""What tuning could save, and whether that repays it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdb.cost.roofline import roofline_us
from gemmdb.devices import registry
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.saving import LEAST_US, repaying, saving, trivial
from gemmdb.settings import Policy

H200 = registry.find("NVIDIA H200")
ROTARY = Problem.gemm("mm", m=64, n=4, k=1, dtype="fp32")


def expected(problem, device=H200, **policy):
    return saving(Ask(Query(problem, device), (), Policy(compile_cost=9, **policy), None))


def test_a_weight_of_integers_saves_more_than_one_of_the_dtype_of_the_rows():
    dense, mixed = (expected(Problem.gemm(op, m=16, n=4096, k=4096)) for op in ("mm", "mixed_mm"))
    assert mixed.us > 10 > dense.us
    assert mixed.best_us < mixed.aten_us


@pytest.mark.parametrize("problem", [ROTARY, ROTARY.resized(4096, 4096, 1), ROTARY.resized(0, 64, 64)])
@pytest.mark.parametrize("device", [H200, Device("cpu", "cpu", "Some CPU", 2)])
def test_an_outer_gemm_and_an_empty_one_save_nothing(problem, device):
    assert trivial(problem)
    assert expected(problem, device).us == 0


def test_what_is_all_launch_saves_nothing():
    assert expected(Problem.gemm("mm", m=16, n=128, k=128)).us == 0
    assert expected(ROTARY.resized(64, 64, 64)).us == 0


@pytest.mark.parametrize(
    "problem",
    [
        Problem.gemm("mm", m=512, n=4096, k=4093),
        Problem.gemm("mm", m=512, n=4096, k=4096, dtype="fp32"),
        Problem.gemm("mixed_mm", m=16, n=4096, k=4093),
        Problem.gemm("bmm", batch=64, m=512, n=512, k=128),
        Problem.gemm("scaled_mm", m=512, n=4096, k=4096, scales="block"),
    ],
    ids=str,
)
def test_what_the_model_does_not_cover_is_estimated_by_its_kind(problem):
    found = expected(problem)
    assert roofline_us(problem, H200) <= found.best_us < found.aten_us


@pytest.mark.parametrize(
    ("m", "n", "k", "packing", "aten_us", "best_us"),
    [
        (4, 512, 3584, "low-first", 13.0, 5.4),
        (1, 8192, 8192, "low-first", 197.0, 17.7),
        (16, 28672, 8192, "low-first", 276.2, 64.8),
        (64, 5120, 5120, "low-first", 38.3, 28.6),
        (512, 4096, 14336, "low-first", 162.7, 162.7),
        (1, 5120, 5120, "tinygemm8", 10.7, 8.9),
        (16, 28672, 8192, "tinygemm8", 264.1, 49.3),
        (64, 4096, 14336, "tinygemm8", 268.6, 27.7),
        (512, 11008, 4096, "tinygemm8", 1586.4, 91.5),
    ],
)
def test_an_int4_weight_saves_about_what_was_measured(m, n, k, packing, aten_us, best_us):
    """Times from the H200 table: ATen expands a weight that is not tiled, and is slow for many rows of a tiled one."""
    found = expected(Problem.gemm("mixed_mm", m=m, n=n, k=k, weight_dtype="int4", packing=packing))
    assert found.aten_us == pytest.approx(aten_us, rel=0.55)
    assert found.us == pytest.approx(aten_us - best_us, rel=0.75, abs=30 if m > 16 else 2)


@pytest.mark.parametrize("m", [1, 16, 256, 2048])
def test_a_frozen_int4_weight_takes_aten_as_long_as_one_of_16_bits(m):
    """Freezing has expanded it. A tiled weight stays as it is."""
    frozen, plain, dense, tiled, frozen_tiled = (
        expected(Problem.gemm(op, m=m, n=8192, k=8192, **rest)).aten_us
        for op, rest in [
            ("mixed_mm", {"weight_dtype": "int4", "packing": "low-first", "constant_weight": True}),
            ("mixed_mm", {"weight_dtype": "int4", "packing": "low-first"}),
            ("mm", {}),
            ("mixed_mm", {"weight_dtype": "int4", "packing": "tinygemm8"}),
            ("mixed_mm", {"weight_dtype": "int4", "packing": "tinygemm8", "constant_weight": True}),
        ]
    )
    assert frozen == pytest.approx(dense, rel=0.35)
    assert frozen < plain
    assert tiled == frozen_tiled


def test_a_large_gemm_of_fp8_saves_nothing_and_a_short_one_does():
    """ATen is faster than any of our kernels from a few hundred rows on."""
    large, short = (expected(Problem.gemm("scaled_mm", m=m, n=4096, k=4096, scales="row")) for m in (2048, 16))
    assert large.us == 0
    assert short.us > 2


def test_nothing_is_known_of_a_cpu():
    assert expected(Problem.gemm("mm", m=16, n=512, k=512, dtype="fp32"), Device("cpu", "cpu", "Some CPU", 2)) is None


@given(
    m=st.integers(0, 5000),
    n=st.integers(1, 5000),
    k=st.integers(0, 5000),
    dtype=st.sampled_from(["bf16", "fp16", "fp32"]),
    op=st.sampled_from(["mm", "addmm"]),
    kind=st.sampled_from([H200, Device("cuda", "sm99", "Unknown", 100)]),
)
def test_nothing_is_expected_below_the_launch_or_the_roofline(m, n, k, dtype, op, kind):
    problem = Problem.gemm(op, m=m, n=n, k=k, dtype=dtype)
    found = expected(problem, kind)
    assert 0 <= found.us < found.aten_us
    if found.us:
        assert found.best_us >= max(LEAST_US, roofline_us(problem, kind))


SAVED = st.dictionaries(st.builds(ROTARY.resized, st.integers(1, 9), st.just(1), st.just(1)), st.floats(0, 100))


@given(SAVED, st.integers(1, 10**6), st.floats(0.5, 5), st.floats(0.1, 1))
def test_what_is_tuned_repays_the_time_that_it_takes(us, calls, first_s, further_s):
    order = repaying(us, calls, first_s, further_s)
    assert [us[problem] for problem in order] == sorted((us[problem] for problem in order), reverse=True)
    saved_s = sum(us[problem] for problem in order) * calls / 1e6
    assert saved_s >= (first_s + further_s * (len(order) - 1) if order else 0) * (1 - 1e-9)
    if order:
        # Nothing that repays its own second is left out.
        assert all(us[problem] * calls / 1e6 < further_s for problem in us if problem not in order)


def test_a_saving_that_repays_only_the_further_time_is_not_worth_the_first():
    us = {ROTARY: 12.0}
    assert repaying(us, 100_000, 1.0, 1.0) == [ROTARY]
    assert repaying(us, 100_000, 3.0, 1.0) == []
    assert repaying({ROTARY: 12.0, ROTARY.resized(1, 2, 3): 40.0}, 100_000, 3.0, 1.0)[1] == ROTARY
