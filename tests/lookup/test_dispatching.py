"""A range of M that is divided among several configs, or served by one that is good at all of its sizes."""

from dataclasses import replace

import pytest
from kit.gpu import algorithm, make

from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.lookup import answer
from gemmdb.lookup.acceptance import by_rows
from gemmdb.lookup.acceptance.ranges import ranged
from gemmdb.settings import Policy
from gemmdb.table.measurement import Status
from gemmdb.table.record import STEP

POLICY = Policy()
SIZES = (2, 4, 8, 16, 32)
NARROW, WIDE, OTHER, LAST = (make("tile", block_m=size) for size in (16, 32, 64, 128))

SPLIT = algorithm(split_k=2, reduction=2)

GPU = Device("cuda", "sm90", "Some GPU", 132, 140, figures={"smem_bytes": 232448.0})


def product(m=16, **rest):
    return Problem.gemm("mm", **{"m": m, "n": 256, "k": 256} | rest)


def asked(lab, ratios, *, ranges=(2, 32), m=16, policy=POLICY, sizes=SIZES, **rest):
    """What is answered for a range of M, with one row per size and config: `ratios` maps a config to its ratios."""
    known = {product(size, **rest): {c: values[i] for c, values in ratios.items()} for i, size in enumerate(sizes)}
    catalog = lab.catalog(lab.rows_of(known, device=GPU, clock="graph"))
    return answer(lab.query(product(m, **rest), GPU, ranges={"m": ranges}), catalog, replace(policy, near=False))


def test_each_config_takes_the_part_where_it_is_best(lab):
    hit = asked(lab, {NARROW: [0.5, 0.5, 0.5, 1.5, 2.0], WIDE: [0.9, 0.9, 0.9, 0.6, 0.6]})
    assert hit.branches == ((8, NARROW), (None, WIDE))
    assert (hit.rung, hit.config, hit.speedup) == ("exact", WIDE, pytest.approx(1 / 0.6, rel=STEP))
    first, second = hit.evidence["kernels"]
    assert (first["m"], first["config"], first["worst_regret"]) == ([2, 4, 8], NARROW.text, 0.0)
    assert second["mean_gain"] == pytest.approx(1 / 0.6 - 1, rel=2 * STEP)
    assert hit.evidence["range"] == {"m": [2, 32]}
    assert 0 < hit.evidence["spread"] < 0.2


def test_aten_takes_what_nothing_else_gains_in(lab):
    hit = asked(lab, {NARROW: [0.5, 0.5, 0.5, 0.99, 1.3]}, m=32)
    assert hit.branches == ((16, NARROW), (None, ATEN))
    assert (hit.config, hit.speedup, hit.evidence["spread"]) == (ATEN, 1.0, 0.0)


def test_aten_takes_what_was_not_measured(lab):
    """Beyond the largest M in a table nothing is known, and `mark_dynamic` knows no end."""
    hit = asked(lab, {NARROW: [0.5] * 5}, ranges=(2, None))
    assert hit.branches == ((32, NARROW), (None, ATEN))


@pytest.mark.parametrize(("on_miss", "ratio"), [("error", 0.49), ("aten", 0.496)])
def test_one_config_that_always_gains_needs_no_division(lab, on_miss, ratio):
    """NARROW would be faster at the hint. Where sizes are joined, fewer kernels may lose 2% over all sizes together; in
    strict mode, one config would lose more than the regret there, but a division as much in the mean."""
    ratios = {NARROW: [0.9, 0.9, 0.9, ratio, 0.9], WIDE: [0.5] * 5}
    hit = asked(lab, ratios, policy=replace(POLICY, on_miss=on_miss))
    assert (hit.config, hit.branches) == (WIDE, ())


def test_a_size_that_gains_more_gets_a_kernel_of_its_own(lab):
    hit = asked(lab, {NARROW: [0.9, 0.9, 0.9, 0.45, 0.9], WIDE: [0.5] * 5})
    assert hit.branches == ((8, WIDE), (16, NARROW), (None, WIDE))


def test_a_single_config_for_all_sizes_is_asked_for_only_where_no_size_has_a_kernel(lab, monkeypatch):
    """It takes as long as all sizes together."""
    calls = []
    monkeypatch.setattr(by_rows, "ranged", lambda ask: calls.append(ask) or ranged(ask))
    assert asked(lab, {NARROW: [0.5] * 5}).config == NARROW
    assert not calls
    hit = asked(lab, {NARROW: [1.5] * 5})
    assert (hit.config, len(calls)) == (ATEN, 1)
    assert hit.evidence["reason"]


def test_each_size_has_the_uncertainty_of_its_time(lab):
    hit = asked(lab, {NARROW: [0.5, 0.5, 0.5, 1.5, 2.0]})
    sizes = {one["m"]: one["spread"] for one in hit.evidence["sizes"]}
    assert all((0 < spread < 0.2) == (m <= 8) for m, spread in sizes.items())
    assert sizes[16] == sizes[32] == hit.evidence["spread"] == 0.0


