"""Live tuning before and after anything is measured: what is not tuned, what is tried, and from which tables."""

from dataclasses import replace

import pytest

from gemmdb.devices import detect, registry
from gemmdb.inductor.benchmark import rules
from gemmdb.inductor.benchmark import tune as tuning
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.inductor.observe.journal import Event
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup.model import LIVE_CANDIDATES
from gemmdb.settings import Policy
from gemmdb.table import writer

H200 = registry.find("NVIDIA H200")
PLAIN = Query(Problem.gemm("mm", m=7, n=5000, k=3000, dtype="bf16", layout="nt"), H200)
FROZEN = Query(replace(PLAIN.problem, constant=True), detect.cpu())
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
        (PLAIN, 20.0, ""),
        (replace(PLAIN, ranges=SOME), 20.0, "symbolic"),
        (replace(PLAIN, ranges=SOME), 300.0, ""),
        (FROZEN, 20.0, "on a CPU"),
        (FROZEN, 300.0, ""),
        (replace(PLAIN, device=detect.cpu()), 300.0, "ATen is the only kernel for it"),
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
    assert "a_library_that_nobody_has is not installed" in str(rules.tuning_rejection(PLAIN, Policy(live_s=20.0)))
    rules.missing_library.cache_clear()


def test_candidates_for_a_gpu_are_quick_to_compile():
    """The shipped table of the H200 has winners of CUTLASS and of Inductor's templates for problems like these."""
    found = {}
    for problem in (PLAIN.problem, PLAIN.problem.resized(2048, 4096, 4160)):
        query = replace(PLAIN, problem=problem)
        asked = TableSession(Policy(on_miss="live"))
        found |= tuning.candidates([Decision(asked, query, None, Event(problem.text, "live"))])
    assert [len(configs) for configs in found.values()] == [LIVE_CANDIDATES] * 2
    assert {config.backend for configs in found.values() for config in configs} == {"triton"}
    assert not any(config.spec.emitted for configs in found.values() for config in configs)


def test_where_rows_are_not_aligned_what_is_the_best_there_is_tried():
    """That is padding and Inductor's templates, though these take loading torch to compile."""
    problem = Problem.gemm("mm", m=512, n=4096, k=4093)
    asked = TableSession(Policy(on_miss="live", live_s=300.0))
    query = replace(PLAIN, problem=problem, device=replace(PLAIN.device, sku="Some GPU"))
    (found,) = tuning.candidates([Decision(asked, query, None, Event(problem.text, "live"))]).values()
    assert 1 < len(found) <= LIVE_CANDIDATES
    assert any(config.spec.emitted for config in found)
    assert "cutlass" not in {config.backend for config in found}


def test_candidates_come_from_the_tables_of_the_session(kit, tmp_path, monkeypatch):
    """From those that `enable` was given, and from the user's table, which was not there when the session was made."""
    monkeypatch.setenv("GEMMDB_USER_TABLE", str(tmp_path / "user.db"))
    measured = Problem.gemm("mm", m=8, n=48, k=64, dtype="fp32", constant_weight=True)
    asked = replace(PLAIN, problem=measured.resized(9, 48, 64), device=kit.rows(measured, {})[0].device)

    def tried(*tables):
        looking = TableSession(Policy(on_miss="live", live_s=300.0), tables)
        found = []
        for _ in range(2):
            found += tuning.candidates([Decision(looking, asked, None, Event("", "live"))]).values()
            writer.record_live(tmp_path / "user.db", kit.rows(measured, {kit.CPP: 50.0}))
        return found

    with writer.Store.open(tmp_path / "named.db") as opened:
        opened.add(kit.rows(measured, {kit.CPP: 50.0}))
        opened.refresh()
    assert tried(tmp_path / "named.db")[0] == (kit.CPP,)
    (tmp_path / "user.db").unlink()
    assert tried() == [(), (kit.CPP,)]


def test_what_was_measured_answers_the_next_graph_of_the_process(kit, tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMDB_USER_TABLE", str(tmp_path / "user.db"))
    problem = Problem.gemm("mm", m=8, n=48, k=64, dtype="fp32", constant_weight=True)
    rows = kit.rows(problem, {kit.CPP: 50.0})
    looking = TableSession(Policy(on_miss="live", live_s=300.0))
    assert looking.find(Query(problem, rows[0].device)) is None
    writer.record_live(tmp_path / "user.db", rows)
    hit = looking.find(Query(problem, rows[0].device))
    assert (hit.rung, hit.config) == ("exact", kit.CPP)
    assert TableSession(looking.policy).identity == looking.identity


def test_a_doubtful_answer_that_will_be_timed_is_no_miss():
    """The logits of a ModernBERT: the cost model has a guess, and tuning found nothing in three seconds."""
    wide = replace(PLAIN, problem=Problem.gemm("addmm", m=2048, n=50368, k=768, layout="nt", bias="1d"))
    quick = Policy(on_miss="live", live_s=10.0)
    assert TableSession(quick).find(wide) is None
    confirmed = TableSession(replace(quick, confirm=True)).find(wide)
    assert confirmed is not None
    assert confirmed.rung in ("near", "model")
    asked_by_name = TableSession(replace(quick, confirm=True, live_s=300.0))
    assert asked_by_name.find(wide) is None, "who asks for live tuning by name gets it"
