"""Rung `sku`: rows of another SKU of the same arch, scaled under both bounds and named in the Hit."""

import json
import sqlite3
from contextlib import closing, suppress
from dataclasses import replace

import pytest
from kit.gpu import make

from gemmdb.devices import registry
from gemmdb.errors import TableError
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem
from gemmdb.lookup import answer, explain, other_sku
from gemmdb.lookup.acceptance import near
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog, Source
from gemmdb.table.measurement import Status
from gemmdb.table.reader import Table

H100, H200 = registry.find("NVIDIA H100 80GB HBM3"), registry.find("NVIDIA H200")
PCIE, A100 = registry.find("NVIDIA H100 PCIe"), registry.find("NVIDIA A100-SXM4-80GB")
POLICY = Policy(sku=True, model=False)
THIN = Problem.gemm("mm", m=16, n=4096, k=4096)


pytestmark = pytest.mark.usefixtures("no_shipped_tables")


def tile(n, m=16):
    return make("tile", block_m=m, block_n=n)


def catalog(lab, problem, ratios, device=H100):
    return lab.catalog(rows(lab, problem, ratios, device))


def rows(lab, problem, ratios, device, **where):
    return [*lab.rows(problem, ratios, device=device, clock="graph", **where)]


def said(lab, problem, tables, policy, rung="near"):
    (step,) = (step for step in explain(lab.query(problem, H200), tables, policy) if step.rung == rung)
    return step.reason


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
    tables = lab.catalog(rows(lab, beside, {near: 0.7}, H200), rows(lab, THIN, {there: 0.8}, H100))
    hit = answer(lab.query(THIN, H200), tables, policy)
    assert (hit.rung, hit.config) == ("sku", there)
    assert f"{H100.sku} measured this exact problem" in said(lab, THIN, tables, policy)
    assert answer(lab.query(THIN, H200), tables, replace(policy, sku=False)).rung == "near"
    little = lab.catalog(rows(lab, beside, {near: 0.7}, H200), rows(lab, THIN, {there: 0.9}, H100))
    assert "left to rung sku" not in said(lab, THIN, little, POLICY)  # It would hold 10% back.
    assert "left to rung sku" in said(lab, THIN, little, policy)
    none = lab.catalog(rows(lab, beside, {near: 0.7}, H200), rows(lab, THIN, {there: 1.2}, H100))
    # ATen won there, perhaps for want of candidates.
    assert answer(lab.query(THIN, H200), none, policy).config == near
    # Live tuning decides where neighbours expect more.
    live = replace(policy, on_miss="live", near_loss=0.0)
    assert answer(lab.query(THIN, H200), none, live) is None
    assert "neighbours on NVIDIA H200 expect a gain of triton:tile" in reason(lab, THIN, H200, none, live)
    little = lab.catalog(rows(lab, beside, {near: 0.99}, H200), rows(lab, THIN, {there: 1.2}, H100))
    hit = answer(lab.query(THIN, H200), little, live)
    assert (hit.rung, hit.config) == ("sku", ATEN)
    assert answer(lab.query(THIN.resized(20, 4096, 4096), H200), tables, policy).rung == "near"


def test_a_kernel_that_lost_there_does_not_win_here_by_neighbours(lab):
    near, beside = tile(64), THIN.resized(18, 4096, 4096)
    here = rows(lab, beside, {near: 0.7}, H200)
    lost = lab.catalog(here, rows(lab, THIN, {near: 1.1}, H100))
    hit = answer(lab.query(THIN, H200), lost, replace(POLICY, confirm=True))
    assert (hit.rung, hit.config) == ("sku", ATEN)
    assert answer(lab.query(THIN, H200), lost, replace(POLICY, on_miss="live", confirm=True)) is None  # It is tuned.
    other = lab.catalog(here, rows(lab, THIN, {tile(32): 1.1}, H100))
    assert answer(lab.query(THIN, H200), other, replace(POLICY, confirm=True)).config == near


def test_what_another_sku_measured_with_the_light_epilogue_comes_before_rows_without_one(lab):
    light, here, there = replace(THIN, fusion="pointwise"), tile(64), tile(32)
    tables = lab.catalog(rows(lab, THIN, {here: 0.7}, H200), rows(lab, light, {there: 0.8}, H100))
    policy = replace(POLICY, confirm=True)
    hit = answer(lab.query(light, H200), tables, policy)
    assert (hit.rung, hit.config) == ("sku", there)
    hit = answer(lab.query(light, H200), tables, replace(policy, sku=False))
    assert (hit.rung, hit.config) == ("epilogue", here)


