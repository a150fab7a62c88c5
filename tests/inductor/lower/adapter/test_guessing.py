"""Sizes that come out of data, without a compile: what stands for them, and what a kernel cannot promise of them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from kit.devices import H200

from gemmdb import Config, Problem
from gemmdb.inductor.decide import legality
from gemmdb.inductor.lower.adapter import symbolic
from gemmdb.key.problem import Query


def test_a_sum_over_what_data_say_may_be_empty():
    """ATen alone is known to do that right."""
    config = Config.of(
        "triton", "tile", block_m=16, block_n=64, block_k=64, group_m=8, split_k=1, reduce="none", swap=0,
        load="pointer", dequant="cast", warps=4, stages=3,
    )  # fmt: skip
    device = H200
    problem = Problem.gemm("mm", m=64, n=64, k=16, layout="tn")
    empty, some = (legality.rejection(config, Query(problem, device, {"k": (low, 200)})) for low in (0, 1))
    assert "K may be 0" in str(empty)
    assert some is None
    assert legality.rejection(config, Query(problem, device, {"m": (0, 200)})) is None


@pytest.mark.parametrize(
    ("low", "high", "guess"),
    [(1, 100, 8), (0, 200, 16), (0, None, 256), (17, 31, 22), (5, 5, 5), (0, 0, 1), (None, 1, 1), (10**6, None, 10**6)],
)
def test_the_guess_is_a_power_of_two_between_the_bounds(low, high, guess):
    assert symbolic.middle(low, high) == guess