def test_never_slower_than_aten_by_more_than_the_regret(lab):
    ratios = {NARROW: [0.5, 1.1, 0.5, 0.5, 0.5]}
    hit = asked(lab, ratios)
    assert hit.branches == ((2, NARROW), (4, ATEN), (None, NARROW))
    relaxed = asked(lab, ratios, policy=replace(POLICY, range_regret=0.2))
    assert (relaxed.config, relaxed.branches) == (NARROW, ())


def test_as_many_kernels_as_pay(lab):
    """Each is 1.6 times as fast as the others where it is best."""
    best = {NARROW: 0, WIDE: 1, OTHER: 2, LAST: 3}
    hit = asked(lab, {c: [0.5 if i == j else 0.8 for i in range(5)] for c, j in best.items()}, sizes=SIZES, m=2)
    assert hit.branches == ((2, NARROW), (4, WIDE), (8, OTHER), (None, LAST))
    assert all(part["worst_regret"] == 0 for part in hit.evidence["kernels"])


@pytest.mark.parametrize("fusion", ["pointwise", "scale"])
def test_an_epilogue_is_fused_into_a_part_but_atens(lab, fusion):
    """ATen cannot be a part of an integer GEMM and its scale, which are one kernel."""
    op = {"pointwise": "mm", "scale": "int_mm"}[fusion]
    ratios = {32: 0.5, 64: 0.5, 128: 0.5, 256: 1.5, 512: 2.0}
    known = {
        Problem.gemm(op, m=size, n=256, k=256, fusion=which): {NARROW: ratio}
        for which in ("none", fusion) for size, ratio in ratios.items()
    }  # fmt: skip
    catalog = lab.catalog(lab.rows_of(known, device=GPU))
    problem = Problem.gemm(op, m=64, n=256, k=256, fusion=fusion)
    hit = answer(lab.query(problem, GPU, ranges={"m": (32, 512)}), catalog, replace(POLICY, near=False))
    assert hit.branches == (((128, NARROW), (None, ATEN)) if fusion == "pointwise" else ())


def test_what_is_not_divided(lab):
    ratios = {NARROW: [0.5, 0.5, 0.5, 1.5, 2.0]}
    assert asked(lab, ratios).branches
    # Batch invariance divides only GEMMs whose kernels it can choose.
    assert asked(lab, ratios, dtype="fp32").branches
    assert not asked(lab, ratios, policy=replace(POLICY, batch_invariant=True), dtype="fp32").branches
    assert not asked(lab, ratios, constant_weight=True).branches
    both = lab.catalog(list(lab.rows(product(), {NARROW: 0.5}, device=GPU)))
    query = lab.query(product(), GPU, ranges={"m": (2, 32), "n": (2, 256)})
    assert not answer(query, both, POLICY).branches


def test_denied_configs_take_no_part(lab):
    ratios = {NARROW: [0.5, 0.5, 0.5, 1.5, 2.0], WIDE: [0.6, 0.6, 0.6, 1.5, 2.0]}
    hit = asked(lab, ratios, policy=replace(POLICY, deny="block_m=16 "))
    assert hit.branches == ((8, WIDE), (None, ATEN))


@pytest.mark.parametrize(("ratio", "taken"), [(0.5, NARROW), (0.99, ATEN)])
def test_a_doubtful_forecast_counts_as_far_as_it_is_sure(lab, ratio, taken):
    """Between rows that were measured, a gain of half outlives the doubt, and one of 1% does not."""
    known = {product(size): {NARROW: ratio, WIDE: 2.0} for size in (2, 8, 32)}
    catalog = lab.catalog(lab.rows_of(known, device=GPU, clock="graph"))
    policy = replace(POLICY, min_gain=0.005, near_loss=0.001, model=False)
    hit = answer(lab.query(product(8), GPU, ranges={"m": (2, 32)}), catalog, policy)
    branches = hit.branches or ((None, hit.config),)
    for m in (4, 16):
        assert next(config for limit, config in branches if limit is None or m <= limit) == taken


def test_what_was_not_measured_is_to_be_confirmed(lab):
    """A guess may be timed at each size that it serves; without confirming, it must be certain."""
    known = {product(size): {NARROW: 0.3, WIDE: 2.0} for size in (2, 8)} | {product(64): {NARROW: 1.5, WIDE: 0.5}}
    catalog = lab.catalog(lab.rows_of(known, device=GPU, clock="graph"))
    query = lab.query(product(4), GPU, ranges={"m": (2, 64)})
    policy = replace(POLICY, model=False, on_miss="aten")
    hit = answer(query, catalog, replace(policy, confirm=True))
    found = [(one["m"], one["config"]) for one in hit.evidence["unmeasured"]]
    assert found[:4] == [(m, NARROW.text) for m in (4, 16, 24, 32)]
    assert all(one["speedup"] > 1 and one["us"] > 0 for one in hit.evidence["unmeasured"])
    without = answer(query, catalog, policy)
    assert without is None or "unmeasured" not in without.evidence