def test_a_table_of_many_skus_is_asked_about_four(lab, monkeypatch):
    asked, own = [], near.measured
    monkeypatch.setattr(near, "measured", lambda ask: asked.append(ask.device.sku) or own(ask))
    others = [replace(H100, sku=f"NVIDIA H100 number {number}") for number in range(40)]
    far = THIN.resized(16, 64, 64)
    tables = lab.catalog([row for other in others for row in lab.rows(far, {tile(32): 0.8}, device=other)])
    assert answer(lab.query(THIN, H200), tables, POLICY) is None
    # By `near`, whether one of them measured the problem, and by `sku`.
    assert len(asked) == 2 * other_sku.OTHER_SKUS
    assert len(set(asked)) == other_sku.OTHER_SKUS
    little = replace(H100, sku="a slice", units=16)
    tables = lab.catalog(rows(lab, THIN, {tile(32): 0.5}, little))
    assert answer(lab.query(THIN, H200), tables, POLICY) is None


def test_without_a_kernel_that_may_be_served_there_is_no_answer(lab):
    policy = replace(POLICY, deny="tile")
    assert "no kernel that was timed on" in reason(lab, THIN, H200, catalog(lab, THIN, {tile(32): 0.5}), policy)


def test_on_by_default_off_by_policy_and_after_the_devices_own_rows(lab):
    fast, own = tile(32), tile(64)
    tables = catalog(lab, THIN, {fast: 0.8})
    assert answer(lab.query(THIN, H200), tables, Policy(model=False)).rung == "sku"
    assert "switched off" in reason(lab, THIN, H200, tables, replace(POLICY, sku=False))
    both = lab.catalog(rows(lab, THIN, {fast: 0.8}, H100), rows(lab, THIN, {own: 0.9}, H200))
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
    tables = lab.catalog(rows(lab, THIN, {far: 0.5}, PCIE), rows(lab, THIN, {near: 0.8}, H100))
    assert answer(lab.query(THIN, H200), tables, policy).config == near
    beside = THIN.resized(18, 4096, 4096)
    hit = answer(lab.query(beside, H200), catalog(lab, THIN, {near: 0.8}), policy)
    assert (hit.rung, hit.config, hit.evidence["measured_as"]) == ("sku", near, "near")
    assert hit.evidence["expected_loss"] > 0
    assert answer(lab.query(beside, H200), catalog(lab, THIN, {near: 0.8}), replace(policy, near=False)) is None


def test_what_was_wrong_here_is_not_served_from_there(lab):
    fast, other = tile(32), tile(64)
    good = rows(lab, THIN, {fast: 0.7, other: 0.8}, H100)
    wrong = rows(lab, THIN, {fast: 0.7}, H200, status=Status.WRONG)[1:]
    assert answer(lab.query(THIN, H200), lab.catalog(good), POLICY).config == fast
    assert answer(lab.query(THIN, H200), lab.catalog(good, wrong), POLICY).config == other


TILES = {tile(32): 0.5, tile(64): 0.6}
NASTY = (2**63 - 1, -1, 0, 9e999, -1e308, 5e-324, "", "x\n" * 1000, "%00", "~", "{}", b"\xff" * 40)


@pytest.mark.parametrize("table", ["device", "measurement", "verdict"])
def test_any_value_in_any_column(lab, table):
    lab.catalog([*lab.rows(THIN, TILES, device=H100, clock="graph")])
    (path,) = lab.folder.glob("*.db")
    whole = path.read_bytes()
    with closing(sqlite3.connect(path)) as db:
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    answers = 0
    for column, value in ((column, value) for column in columns for value in NASTY):
        path.write_bytes(whole)
        with suppress(sqlite3.IntegrityError), closing(sqlite3.connect(path)) as db, db:
            db.execute(f"UPDATE OR IGNORE {table} SET {column} = ?", (value,))
        with suppress(TableError), Table.open(path) as opened:
            hit = answer(lab.query(THIN, H200), Catalog([(Source(path, "explicit"), opened)]), POLICY)
            assert hit is None or (hit.rung == "sku" and hit.config in TILES and 0 < hit.expected_us < 1e12)
            answers += hit is not None
    assert answers


@pytest.mark.parametrize("figures", [{"smem_bytes": 0}, {"smem_bytes": -1}, {"l2_bytes": 0}, {"l2_bytes": 1e300}])
@pytest.mark.parametrize("units", [1, 132, 2**31 - 1])
def test_absurd_figures_of_another_gpu(lab, figures, units):
    other = replace(H100, units=units, figures={**H100.figures, **figures})
    catalog = lab.catalog([*lab.rows(THIN, TILES, device=other, clock="graph")])
    hit = answer(lab.query(THIN, H200), catalog, POLICY)
    assert hit is None or (hit.config in TILES and 0 < hit.expected_us < 1e12)
