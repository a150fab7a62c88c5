"""What is not confirmed, and what is not tuned, and why."""

from dataclasses import replace
from pathlib import Path

import pytest
from kit import kernels
from kit.devices import H200
from kit.sessions import FakeSession

from gemmdb import Config, Policy, Problem
from gemmdb.devices import detect, registry
from gemmdb.inductor.benchmark import confirm as confirming
from gemmdb.inductor.benchmark import rules
from gemmdb.inductor.benchmark.trial import GPU
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.observe.journal import Event
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.cutlass import prebuilt
from gemmdb.key.problem import Query
from gemmdb.key.toolchain import Toolchain
from gemmdb.lookup import acceptance
from gemmdb.lookup.ask import Ask
from gemmdb.rejected import Rejected
from gemmdb.table.measurement import Protocol

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
        (SYMBOLIC, Policy(confirm=True, confirm_s=3.0), ""),
        (replace(PLAIN, ranges={"n": (2, 96)}), Policy(confirm=True, confirm_s=3.0), "symbolic"),
        (replace(PLAIN, ranges={"m": (7, 7)}), Policy(confirm=True, confirm_s=3.0), ""),
        (replace(PLAIN, device=detect.cpu()), Policy(confirm=True, confirm_s=3.0), "on a CPU that takes 20 s"),
        (replace(PLAIN, device=detect.cpu()), Policy(confirm=True, confirm_s=20.0), ""),
    ],
)
def test_what_is_not_confirmed(query, policy, reason):
    found = rules.confirm_rejection(query, policy)
    assert reason in found.reason if reason else found is None


def test_ranks_of_a_job_confirm_nothing(monkeypatch):
    monkeypatch.setattr(rules.state, "is_distributed", lambda: True)
    assert "different kernels" in str(rules.confirm_rejection(PLAIN, Policy(confirm=True, confirm_s=3.0)))


TILE = Config.of(
    "triton", "tile", block_m=16, block_n=64, block_k=64, group_m=8, split_k=1, reduce="none", swap=0, load="pointer",
    dequant="cast", warps=4, stages=3,
)  # fmt: skip
FUSED = replace(PLAIN, problem=replace(PLAIN.problem, fusion="pointwise"))
USER = Path("user.db")
LIVE = {"table": str(USER), "evidence": {"protocol": Protocol("graph", "cold", 20, 30, version=3).text}}
CONFIRMED = {"table": str(USER), "evidence": {"protocol": GPU.text}}
SHIPPED = {"table": "shipped.db", "evidence": LIVE["evidence"]}


@pytest.mark.parametrize(
    ("query", "rung", "config", "said", "asked"),
    [
        (PLAIN, "near", TILE, {}, True),
        (PLAIN, "sku", TILE, {}, True),
        (PLAIN, "model", PADDED, {}, True),
        (PLAIN, "near", ATEN, {}, False),
        (PLAIN, "exact", TILE, SHIPPED, False),
        (PLAIN, "forced", TILE, {}, False),
        (PLAIN, "live", None, {}, False),
        # Live tuning times our kernels by themselves, and Inductor's as emitted code, with a stand-in for the epilogue.
        (PLAIN, "live", TILE, {}, True),
        (PLAIN, "live", PADDED, {}, False),
        (FUSED, "live", PADDED, {}, True),
        (PLAIN, "exact", TILE, LIVE, True),
        (PLAIN, "exact", TILE, CONFIRMED, False),
        (FUSED, "exact", PADDED, LIVE, True),
        (FUSED, "exact", PADDED, CONFIRMED, False),
    ],
)
def test_what_nobody_has_timed_as_it_is_served_is_confirmed(query, rung, config, said, asked):
    event = Event(query.problem.text, rung, "", **said)
    of = FakeSession(lambda query: None, Policy(), None, USER)
    assert rules.unmeasured(Decision(of, query, config, event)) == asked
    assert not rules.unmeasured(Decision(of, query, config, event, ((16, TILE), (None, ATEN))))


def test_nvcc_is_not_waited_for_by_default(tmp_path, monkeypatch):
    kernels.ship(monkeypatch, tmp_path / "none.zip")
    assert str(rules.compile_rejection(CUTLASS, PLAIN, Policy(confirm_s=3.0))) == "nvcc takes half a minute"
    assert rules.compile_rejection(CUTLASS, PLAIN, Policy(confirm_s=120.0)) is None
    assert rules.compile_rejection(PADDED, PLAIN, Policy(confirm_s=3.0)) is None


def test_a_kernel_that_is_compiled_in_advance_is_confirmed(tmp_path, monkeypatch):
    known = kernels.archived(tmp_path, [prebuilt.name(CUTLASS, PLAIN.problem)])
    kernels.ship(monkeypatch, known)
    monkeypatch.setattr(rules, "installed", lambda kind: Toolchain(torch="2.11.0", cuda="13.0"))
    other = Config.of("cutlass", "gemm", **{**CUTLASS.values, "tile_m": 128})
    found = [rules.compile_rejection(config, PLAIN, Policy(confirm_s=3.0)) for config in (CUTLASS, other)]
    prebuilt.archive.cache_clear()
    assert found == [None, Rejected("nvcc takes half a minute")]


def test_the_lookup_knows_whether_its_answer_will_be_confirmed():
    assert acceptance.confirming(Ask(PLAIN, (), Policy(confirm=True), None))
    assert not acceptance.confirming(Ask(PLAIN, (), Policy(), None))
    assert not acceptance.confirming(Ask(SYMBOLIC, (), Policy(confirm=True), None))


