"""`gemmdb verify --requalify` on a real table, with recorded times."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from kit.replay import CPP, SPLIT_N, TOOLCHAIN, ReplayBackend, record

from gemmdb.generators.measure import quiet, requalify
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import NOISY
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

ONE, TWO = (Problem.gemm("mm", m=m, n=64, k=64, dtype="fp32", constant_weight=True) for m in (4, 8))
NOW = replace(TOOLCHAIN, torch="2.14.0")


def rows(us):
    """ATen takes 100 us, the template 80, and split over N what `us` says of each problem."""
    return [
        record(problem, config, time)
        for problem, split in us.items()
        for config, time in ((ATEN, 100.0), (CPP, 80.0), (SPLIT_N, split))
    ]


@pytest.fixture
def program(environment, unknown_load, monkeypatch) -> Path:
    """A workload of two GEMMs and one that no table has; torch was upgraded, and one pick is slower now."""
    monkeypatch.setattr(quiet, "NOISY", NOISY)
    with Store.open(Path("old.db")) as store:
        store.add(rows({ONE: 60.0, TWO: 60.0}))
        store.refresh()
    monkeypatch.setenv("GEMMDB_TABLES", "old.db")
    backend = ReplayBackend(rows({ONE: 60.0, TWO: 95.0}), toolchain=NOW)
    monkeypatch.setattr(requalify, "local_backend", lambda devices, where: backend)
    lines = [{"problem": one.text, "count": 1, "calls": 9} for one in (ONE, TWO, replace(ONE, k=48))]
    path = Path("serve.jsonl")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_it_says_what_changed_and_how_the_new_table_is_used(gemmdb, program):
    done = gemmdb("verify", str(program), "--requalify", "--wait", "0s")
    assert done.code == 1, done.err
    assert done.out.splitlines()[0].startswith("1 of 2 verdicts hold, 1 no longer hold")
    assert done.out.splitlines()[-1] == (
        "serve-requalified.db: list it before the other tables: GEMMDB_TABLES=serve-requalified.db:old.db"
    )
    assert "1.667x" in done.out
    assert "1.250x" in done.out
    assert "no table has measured 1 GEMM of the workload" in done.err
    with Table.open(Path("serve-requalified.db")) as table:
        picks = {problem: table.verdicts(problem, device)[0].pick for problem, device in table.decided()}
    assert picks == {ONE: SPLIT_N, TWO: CPP}


def test_its_json_and_a_small_budget(gemmdb, program):
    done = gemmdb("verify", str(program), "--requalify", "--wait", "0s", "--json", "--out", "new.db", "--budget", "5s")
    found = json.loads(done.out)
    assert (found["path"], found["faults"], found["requalified"]["table"]) == (str(program), [], "new.db")
    left = found["requalified"]["left"]
    assert found["remeasured"]["problems"] + left == 2
    assert left or [one["now"] for one in found["requalified"]["changed"]] == [CPP.text]


@pytest.mark.parametrize(("flags", "said"), [
    (["--remeasure", "3", "--requalify"], "--remeasure and --requalify: one of them"),
    (["--out", "new.db"], "--out is for --requalify"),
    (["--requalify", "--out", "old.db"], "old.db exists: name a new file"),
    (["--requalify", "--out", "nowhere/new.db"], "nowhere is not a folder"),
    (["--requalify", "--budget", "soon"], "--budget"),
])  # fmt: skip
def test_a_wrong_call_is_refused(gemmdb, program, flags, said):
    gemmdb("verify", str(program), *flags).refused(said)
