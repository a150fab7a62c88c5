"""The least time of a problem: below every honest one, and above what a stranger may claim; and the roofline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.devices import known

from gemmdb.cost.possible import CALL_US, least_us, possible
from gemmdb.cost.roofline import roofline_us
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

H200 = known("NVIDIA H200")
CPU = Device("cpu", "cpu", "Some CPU", 8)
LARGE = Problem.gemm("mm", m=4096, n=4096, k=4096)
NARROW = Problem.gemm("mm", m=1, n=57344, k=8192)


def test_a_gemm_takes_at_least_a_quarter_of_what_the_data_sheet_says():
    us = 2 * 4096**3 / 989e6
    assert least_us(LARGE, H200, "cold") == pytest.approx(us / 4)
    assert least_us(Problem.gemm("int_mm", m=4096, n=4096, k=4096), H200, "hot") == pytest.approx(us / 8)


def test_a_cold_cache_has_to_be_filled_and_a_hot_one_has_not():
    us = (57344 * 8192 + 8192) * 2 / 4800e3
    assert least_us(NARROW, H200, "cold") == pytest.approx(us / 4)
    assert least_us(NARROW, H200, "hot") < us / 100


def test_one_group_may_have_all_the_work():
    one = Problem.gemm("grouped_mm", m=16, n=4096, k=4096, groups=1)
    assert least_us(replace(one, groups=64), H200, "cold") == least_us(one, H200, "cold")


def test_a_batch_of_one_matrix_reads_it_once():
    own = Problem.gemm("bmm", m=1, n=4096, k=4096, batch=16)
    same = replace(own, b=replace(own.b, layout=replace(own.b.layout, batch="broadcast")))
    assert least_us(same, H200, "cold") < least_us(own, H200, "cold") / 10


@pytest.mark.parametrize("us", [1e-6, 0.01, 30])
def test_a_large_gemm_is_not_that_fast(us):
    assert not possible(us, LARGE, H200, "cold")
    assert possible(us, LARGE.resized(1, 16, 16), H200, "cold") == (us >= CALL_US["cuda"])


def test_a_device_that_nobody_knows_is_trusted_with_far_more_than_there_is():
    future = Device("cuda", "sm190", "NVIDIA Z900", 132, 500)
    assert possible(2 * 4096**3 / 989e6 / 20, LARGE, future, "cold")
    assert not possible(0.01, LARGE, future, "cold")
    assert not possible(1.0, LARGE, CPU, "cold")


def test_figures_of_a_table_change_nothing():
    """They come from whoever made it."""
    for figure in ("tc_tflops", "peak_tflops", "copy_gb_per_s"):
        for value in (1e-9, 1e30):
            claimed = replace(H200, figures={figure: value})
            assert least_us(LARGE, claimed, "cold") == least_us(LARGE, H200, "cold")


def test_another_sku_of_an_arch_has_a_wider_margin():
    """Its memory may be twice as fast per SM, as that of GeForce is beside an L4's."""
    other = replace(H200, sku="NVIDIA H900")
    assert least_us(LARGE, other, "cold") == pytest.approx(least_us(LARGE, H200, "cold") / 4)


@given(
    m=st.integers(0, 5000), n=st.integers(0, 5000), k=st.integers(0, 5000),
    op=st.sampled_from(["mm", "addmm", "int_mm", "mixed_mm", "scaled_mm", "bmm", "grouped_mm"]),
    l2=st.sampled_from(["cold", "hot"]), ratio=st.floats(0.01, 100), device=st.sampled_from([H200, CPU]),
)  # fmt: skip
def test_the_quick_answer_is_that_of_the_bound(m, n, k, op, l2, ratio, device):
    more = {"batch": 3} if op == "bmm" else {}
    problem = Problem.gemm(op, m=m, n=n, k=k, **more)
    us = ratio * least_us(problem, device, l2)
    assert possible(us, problem, device, l2) == (us >= least_us(problem, device, l2))


@given(m=st.integers(1, 9), n=st.integers(1, 99), group=st.sampled_from([32, 128]), ratio=st.floats(0.01, 100))
def test_the_quick_answer_for_int4_weights(m, n, group, ratio):
    problem = Problem.gemm("mixed_mm", m=m, n=128 * n, k=1024, weight_dtype="int4", group=group)
    least = least_us(problem, H200, "cold")
    assert possible(ratio * least, problem, H200, "cold") == (ratio * least >= least)


def test_the_roofline_is_the_longer_of_moving_and_computing():
    gpu = Device("cuda", "sm90", "GPU", 100, 80, figures={"copy_gb_per_s": 4000.0, "peak_tflops": 800.0})
    thin = Problem.gemm("mm", m=1, n=16384, k=16384)
    thick = Problem.gemm("mm", m=8192, n=8192, k=8192)
    assert roofline_us(thin, gpu) == pytest.approx(thin.bytes / 4000e9 * 1e6)
    assert roofline_us(thick, gpu) == pytest.approx(thick.flops / 800e12 * 1e6)
    assert roofline_us(Problem.gemm("mm", m=8, n=64, k=32, dtype="fp32"), gpu) == 1.0


@pytest.mark.parametrize("kind", ["cpu", "cuda", "hip"])
def test_the_roofline_needs_no_figures_and_knows_wider_types_are_slower(kind):
    device = Device(kind, "some1", "Device", 64)
    times = [
        roofline_us(Problem.gemm(op, m=8192, n=8192, k=8192, dtype=dtype), device)
        for op, dtype in (("int_mm", "int8"), ("mm", "bf16"), ("mm", "fp32"), ("mm", "fp64"))
    ]
    assert times == sorted(times)
    assert len(set(times)) == 4