@pytest.mark.parametrize(
    ("computed", "config", "said", "rung", "asked"),
    [
        (True, TILE, SHIPPED, "exact", True),
        (False, TILE, SHIPPED, "exact", False),
        (True, ATEN, SHIPPED, "exact", False),
        (True, TILE, CONFIRMED, "exact", False),
        (True, TILE, {"evidence": {"confirmed": {}}}, "exact", False),
        (True, TILE, {}, "forced", False),
    ],
)
def test_a_kernel_that_was_measured_with_a_weight_from_memory_is_timed_if_the_program_computes_it(
    monkeypatch, computed, config, said, rung, asked
):
    monkeypatch.setattr(rules, "computes_weight", lambda node: computed)
    of = FakeSession(lambda query: None, Policy(confirm=True, confirm_s=3.0), None, USER)
    decision = Decision(of, PLAIN, config, Event(PLAIN.problem.text, rung, config.text, H200.text, **said))
    assert rules.in_doubt(decision, "a node") is asked
    assert not rules.in_doubt(decision)


@pytest.mark.parametrize(("said", "served"), [(SHIPPED, ATEN), (LIVE, TILE)], ids=["weight from memory", "live"])
def test_what_was_measured_elsewhere_and_cannot_be_timed_ends_as_aten(said, served):
    """A measured kernel is in doubt only for a weight that the program computes. What live tuning timed stays."""
    of = FakeSession(lambda query: None, Policy(confirm=True, confirm_s=3.0), None, USER)
    event = Event(PLAIN.problem.text, "exact", TILE.text, H200.text, expected_us=10.0, speedup=1.1, **said)
    found = confirming._unconfirmed(Decision(of, PLAIN, TILE, event), "3 s were over")
    assert found.config == served
    assert found.event.config == served.text
    assert "not confirmed: 3 s were over" in found.event.note


LARGE = Query(Problem.gemm("mm", m=7, n=5000, k=3000, dtype="bf16", layout="nt"), H200)
FROZEN = Query(replace(LARGE.problem, constant=True), detect.cpu())
SOME = {"m": (2, 64)}
ROTARY = Query(Problem.gemm("mm", m=64, n=4, k=1, dtype="fp32"), H200)
UNALIGNED = Query(Problem.gemm("mm", m=7, n=5000, k=3001), H200)
SCALED = Query(Problem.gemm("scaled_mm", m=7, n=64, k=64, scales="row"), H200)
GROUPS = Query(Problem.gemm("grouped_mm", m=7, n=64, k=64), H200)
HALF_GROUPS = Problem.gemm("grouped_mm", m=7, n=64, k=64, dtype="fp16")
FP8_GROUPS = Query(Problem.gemm("grouped_mm", m=500, n=64, k=64, dtype="fp8_e4m3"), H200)
BATCH = Query(Problem.gemm("bmm", batch=8, m=7, n=64, k=64), H200)


@pytest.mark.parametrize(
    ("query", "live_s", "reason"),
    [
        (LARGE, 20.0, ""),
        (replace(LARGE, ranges=SOME), 20.0, "symbolic"),
        (replace(LARGE, ranges=SOME), 300.0, ""),
        (FROZEN, 20.0, "on a CPU"),
        (FROZEN, 300.0, ""),
        (replace(LARGE, device=detect.cpu()), 300.0, "ATen is the only kernel for it"),
        (ROTARY, 10.0, "nothing to save"),
        (ROTARY, 300.0, "nothing to save"),
        (replace(ROTARY, device=detect.cpu()), 300.0, "nothing to save"),
        (UNALIGNED, 10.0, "multiples of 16 bytes, so a padded GEMM"),
        (UNALIGNED, 300.0, ""),
        (replace(UNALIGNED, problem=Problem.gemm("mixed_mm", m=7, n=5000, k=3001)), 10.0, ""),
        (BATCH, 20.0, "loading torch first"),
        (BATCH, 300.0, ""),
        (replace(BATCH, ranges=SOME), 300.0, "at fixed sizes"),
        (replace(BATCH, device=detect.cpu()), 300.0, "only on a GPU"),
        (GROUPS, 20.0, ""),
        (replace(GROUPS, problem=HALF_GROUPS), 300.0, "sizes of such groups back"),
        (replace(GROUPS, device=registry.find("NVIDIA L4")), 300.0, "sizes of such groups back"),
        (replace(GROUPS, ranges=SOME), 300.0, "at fixed sizes"),
        (replace(GROUPS, device=detect.cpu()), 300.0, "only on a GPU"),
        (FP8_GROUPS, 20.0, ""),
        (replace(FP8_GROUPS, device=detect.cpu()), 300.0, "only on a GPU"),
        (SCALED, 20.0, ""),
        (SCALED, 300.0, ""),
        (replace(SCALED, problem=SCALED.problem.resized(65, 64, 64)), 20.0, "fp8 GEMMs have Inductor's templates"),
        (replace(SCALED, problem=SCALED.problem.resized(65, 64, 64)), 300.0, ""),
        (replace(SCALED, ranges=SOME), 300.0, "at fixed sizes"),
        (replace(SCALED, device=detect.cpu()), 300.0, "fp8 GEMMs can be tuned only on a GPU"),
    ],
)
def test_what_is_not_tuned_by_default(query, live_s, reason):
    found = rules.tuning_rejection(query, Policy(on_miss="live", live_s=live_s))
    assert reason in found.reason if reason else found is None


def test_without_the_libraries_nothing_is_tuned_by_default(monkeypatch):
    monkeypatch.setattr(rules, "NEEDED", ("a_library_that_nobody_has",))
    rules.missing_library.cache_clear()
    assert "a_library_that_nobody_has is not installed" in str(rules.tuning_rejection(LARGE, Policy(live_s=20.0)))
    rules.missing_library.cache_clear()
