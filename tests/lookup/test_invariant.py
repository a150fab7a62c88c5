"""Rung `invariant`: all M of a GEMM get kernels that add in one order."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.devices import A100, H200, known
from kit.gpu import make
from kit.lab import CPU

from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.triton.sum_order import WARP, WARP_GROUP, SumOrder, possible, sum_order
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Operand
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import MOST_LEFT_OUT, answer, explain
from gemmdb.lookup.acceptance import invariant
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy, Settings
from gemmdb.table.catalog import Catalog
from gemmdb.table.measurement import Status

POLICY = Policy(batch_invariant=True).resolved(Settings.read({}))
SIZES = st.integers(1, 9000)
WIDTHS = st.sampled_from([1, 8, 24, 333, 512, 777, 1000, 2048, 4096, 6144, 14336, 28672])
B200 = known("NVIDIA B200")
DEVICES = st.sampled_from([H200, A100, B200])
BESIDE = ("none", "pointwise", "pointwise:math", "pointwise:math:reads1", "pointwise:kept", "pointwise:fp32")


@pytest.fixture(scope="module")
def shipped():
    return Catalog.load(Settings((), Path("/nonexistent/user.db"), "aten"))


@st.composite
def products(draw):
    """A GEMM that batch invariance covers, of any M."""
    op, dtype = draw(st.sampled_from(["mm", "addmm"])), draw(st.sampled_from(["bf16", "fp16"]))
    layout = draw(st.sampled_from(["nn", "nt", "tn", "tt"]))
    fusion = draw(st.sampled_from(BESIDE))
    return Problem.gemm(
        op, m=draw(SIZES), n=draw(WIDTHS), k=draw(WIDTHS), dtype=dtype, layout=layout, fusion=fusion
    )  # fmt: skip


def orders(hit, query):
    """The summation orders of all kernels of a hit."""
    return {sum_order(config, query.problem, query.device) for config, _ in hit.kernels(query.ranges)}


@given(products(), SIZES, DEVICES, st.data())
def test_any_two_sizes_get_one_order(shipped, problem, other, device, data):
    """Also if A, the bias or the epilogue differ, as they may between the graphs of two sizes."""
    query = Query(problem, device)
    hit = answer(query, shipped, POLICY)
    assert hit is not None
    assert ATEN not in [config for config, _ in hit.kernels({})]
    align = data.draw(st.sampled_from([1, 2, 4, 8]))
    changed = replace(
        problem, m=other, a=Operand(problem.a.dtype, Layout(data.draw(st.sampled_from(["row-padded", "col"])), align)),
        fusion=data.draw(st.sampled_from(BESIDE)),
        bias=problem.bias and replace(problem.bias, kind=data.draw(st.sampled_from(["1d", "full", "column"]))),
    )  # fmt: skip
    again = answer(replace(query, problem=changed), shipped, POLICY)
    assert again is not None
    assert orders(again, replace(query, problem=changed)) == orders(hit, query)
    assert len(orders(hit, query)) == 1
    assert None not in orders(hit, query)
    assert again.evidence["sum_order"] == hit.evidence["sum_order"]


@given(products(), st.integers(1, 600), st.none() | st.integers(0, 5000), DEVICES)
def test_a_symbolic_size_gets_the_order_of_fixed_ones(shipped, problem, low, more, device):
    high = None if more is None else low + more
    problem = problem.resized(low if high is None else (low + high) // 2, problem.n, problem.k)
    query = Query(problem, device, {"m": (low, high)})
    fixed, ranged = answer(Query(problem, device), shipped, POLICY), answer(query, shipped, POLICY)
    assert fixed is not None
    assert ranged is not None
    assert orders(ranged, query) == orders(fixed, query)
    parts = list(ranged.kernels(query.ranges))
    assert parts[-1][1] is None or parts[-1][1][1] == high
    assert ranged.config in [config for config, _ in parts]
    assert ranged.expected_us > 0


@given(st.integers(0, 5000), st.none() | st.integers(1, 5000))
def test_the_intervals_cover_a_range_once(low, more):
    high = None if more is None else low + more
    parts = invariant.intervals(low, high)
    assert (parts[0][0], parts[-1][1]) == (low, high)
    assert all(before[1] + 1 == after[0] for before, after in pairwise(parts))
    assert all(end is None or start <= end for start, end in parts)


NOT_COVERED = {
    "int_mm": (Problem.gemm("int_mm", m=32, n=512, k=512), H200, {}),
    "fp32": (Problem.gemm("mm", m=32, n=512, k=512, dtype="fp32"), H200, {}),
    "a weight of int8": (Problem.gemm("mixed_mm", m=32, n=512, k=512), H200, {}),
    "a CPU": (Problem.gemm("mm", m=32, n=512, k=512), CPU, {}),
    "no bf16": (Problem.gemm("mm", m=32, n=512, k=512), replace(H200, arch="sm75"), {}),
    "a symbolic N": (Problem.gemm("mm", m=32, n=512, k=512), H200, {"n": (2, None)}),
    "no rows": (Problem.gemm("mm", m=0, n=512, k=512), H200, {}),
    "no order": (
        replace(Problem.gemm("mm", m=32, n=512, k=512), a=Operand("bf16", Layout("strided", 1))), H200, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_COVERED)
def test_what_is_not_covered_is_named(shipped, name):
    """The other rungs answer, and the evidence says that the answer depends on M."""
    problem, device, ranges = NOT_COVERED[name]
    query = Query(problem, device, ranges)
    first, *others = explain(query, shipped, POLICY)
    assert (first.rung, first.hit) == ("invariant", None)
    assert first.reason == str(invariant.rejection(query))
    assert [step.rung for step in others] == [step.rung for step in explain(query, shipped, Policy(on_miss="aten"))]
    hit = answer(query, shipped, POLICY)
    assert hit is None or hit.evidence["not_batch_invariant"] == first.reason


def test_without_the_policy_no_rung_is_added(shipped):
    query = Query(Problem.gemm("mm", m=32, n=512, k=512), H200)
    assert "invariant" not in [step.rung for step in explain(query, shipped, Policy())]
    hit = answer(query, shipped, Policy())
    assert hit is None or "sum_order" not in hit.evidence


def test_the_order_loses_least_over_the_measured_sizes(lab, no_shipped_tables):
    """`warp` is faster at 8 rows, but loses more in the mean; what failed at one M does not change the order."""
    group, warp = make("tile", block_m=16, block_n=64, swap=1), make("tile", block_m=16, block_n=32, warps=2)
    problem = Problem.gemm("mm", m=8, n=1024, k=1024)

    def chosen(**ratios):
        given = {group: ratios["group"], warp: ratios["warp"]}
        times = {problem.resized(m, 1024, 1024): given for m in (1, 16, 32, 64)}
        times[problem] = {group: 0.8, warp: 0.7}
        found = lab.catalog(lab.rows_of(times, device=H200, clock="graph"))
        return answer(lab.query(problem, H200), found, replace(POLICY, near=False, model=False))

    assert chosen(group=0.5, warp=0.9).config == group
    hit = chosen(group=0.9, warp=0.5)
    assert (hit.config, hit.rung, hit.evidence["sum_order"]) == (warp, "exact", "unit=warp slices=1")


def test_rows_without_the_epilogue_or_the_bias_choose_the_kernel(lab, no_shipped_tables):
    """They were measured, where the cost model only guesses. Rows with the epilogue go first."""
    plain, own = make("tile", swap=1, block_k=128), make("tile", swap=1, block_k=32)
    problem = Problem.gemm("mm", m=32, n=1024, k=1024)
    biased = Problem.gemm("addmm", m=32, n=1024, k=1024, fusion="pointwise:math")
    rows = lab.rows_of({problem: {plain: 0.5}}, device=H200, clock="graph")
    hit = answer(lab.query(biased, H200), lab.catalog(rows), POLICY)
    assert (hit.config, hit.rung, hit.expected_us) == (plain, "epilogue", pytest.approx(50.0, rel=0.01))
    rows += lab.rows_of({biased: {own: 0.5}}, device=H200, clock="graph")
    hit = answer(lab.query(biased, H200), lab.catalog(rows), POLICY)
    assert (hit.config, hit.rung) == (own, "exact")


def test_a_kernel_that_was_wrong_is_not_served(lab, no_shipped_tables):
    """Neither as a default, nor by the rows without the epilogue, where it was right."""
    problem = Problem.gemm("mm", m=32, n=1024, k=1024, fusion="pointwise:math")
    policy = replace(POLICY, near=False, model=False)
    first = answer(lab.query(problem, H200), lab.catalog([]), policy).config
    wrong = lab.rows_of({problem: {first: 0.1}}, device=H200, clock="graph", status=Status.WRONG)
    right = lab.rows_of({replace(problem, fusion="none"): {first: 0.1}}, device=H200, clock="graph")
    hit = answer(lab.query(problem, H200), lab.catalog([*wrong, *right]), policy)
    assert hit.config not in (first, ATEN)
    assert hit.evidence["sum_order"]


def test_a_kernel_that_cannot_run_is_replaced_by_another_of_the_order(shipped):
    query = Query(Problem.gemm("mm", m=16, n=4096, k=4096), H200)
    first = answer(query, shipped, POLICY)

    def excluded(config, rows):
        return Rejected("no") if config == first.config else None

    second = answer(query, shipped, POLICY, None, excluded)
    assert second.config != first.config
    assert orders(second, query) == orders(first, query)
    denied = answer(query, shipped, replace(POLICY, deny="triton"))
    assert denied.evidence["not_batch_invariant"].startswith("no kernel")


@pytest.mark.parametrize("ranges", [{}, {"m": (2, None)}], ids=["fixed", "symbolic"])
def test_aten_in_place_of_kernels_that_cannot_run_is_a_miss(shipped, ranges):
    query = Query(Problem.gemm("mm", m=16, n=4096, k=4096), H200, ranges)

    def excluded(config, rows):
        return Rejected("no") if config.backend == "triton" else None

    hit, (step, *_) = (find(query, shipped, POLICY, None, excluded) for find in (answer, explain))
    assert step.hit is None
    assert "cannot run" in step.reason
    assert len(step.evidence["left_out"]) == MOST_LEFT_OUT + 1
    assert hit is None or (hit.evidence["not_batch_invariant"], "sum_order" in hit.evidence) == (step.reason, False)


def test_the_policy_times_nothing():
    assert (POLICY.on_miss, POLICY.confirm) == ("aten", False)
    strict = Policy(batch_invariant=True, on_miss="error", confirm=True).resolved(Settings.read({}))
    assert (strict.on_miss, strict.confirm) == ("error", False)


def order_of(config: Config, k: int = 1024, device=H200) -> SumOrder | None:
    return sum_order(config, Problem.gemm("mm", m=32, n=512, k=k), device)


@pytest.mark.parametrize(
    ("config", "unit"),
    [
        (make("tile"), WARP), (make("tile", block_m=64), WARP_GROUP), (make("tile", swap=1), WARP_GROUP),
        (make("tile", block_m=64, warps=2), WARP), (make("persistent"), WARP_GROUP),
        (make("narrow", stagger=0), WARP), (make("narrow", stagger=1), None),
        (make("tile", split_k=2, reduce="kernel"), None), (make("gemv"), None), (ATEN, None),
    ],
    ids=str,
)  # fmt: skip
def test_the_order_of_a_config(config, unit):
    assert order_of(config) == (None if unit is None else SumOrder(unit))
    # Before Hopper, all tiles go to the instructions of a warp.
    assert order_of(config, device=A100) == (None if unit is None else SumOrder(WARP))


@pytest.mark.parametrize(("device", "units"), [(A100, "ww"), (H200, "gg"), (B200, "gw")], ids=["A100", "H200", "B200"])
def test_tcgen05_takes_no_tile_of_16_warps(device, units):
    tiles = [make("tile", block_m=128, block_n=128, warps=warps) for warps in (8, 16)]
    assert [order_of(tile, device=device) for tile in tiles] == [
        SumOrder({"w": WARP, "g": WARP_GROUP}[unit]) for unit in units
    ]


def test_slices_are_the_same_whether_one_program_adds_them_or_several():
    wanted = SumOrder(WARP_GROUP, 4, 256)
    assert order_of(make("tile", swap=1, split_k=4, reduce="fixup")) == wanted
    assert order_of(make("tile", swap=1, slices=4, block_k=128)) == wanted
    assert order_of(make("narrow", stagger=0, swap=1, split_k=4)) == wanted
    assert order_of(make("tile", block_m=64, slices=2)) == SumOrder(WARP_GROUP, 2, 512)
    # With steps of 64, three slices end elsewhere than with steps of 256. Slices beyond the end of K are none.
    assert order_of(make("tile", slices=3)) == SumOrder(WARP, 3, 384)
    assert order_of(make("tile", slices=3, block_k=256)) == SumOrder(WARP, 2, 512)


def test_only_the_faster_instructions_cut_a_k_that_is_long_enough():
    long, short = (Problem.gemm("mm", m=32, n=512, k=k) for k in (4096, 500))
    assert possible(short, H200) == (SumOrder(WARP_GROUP), SumOrder(WARP))
    cut = SumOrder(WARP_GROUP, 2, 2048), SumOrder(WARP_GROUP, 4, 1024)
    assert possible(long, H200) == (SumOrder(WARP_GROUP), SumOrder(WARP), *cut)
    assert possible(long, A100) == (SumOrder(WARP), SumOrder(WARP, 2, 2048), SumOrder(WARP, 4, 1024))
    assert possible(long, replace(H200, arch="sm75")) == ()


def test_a_cut_k_is_cut_for_all_sizes(shipped):
    """Several programs sum the slices of few rows, one program those of many and of a range without an end."""
    problem = Problem.gemm("mm", m=16, n=4096, k=14336)
    few, many = (answer(Query(problem.resized(m, 4096, 14336), H200), shipped, POLICY) for m in (16, 3000))
    assert few.evidence["sum_order"] == many.evidence["sum_order"] == "unit=warp_group slices=4"
    assert (few.params["split_k"], many.params["slices"]) == (4, 4)
    query = Query(problem, H200, {"m": (2, None)})
    assert orders(answer(query, shipped, POLICY), query) == {SumOrder(WARP_GROUP, 4, 3584)}
