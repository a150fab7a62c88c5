"""benchmarks/dense on a GPU: a GEMM is compiled in all ways, checked and timed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.dense import report
from gemmdb.key.problem import Problem

pytestmark = pytest.mark.usefixtures("clean")


@pytest.mark.parametrize("op", ["mm", "addmm"])
def test_a_gemm_is_timed_in_all_ways(op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.dense import worker

    monkeypatch.setenv("GEMMDB_USER_TABLE", str(tmp_path / "user.db"))
    problem = Problem.gemm(op, m=40, n=1088, k=704)
    found = worker.measure(problem, None, 9, tmp_path)
    assert "failure" not in found, found
    assert set(found["taken"]) == {"default", "gemmdb", "aten", "heuristic"}
    assert all(len(times) == 9 and min(times) > 0 for times in found["taken"].values())
    assert 2 <= len(found["heuristics"]) <= worker.HEURISTICS
    assert max(found["ways"][name]["error"] for name in ("default", "gemmdb")) <= found["tolerance"]
    line = {"problem": problem.text, "origin": "random", "m": problem.m, **found}
    # Torch's function and default mode run the same kernel.
    assert 0.8 < report.ratio(line, "aten", "default")[1] < 1.25