def test_nothing_is_confirmed_where_everything_was_measured(lab):
    known = {product(size): {NARROW: 0.5 if size < 8 else 1.5, WIDE: 0.6} for size in (2, 4, 8, 16, 32)}
    catalog = lab.catalog(lab.rows_of(known, device=GPU, clock="graph"))
    query = lab.query(product(16), GPU, ranges={"m": (2, 32)})
    hit = answer(query, catalog, replace(POLICY, near=False, model=False, confirm=True, on_miss="aten"))
    assert hit.branches == ((4, NARROW), (None, WIDE))
    assert hit.evidence["unmeasured"] == []


@pytest.mark.parametrize(("aten_us", "last"), [(20.0, ATEN), (200.0, SPLIT)])
def test_no_size_gets_a_kernel_whose_calls_take_the_host_too_long(lab, aten_us, last):
    """Alone, the largest sizes get ATen, because the calls of their kernel take longer than it saves."""
    ratios = {NARROW: [0.3, 2.0, 2.0, 2.0, 2.0], SPLIT: [0.5, 0.5, 0.5, 0.95, 0.95]}
    known = {product(size): {c: values[i] for c, values in ratios.items()} for i, size in enumerate(SIZES)}
    catalog = lab.catalog(lab.rows_of(known, device=GPU, clock="graph", aten_us=aten_us))
    for m in SIZES:
        policy = replace(POLICY, near=False, captured=False)
        hit = answer(lab.query(product(m), GPU, ranges={"m": (2, 32)}), catalog, policy)
        if last == ATEN:
            assert hit.branches == ((2, NARROW), (8, SPLIT), (None, ATEN))
        else:  # The algorithm's time at 24 is unknown.
            assert hit.branches == ((2, NARROW), (16, SPLIT), (24, ATEN), (None, SPLIT))
        assert "left_out" not in hit.evidence


@pytest.mark.parametrize(
    ("confirm", "estimate", "taken"), [(True, 0.8, True), (True, 0.99, False), (False, 0.8, False)]
)
def test_where_the_fastest_takes_one_row_alone_an_estimate_is_confirmed(lab, confirm, estimate, taken):
    """`gemv` is compiled for a number of rows. What its search dropped may serve a range, if a compile times it."""
    gemv = make("gemv")
    rows = list(lab.rows(product(2), {gemv: 0.7}, device=GPU, clock="graph"))
    rows += [
        row for row in lab.rows(product(2), {NARROW: estimate}, status=Status.SLOW, device=GPU, clock="graph")
        if row.config == NARROW
    ]  # fmt: skip
    rows += lab.rows_of({product(size): {NARROW: 0.75} for size in SIZES[1:]}, device=GPU, clock="graph")
    policy = replace(POLICY, near=False, model=False, on_miss="aten", confirm=confirm)
    hit = answer(lab.query(product(), GPU, ranges={"m": (2, 32)}), lab.catalog(rows), policy)
    assert (hit.branches or ((None, hit.config),)) == (((None, NARROW),) if taken else ((2, ATEN), (None, NARROW)))
    unmeasured = hit.evidence.get("unmeasured", [])
    assert [(one["m"], one["config"]) for one in unmeasured] == ([(2, NARROW.text)] if taken else [])


@pytest.mark.parametrize("others", [[0.9] * 5, [0.9, 1.0, 1.0, 1.0, 1.0], [1.2] * 5])
def test_a_kernel_that_cannot_share_a_node_serves_the_range_if_it_takes_less_time(lab, others):
    alone = make("tile", block_m=32, split_k=4, reduce="kernel")
    hit = asked(lab, {alone: [0.5] * 5, NARROW: others})
    assert (hit.config, hit.branches) == (alone, ())
    assert hit.speedup == pytest.approx(2, rel=STEP)


def test_one_config_that_is_nearly_the_best_everywhere_saves_the_others_compiles(lab):
    best = [make("tile", block_m=16, group_m=group, stages=stages) for group in (1, 2, 4) for stages in (2, 3)][:5]
    ratios = {config: [0.4955 if place == mine else 0.9 for place in range(5)] for mine, config in enumerate(best)}
    hit = asked(lab, {WIDE: [0.5] * 5, **ratios})
    assert (hit.config, hit.branches) == (WIDE, ())
    hit = asked(lab, {WIDE: [0.55] * 5, **ratios})
    assert len(hit.branches) == 5


def test_a_kernel_that_cannot_share_a_node_is_not_served_where_aten_may_be_faster_between_sizes(lab):
    """With 32 rows, it takes longer than ATen with 16, whose time in between is unknown. Others leave that to ATen."""
    alone = make("tile", block_m=32, split_k=4, reduce="kernel")
    rows = [
        row
        for place, size in enumerate(SIZES)
        for row in lab.rows(
            product(size), {alone: 0.6, NARROW: 0.9}, device=GPU, clock="graph", aten_us=10.0 * 4**place
        )
    ]
    hit = answer(lab.query(product(), GPU, ranges={"m": (2, 32)}), lab.catalog(rows), replace(POLICY, near=False))
    assert {config for _, config in hit.branches} == {NARROW, ATEN}
