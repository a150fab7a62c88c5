"""Rung `sku`: rows of another SKU of the same arch, scaled under both bounds and named in the Hit."""

import json
from dataclasses import replace

import pytest

from gemmdb.devices import registry
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.lookup import answer, explain
from gemmdb.lookup import sku as sku_module
from gemmdb.settings import Policy
from gemmdb.table.measurement import Status

H100, H200 = registry.find("NVIDIA H100 80GB HBM3"), registry.find("NVIDIA H200")
PCIE, A100 = registry.find("NVIDIA H100 PCIe"), registry.find("NVIDIA A100-SXM4-80GB")
POLICY = Policy(sku=True, model=False)
THIN = Problem.gemm("mm", m=16, n=4096, k=4096)
WIDE = Problem.gemm("mm", m=2048, n=4096, k=4096)


@pytest.fixture(autouse=True)
def no_shipped_tables(tmp_path, monkeypatch):
    """The shipped table has rows of a real H200."""
    monkeypatch.setattr("gemmdb.table.catalog.shipped_tables", lambda: tmp_path / "none")


def tile(n, m=16):
    return Config.of(
        "triton", "tile", block_m=m, block_n=n, block_k=64, group_m=8, split_k=1, reduce="none", swap=0,
        load="pointer", dequant="cast", warps=4, stages=3,
    )  # fmt: skip


def catalog(lab, problem, ratios, device=H100, **where):
    return lab.catalog([*lab.rows(problem, ratios, device=device, clock="graph", **where)])


def reason(lab, problem, device, tables, policy=POLICY):
    (step,) = (step for step in explain(lab.query(problem, device), tables, policy) if step.rung == "sku")
    assert step.hit is None
    return step.reason


def test_rows_of_another_sku_answer_scaled_and_named(lab):
    fast = tile(32)
    hit = answer(lab.query(THIN, H200), catalog(lab, THIN, {fast: 0.8}), POLICY, lab.here)
    assert (hit.rung, hit.config, hit.evidence["sku"]) == ("sku", fast, H100.sku)
    assert hit.evidence["bounds_us"] == {"memory": pytest.approx(100 * 3350 / 4800), "compute": pytest.approx(100)}
    assert hit.speedup == pytest.approx(1.25)
    assert hit.expected_us == pytest.approx(80)
    assert hit.evidence["expected_loss"] == pytest.approx(0, abs=1e-9)
    assert json.loads(json.dumps(hit.as_dict())) == hit.as_dict()


def test_what_nothing_times_first_must_gain_more(lab):
    tables = catalog(lab, THIN, {tile(32): 0.9})
    held = answer(lab.query(THIN, H200), tables, POLICY)
    assert (held.rung, held.config, held.evidence["held_back"]["config"]) == ("sku", ATEN, tile(32).text)
    live = reason(lab, THIN, H200, tables, replace(POLICY, on_miss="live"))
    assert "unless a compile times it first, a gain of 25.0% is needed" in live
    hit = answer(lab.query(THIN, H200), tables, replace(POLICY, confirm=True))
    assert (hit.rung, hit.config) == ("sku", tile(32))
    much = catalog(lab, THIN, {tile(32): 0.7})
    assert answer(lab.query(THIN, H200), much, POLICY).config == tile(32)


