"""What live tuning tries: candidates from the cost model and from the session's tables."""

from dataclasses import replace

from kit.devices import H200

from gemmdb.inductor.benchmark import tune as tuning
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup.ranking import LIVE_CANDIDATES
from gemmdb.settings import Policy
from gemmdb.table import writer

LARGE = Query(Problem.gemm("mm", m=7, n=5000, k=3000, dtype="bf16", layout="nt"), H200)


def test_candidates_for_a_gpu_are_quick_to_compile():
    """The shipped table of the H200 has winners of CUTLASS and of Inductor's templates for problems like these."""
    session = TableSession(Policy(on_miss="live"))
    for problem in (LARGE.problem, LARGE.problem.resized(2048, 4096, 4160)):
        found = tuning.candidates(session, replace(LARGE, problem=problem))
        assert len(found) == LIVE_CANDIDATES
        assert {config.backend for config in found} == {"triton"}
        assert not any(config.spec.emitted for config in found)


def test_where_rows_are_not_aligned_what_is_the_best_there_is_tried():
    """That is padding and Inductor's templates, though these take loading torch to compile."""
    problem = Problem.gemm("mm", m=512, n=4096, k=4093)
    query = replace(LARGE, problem=problem, device=replace(LARGE.device, sku="Some GPU"))
    found = tuning.candidates(TableSession(Policy(on_miss="live", live_s=300.0)), query)
    assert 1 < len(found) <= LIVE_CANDIDATES
    assert any(config.spec.emitted for config in found)
    assert "cutlass" not in {config.backend for config in found}


def test_candidates_come_from_the_tables_of_the_session(kit, tmp_path, monkeypatch):
    """From those that `enable` was given, and from the user's table, which was not there when the session was made."""
    monkeypatch.setenv("GEMMDB_USER_TABLE", str(tmp_path / "user.db"))
    measured = Problem.gemm("mm", m=8, n=48, k=64, dtype="fp32", constant_weight=True)
    asked = replace(LARGE, problem=measured.resized(9, 48, 64), device=kit.rows(measured, {})[0].device)

    def tried(*tables):
        session, found = TableSession(Policy(on_miss="live", live_s=300.0), tables), []
        for _ in range(2):
            found.append(tuning.candidates(session, asked))
            writer.record_live(tmp_path / "user.db", kit.rows(measured, {kit.CPP: 50.0}))
        return found

    with writer.Store.open(tmp_path / "named.db") as opened:
        opened.add(kit.rows(measured, {kit.CPP: 50.0}))
        opened.refresh()
    assert tried(tmp_path / "named.db")[0] == (kit.CPP,)
    (tmp_path / "user.db").unlink()
    assert tried() == [(), (kit.CPP,)]
