"""An extern kernel that won a GEMM without its epilogue saves as much with any, and is served without a benchmark."""

from dataclasses import replace

import pytest
from kit.devices import H200
from kit.gpu import make

from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.lookup import answer, explain
from gemmdb.lookup.acceptance.extern import unfused, unmeasured
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy
from gemmdb.table.measurement import Status

pytestmark = pytest.mark.usefixtures("no_shipped_tables")
POLICY = Policy(on_miss="aten", confirm=True)
TILE = make("tile", block_m=64, block_n=128)
ALGORITHM = Config.of(
    "cublaslt", "matmul", algo=66, tile=18, stages=35, split_k=1, reduction=0, swizzle=0, custom=3, inner=0, cluster=2
)
FUSED = Problem.gemm("addmm", m=768, n=2048, k=7168, fusion="pointwise:math")
ALONE = replace(FUSED, fusion="none")


def table(lab, *parts, **where):
    """Rows on an H200 of (problem, ratios, microseconds of ATen)."""
    return lab.catalog([
        row for problem, ratios, aten_us in parts
        for row in lab.rows(problem, ratios, aten_us=aten_us, device=H200, clock="graph", **where)
    ])  # fmt: skip


def found(lab, tables, policy=POLICY, problem=FUSED, **rest):
    return answer(lab.query(problem, H200), tables, policy, **rest)


@pytest.mark.parametrize("policy", [POLICY, replace(POLICY, confirm=False), replace(POLICY, near=False)])
def test_it_is_served_with_an_epilogue_that_was_not_measured(lab, policy):
    hit = found(lab, table(lab, (ALONE, {ALGORITHM: 0.8}, 40.0)), policy)
    assert (hit.rung, hit.config) == ("epilogue", ALGORITHM)
    assert (hit.expected_us, hit.speedup) == (pytest.approx(32.0), pytest.approx(1.25))
    assert (hit.evidence["measured_as"], hit.evidence["measured_fusion"]) == ("exact", "none")
    assert not unmeasured(hit.rung, hit.config, hit.evidence)


def test_what_it_saves_is_taken_from_the_time_of_the_fused_gemm(lab):
    tables = table(lab, (ALONE, {ALGORITHM: 0.8}, 40.0), (FUSED, {TILE: 1.2}, 50.0))
    hit = found(lab, tables)
    assert (hit.rung, hit.config) == ("epilogue", ALGORITHM)
    assert (hit.expected_us, hit.speedup) == (pytest.approx(42.0), pytest.approx(50 / 42))


@pytest.mark.parametrize(("ratio", "rung", "config"), [
    (0.80, "exact", TILE),  # 10 us of 50, against 8 of 40.
    (0.84, "exact", TILE),
    (0.86, "epilogue", ALGORITHM),
])  # fmt: skip
def test_a_kernel_that_was_measured_with_the_epilogue_is_served_if_it_saves_more(lab, ratio, rung, config):
    hit = found(lab, table(lab, (ALONE, {ALGORITHM: 0.8}, 40.0), (FUSED, {TILE: ratio}, 50.0)))
    assert (hit.rung, hit.config) == (rung, config)


@pytest.mark.parametrize(("ratio", "config"), [(0.95, ALGORITHM), (0.6, TILE)])
def test_so_is_a_kernel_that_neighbours_expect_to_save_more(lab, ratio, config):
    beside = [(replace(FUSED, m=m), {TILE: ratio}, 50.0) for m in (640, 896)]
    hit = found(lab, table(lab, (ALONE, {ALGORITHM: 0.8}, 40.0), *beside), replace(POLICY, model=False))
    assert (hit.rung, hit.config) == ("epilogue" if config == ALGORITHM else "near", config)
    assert unmeasured(hit.rung, hit.config, hit.evidence) == (config == TILE)


@pytest.mark.parametrize(("policy", "config"), [
    (replace(POLICY, deny="cublaslt"), ATEN), (replace(POLICY, min_gain=0.3), ATEN),
    (replace(POLICY, on_miss="error", confirm=False), ATEN), (POLICY, ALGORITHM),
])  # fmt: skip
def test_the_policy_decides_about_it(lab, policy, config):
    hit = found(lab, table(lab, (ALONE, {ALGORITHM: 0.8}, 40.0), (FUSED, {TILE: 1.2}, 50.0)), policy)
    assert hit.config == config


def test_it_is_not_served_where_the_caller_cannot_run_it_or_it_was_wrong(lab):
    rows = (ALONE, {ALGORITHM: 0.8}, 40.0), (FUSED, {}, 50.0)
    refused = found(lab, table(lab, *rows), excluded=lambda config, rows: Rejected("cannot be lowered"))
    assert (refused.rung, refused.config) == ("exact", ATEN)
    wrong = lab.rows(FUSED, {ALGORITHM: 1.0}, device=H200, clock="graph", status=Status.WRONG, run="wrong")
    right = [row for part in rows for row in lab.rows(part[0], part[1], aten_us=part[2], device=H200, clock="graph")]
    assert found(lab, lab.catalog([*right, *wrong])).config == ATEN


@pytest.mark.parametrize(("ratio", "rung", "config"), [(1.02, "exact", ATEN), (0.9, "exact", ALGORITHM)])
def test_its_own_time_with_the_epilogue_counts_more(lab, ratio, rung, config):
    hit = found(lab, table(lab, (ALONE, {ALGORITHM: 0.8}, 40.0), (FUSED, {ALGORITHM: ratio, TILE: 1.2}, 50.0)))
    assert (hit.rung, hit.config) == (rung, config)
    other = replace(FUSED, fusion="pointwise")
    assert found(lab, table(lab, (ALONE, {ALGORITHM: 0.8}, 40.0)), problem=other).config == ALGORITHM


def test_a_kernel_of_ours_that_won_alone_is_in_doubt_with_an_epilogue(lab):
    hit = found(lab, table(lab, (ALONE, {TILE: 0.8}, 40.0)))
    assert (hit.rung, hit.config) == ("epilogue", TILE)
    assert unmeasured(hit.rung, hit.config, hit.evidence)
    assert unfused(ALONE) is ALONE
    assert unfused(FUSED) == ALONE


def test_every_rung_says_what_it_leaves(lab):
    steps = explain(lab.query(FUSED, H200), table(lab, (ALONE, {ALGORITHM: 0.8}, 40.0), (FUSED, {}, 50.0)), POLICY)
    by_rung = {step.rung: step for step in steps}
    assert "left to rung epilogue, where cublaslt:matmul saves more" in by_rung["exact"].reason
    assert by_rung["epilogue"].hit.config == ALGORITHM
