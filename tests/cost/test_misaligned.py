"""GEMMs of misaligned rows: the aligned GEMM, and the factors, from the shipped table."""

import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.devices import H200

from gemmdb import Policy, Problem
from gemmdb.cost.machine import machine
from gemmdb.cost.misaligned import BY_ROWS, SLOWER, Slower, _apart, aligned, slower
from gemmdb.cost.trees import Corrected
from gemmdb.cost.work import Setting, tile_of
from gemmdb.key.problem import Query
from gemmdb.lookup.acceptance.model import model
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.ranking import outside
from gemmdb.settings import shipped_tables
from gemmdb.table.reader import Table

SIZES = st.integers(1, 5000)


@given(m=SIZES, n=SIZES, k=SIZES, op=st.sampled_from(["mm", "addmm"]), layout=st.sampled_from(["nt", "nn", "tn"]))
def test_the_aligned_gemm_is_the_next_larger_one_and_stays_as_it_is(m, n, k, op, layout):
    found = aligned(Problem.gemm(op, m=m, n=n, k=k, layout=layout))
    assert not any(_apart(found))
    assert found.m == m
    assert 0 <= found.n - n < 8
    assert 0 <= found.k - k < 8
    assert aligned(found) is found
    assert slower(found) == Slower()


@pytest.mark.parametrize(
    "problem",
    [
        Problem.gemm("mm", m=64, n=4096, k=4096), Problem.gemm("mm", m=64, n=1001, k=1001, dtype="fp32"),
        Problem.gemm("mixed_mm", m=64, n=1001, k=1001), Problem.gemm("mm", m=1, n=1001, k=1024),
    ],
)  # fmt: skip
def test_other_gemms_are_left_alone(problem):
    assert aligned(problem) is problem


def test_the_factors_are_those_of_the_shipped_table():
    known = machine(H200)
    found = {apart: tuple(([], []) for _ in range(len(BY_ROWS) + 1)) for apart in SLOWER}
    with Table.open(shipped_tables() / "sm90-nvidia-h200.db") as table:
        for problem, device in table.decided():
            whole = aligned(problem)
            if whole is problem or outside(whole):
                continue
            expected = Corrected.of(Setting.shared(whole, known))
            aten_us = table.verdict(problem, device).aten_us
            aten, ours = found[_apart(problem)][sum(problem.m > most for most in BY_ROWS)]
            aten.append(aten_us / expected.aten_us())
            kernels = (one for one in table.pooled(problem, device) if one.config.backend == "triton")
            best = next((one for one in kernels if tile_of(one.config)), None)
            if best is not None:
                ours.append(best.ratio * aten_us / expected.us(tile_of(best.config)))
    for apart, classes in found.items():
        for factors, measured in zip(SLOWER[apart], classes, strict=True):
            for factor, ratios in zip(factors, measured, strict=True):
                if len(ratios) >= 5:
                    assert factor == pytest.approx(statistics.median(ratios), rel=0.15)


WIDE = Problem.gemm("mm", m=80, n=2730, k=1024)


def test_a_misaligned_gemm_gets_a_kernel_to_confirm_and_none_without_confirming():
    ask = Ask(Query(WIDE, H200), (), Policy(confirm=True), None)
    step = model(ask)
    assert step.hit is not None
    assert step.hit.config.backend == "triton"
    assert 1.5 < step.hit.speedup < 4
    assert step.hit.config.rejection(WIDE, H200) is None
    step = model(replace(ask, policy=Policy(confirm=False)))
    assert step.hit is None
    assert "ATen is served: for such rows the times are a guess" in step.reason


@pytest.mark.parametrize("op", ["mm", "addmm"])
@pytest.mark.parametrize(
    ("m", "layout", "dtype"), [(8, "nt", "bf16"), (64, "nn", "fp16"), (512, "nt", "bf16"), (4096, "nn", "bf16")]
)
def test_so_does_one_with_a_shallow_k(op, m, layout, dtype):
    problem = Problem.gemm(op, m=m, n=512, k=13, layout=layout, dtype=dtype)
    ask = Ask(Query(problem, H200), (), Policy(confirm=True), None)
    step = model(ask)
    assert step.hit is not None
    assert step.hit.config.rejection(problem, H200) is None
    assert (step.hit.config.name, step.hit.config.values["block_k"]) == ("triton:tile", 16)
    assert step.hit.expected_us * step.hit.speedup == pytest.approx(4.3, rel=0.6)
    assert model(replace(ask, policy=Policy(confirm=False))).hit is None


def test_aligned_rows_with_a_shallow_k_are_not_modelled():
    found = model(Ask(Query(Problem.gemm("mm", m=512, n=512, k=16), H200), (), Policy(confirm=True), None))
    assert "one step of a kernel" in found.reason