def test_what_another_sku_measured_itself_comes_before_neighbours(lab):
    """Neighbours on the H100 gained less than an H200's rows of the very problem."""
    near, there, policy = tile(64), tile(32), replace(POLICY, confirm=True)
    beside = THIN.resized(18, 4096, 4096)
    tables = lab.catalog(
        [*lab.rows(beside, {near: 0.7}, device=H200, clock="graph")],
        [*lab.rows(THIN, {there: 0.8}, device=H100, clock="graph")],
    )
    hit = answer(lab.query(THIN, H200), tables, policy)
    assert (hit.rung, hit.config) == ("sku", there)
    (said,) = (step.reason for step in explain(lab.query(THIN, H200), tables, policy) if step.rung == "near")
    assert f"{H100.sku} measured this very problem" in said
    assert answer(lab.query(THIN, H200), tables, replace(policy, sku=False)).rung == "near"
    little = lab.catalog(
        [*lab.rows(beside, {near: 0.7}, device=H200, clock="graph")],
        [*lab.rows(THIN, {there: 0.9}, device=H100, clock="graph")],
    )
    (said,) = (step.reason for step in explain(lab.query(THIN, H200), little, POLICY) if step.rung == "near")
    assert "left to rung sku" not in said  # It would hold 10% back.
    (said,) = (step.reason for step in explain(lab.query(THIN, H200), little, policy) if step.rung == "near")
    assert "left to rung sku" in said
    none = lab.catalog(
        [*lab.rows(beside, {near: 0.7}, device=H200, clock="graph")],
        [*lab.rows(THIN, {there: 1.2}, device=H100, clock="graph")],
    )
    # ATen won there, perhaps for want of candidates.
    assert answer(lab.query(THIN, H200), none, policy).config == near
    # Live tuning decides where neighbours expect more.
    live = replace(policy, on_miss="live", near_loss=0.0)
    assert answer(lab.query(THIN, H200), none, live) is None
    assert "neighbours on NVIDIA H200 expect a gain of triton:tile" in reason(lab, THIN, H200, none, live)
    little = lab.catalog(
        [*lab.rows(beside, {near: 0.99}, device=H200, clock="graph")],
        [*lab.rows(THIN, {there: 1.2}, device=H100, clock="graph")],
    )
    hit = answer(lab.query(THIN, H200), little, live)
    assert (hit.rung, hit.config) == ("sku", ATEN)
    assert answer(lab.query(THIN.resized(20, 4096, 4096), H200), tables, policy).rung == "near"


def test_a_kernel_that_lost_there_does_not_win_here_by_neighbours(lab):
    near, beside = tile(64), THIN.resized(18, 4096, 4096)
    here = [*lab.rows(beside, {near: 0.7}, device=H200, clock="graph")]
    lost = lab.catalog(here, [*lab.rows(THIN, {near: 1.1}, device=H100, clock="graph")])
    hit = answer(lab.query(THIN, H200), lost, replace(POLICY, confirm=True))
    assert (hit.rung, hit.config) == ("sku", ATEN)
    assert answer(lab.query(THIN, H200), lost, replace(POLICY, on_miss="live", confirm=True)) is None  # It is tuned.
    other = lab.catalog(here, [*lab.rows(THIN, {tile(32): 1.1}, device=H100, clock="graph")])
    assert answer(lab.query(THIN, H200), other, replace(POLICY, confirm=True)).config == near


def test_what_another_sku_measured_with_the_light_epilogue_comes_before_rows_without_one(lab):
    light, here, there = replace(THIN, fusion="pointwise"), tile(64), tile(32)
    tables = lab.catalog(
        [*lab.rows(THIN, {here: 0.7}, device=H200, clock="graph")],
        [*lab.rows(light, {there: 0.8}, device=H100, clock="graph")],
    )
    policy = replace(POLICY, confirm=True)
    hit = answer(lab.query(light, H200), tables, policy)
    assert (hit.rung, hit.config) == ("sku", there)
    hit = answer(lab.query(light, H200), tables, replace(policy, sku=False))
    assert (hit.rung, hit.config) == ("epilogue", here)


def test_a_table_of_many_skus_is_asked_about_four(lab, monkeypatch):
    asked, own = [], sku_module._prediction
    monkeypatch.setattr(sku_module, "_prediction", lambda ask, *rest: asked.append(rest) or own(ask, *rest))
    others = [replace(H100, sku=f"NVIDIA H100 number {number}") for number in range(40)]
    far = THIN.resized(16, 64, 64)
    tables = lab.catalog([row for other in others for row in lab.rows(far, {tile(32): 0.8}, device=other)])
    assert answer(lab.query(THIN, H200), tables, POLICY) is None
    # By `near`, whether one of them measured the problem, and by `sku`.
    assert len(asked) == 2 * sku_module.MOST
    assert len({other.sku for other, _ in asked}) == sku_module.MOST
    little = replace(H100, sku="a slice", units=16)
    tables = lab.catalog([*lab.rows(THIN, {tile(32): 0.5}, device=little, clock="graph")])
    assert answer(lab.query(THIN, H200), tables, POLICY) is None


