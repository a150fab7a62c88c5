"""What is not confirmed, and why."""

from dataclasses import replace

import pytest
from kit.devices import H200

from gemmdb import Config, Policy, Problem
from gemmdb.devices import detect
from gemmdb.inductor.confirm import rules
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Query
from gemmdb.ladder.ask import Ask

PLAIN = Query(Problem.gemm("mm", m=7, n=512, k=256), H200)
SYMBOLIC = replace(PLAIN, ranges={"m": (2, 64)})
CUTLASS = Config.of(
    "cutlass", "gemm", tile_m=64, tile_n=64, tile_k=128, cluster_m=1, cluster_n=1, schedule="pingpong", split_k=1,
    swizzle=1, raster="auto", swap=1,
)  # fmt: skip
PADDED = Config.of("aten", "padded", multiple=8)


@pytest.mark.parametrize(
    ("query", "policy", "reason"),
    [
        (PLAIN, Policy(confirm=True, confirm_s=3.0), ""),
        (PLAIN, Policy(confirm=False, confirm_s=3.0), "switched off"),
        (PLAIN, Policy(confirm_s=3.0), "switched off"),
        (SYMBOLIC, Policy(confirm=True, confirm_s=3.0), "symbolic"),
        (replace(PLAIN, ranges={"m": (7, 7)}), Policy(confirm=True, confirm_s=3.0), ""),
        (replace(PLAIN, device=detect.cpu()), Policy(confirm=True, confirm_s=3.0), "on a CPU that takes 20 s"),
        (replace(PLAIN, device=detect.cpu()), Policy(confirm=True, confirm_s=20.0), ""),
    ],
)
def test_what_is_not_confirmed(query, policy, reason):
    found = rules.objection(query, policy)
    assert reason in found if reason else found == ""


def test_ranks_of_a_job_confirm_nothing(monkeypatch):
    monkeypatch.setattr(rules.ranks, "several", lambda: True)
    assert "different kernels" in rules.objection(PLAIN, Policy(confirm=True, confirm_s=3.0))


@pytest.mark.parametrize(
    ("rung", "config", "asked"),
    [
        ("near", PADDED, True),
        ("sku", PADDED, True),
        ("model", PADDED, True),
        ("near", ATEN, False),
        ("exact", PADDED, False),
        ("forced", PADDED, False),
        ("live", None, False),
    ],
)
def test_what_nobody_has_measured_is_confirmed(rung, config, asked):
    assert rules.unmeasured(rung, config) == asked


def test_nvcc_is_not_waited_for_by_default():
    assert rules.too_slow(CUTLASS, Policy(confirm_s=3.0)) == "nvcc takes half a minute"
    assert rules.too_slow(CUTLASS, Policy(confirm_s=120.0)) == ""
    assert rules.too_slow(PADDED, Policy(confirm_s=3.0)) == ""


def test_the_ladder_knows_whether_its_answer_will_be_confirmed():
    assert Ask(PLAIN, (), Policy(confirm=True), None).confirming
    assert not Ask(PLAIN, (), Policy(), None).confirming
    assert not Ask(SYMBOLIC, (), Policy(confirm=True), None).confirming