def test_without_a_kernel_that_may_be_served_there_is_no_answer(lab):
    policy = replace(POLICY, deny="tile")
    assert "no kernel that was timed on" in reason(lab, THIN, H200, catalog(lab, THIN, {tile(32): 0.5}), policy)


def test_on_by_default_off_by_policy_and_after_the_devices_own_rows(lab):
    fast, own = tile(32), tile(64)
    tables = catalog(lab, THIN, {fast: 0.8})
    assert answer(lab.query(THIN, H200), tables, Policy(model=False)).rung == "sku"
    assert "switched off" in reason(lab, THIN, H200, tables, replace(POLICY, sku=False))
    both = lab.catalog(
        [*lab.rows(THIN, {fast: 0.8}, device=H100, clock="graph")],
        [*lab.rows(THIN, {own: 0.9}, device=H200, clock="graph")],
    )
    hit = answer(lab.query(THIN, H200), both, POLICY)
    assert (hit.rung, hit.config) == ("exact", own)


def test_another_arch_a_cpu_or_a_slice_are_no_evidence(lab):
    assert "another SKU of sm90" in reason(lab, THIN, H200, catalog(lab, THIN, {tile(32): 0.8}, A100))
    assert "another SKU of sm90" in reason(lab, THIN, H200, catalog(lab, THIN, {lab.cpp(): 0.8}, lab.cpu))
    tables = catalog(lab, THIN, {tile(32): 0.8})
    assert "it is unknown how" in reason(lab, THIN, replace(H200, mig=True), tables)


def test_where_waves_turn_the_order_around_the_rung_declines(lab):
    """132 programs are one wave of an H100 SXM and two of a PCIe card, which has 114 multiprocessors; 64 programs are
    one of both. Under the bound of memory the first stays ahead."""
    full, few = tile(128, 128), tile(256, 128)
    problem = Problem.gemm("mm", m=128, n=132 * 128, k=4096)
    tables = catalog(lab, problem, {full: 0.7, few: 0.8})
    assert answer(lab.query(problem, H200), tables, POLICY).config == full
    assert "disagree" in reason(lab, problem, PCIE, tables)
    clear = catalog(lab, problem, {full: 0.9, few: 0.7})
    assert answer(lab.query(problem, PCIE), clear, POLICY).config == few


def test_a_gain_that_one_bound_takes_away_means_aten(lab):
    """132 programs in two waves take nearly twice the time, relative to a library that adapts."""
    full = tile(128, 128)
    problem = Problem.gemm("mm", m=128, n=132 * 128, k=4096)
    assert answer(lab.query(problem, PCIE), catalog(lab, problem, {full: 0.995}), POLICY).config == ATEN
    assert answer(lab.query(THIN, H200), catalog(lab, THIN, {tile(32): 0.97}), POLICY).config == ATEN


def test_the_most_alike_sku_is_asked_first_and_neighbours_on_it_count(lab):
    near, far, policy = tile(32), tile(64), replace(POLICY, confirm=True)
    tables = lab.catalog(
        [*lab.rows(THIN, {far: 0.5}, device=PCIE, clock="graph")],
        [*lab.rows(THIN, {near: 0.8}, device=H100, clock="graph")],
    )
    assert answer(lab.query(THIN, H200), tables, policy).config == near
    beside = THIN.resized(18, 4096, 4096)
    hit = answer(lab.query(beside, H200), catalog(lab, THIN, {near: 0.8}), policy)
    assert (hit.rung, hit.config, hit.evidence["measured_as"]) == ("sku", near, "near")
    assert hit.evidence["expected_loss"] > 0
    assert answer(lab.query(beside, H200), catalog(lab, THIN, {near: 0.8}), replace(policy, near=False)) is None


def test_what_was_wrong_here_is_not_served_from_there(lab):
    fast, other = tile(32), tile(64)
    good = [*lab.rows(THIN, {fast: 0.7, other: 0.8}, device=H100, clock="graph")]
    wrong = [*lab.rows(THIN, {fast: 0.7}, device=H200, clock="graph", status=Status.WRONG)][1:]
    assert answer(lab.query(THIN, H200), lab.catalog(good), POLICY).config == fast
    assert answer(lab.query(THIN, H200), lab.catalog(good, wrong), POLICY).config == other
