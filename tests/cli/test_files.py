"""`merge`, `diff`, `verify` and `coverage` on real tables and workloads."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from gemmdb.advice import Act
from gemmdb.cli.coverage import steps
from gemmdb.generators.coverage import Coverage, Hits, Tally
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.outcome import ONLY_ATEN, Kind, Outcome
from gemmdb.settings import shipped_tables
from gemmdb.table.reader import Table
from gemmdb.table.stats import Gain


def test_merge_is_the_union(gemmdb, make_table):
    a, b = make_table("a.db"), make_table("b.db")
    done = gemmdb("merge", str(a), str(b), str(a), "--out", "c.db")
    assert (done.code, done.out) == (0, "")
    assert done.err == "gemmdb: 4 measurements of 3 tables in c.db\n"
    assert Table.open(Path("c.db")).summary()[0]["measurements"] == 4
    assert gemmdb("verify", "c.db").code == 0


def test_merge_into_an_input_adds_to_it(gemmdb, make_table):
    a, b = make_table("a.db"), make_table("b.db")
    assert gemmdb("merge", str(a), str(b), "--out", "a.db").code == 0
    assert Table.open(a).summary()[0]["measurements"] == 4


def test_diff_of_a_table_with_itself(gemmdb, make_table):
    make_table("a.db")
    done = gemmdb("diff", "a.db", "a.db")
    assert (done.code, done.out, done.err) == (0, "both tables hold the same measurements and verdicts\n", "")


def test_diff_names_the_verdict_that_changed(gemmdb, make_table, problem):
    make_table("a.db", us=50.0)
    make_table("b.db", us=150.0)
    done = gemmdb("diff", "a.db", "b.db")
    assert (done.code, done.err) == (1, "")
    assert "only in A: 2 measurements, 0 problems, 0 verdicts on problems of both" in done.out
    line = done.out.splitlines()[-1].split()
    assert line[:5] == ["changed", "2.00x", "1.00x", "cpp:packed_gemm", "blocks_k=0"]
    assert problem.text in done.out

    done = gemmdb("diff", "a.db", "b.db", "--json")
    found = json.loads(done.out)
    assert (done.code, done.err) == (1, "")
    assert (found["measurements_only_a"], found["measurements_only_b"]) == (2, 2)
    (change,) = found["changed"]
    assert (change["problem"], change["after"], change["held"]) == (problem.text, "aten:default", False)


def test_verify_names_what_is_wrong(gemmdb, make_table):
    path = make_table("a.db")
    done = gemmdb("verify", "a.db")
    assert (done.code, done.out, done.err) == (0, "a.db: no faults found\n", "")
    assert json.loads(gemmdb("verify", "a.db", "--json").out) == {
        "schema": "verify", "version": 1, "path": "a.db", "faults": [],
    }  # fmt: skip
    with sqlite3.connect(path) as db:
        db.execute("UPDATE measurement SET median_us = median_us * 1.001")
    done = gemmdb("verify", "a.db")
    assert (done.code, done.err) == (1, "")
    assert done.out.startswith("measurement: ")
    assert "in order" not in done.out
    done = gemmdb("verify", "a.db", "--json")
    assert done.code == 1
    assert {fault["check"] for fault in json.loads(done.out)["faults"]} >= {"measurement"}


def test_coverage_ranks_misses_and_names_what_is_not_supported(gemmdb, table, workload):
    done = gemmdb("coverage", str(workload))
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("1 of 3 problems answered, ")
    assert lines[3].split()[:5] == ["exact", "table", "1", "1", "10"]
    misses = [line for line in lines if "addmm " in line]
    assert "addmm 512x" in misses[0]
    assert "addmm 8x" in misses[1]
    wide = [line for line in gemmdb("coverage", str(workload), "--wide").out.splitlines() if "addmm " in line]
    assert ["addmm m=512" in wide[0], "addmm m=8" in wide[1]] == [True, True]
    assert "not handled by gemmdb: bmm (2 in graphs)" in lines
    assert all("  ATen (refused)  addmm " in line for line in misses)
    assert lines[-1].startswith("expected over ATen, weighted by calls and time: 1.")


def test_coverage_json(gemmdb, table, workload):
    done = gemmdb("coverage", str(workload), "--json")
    found = json.loads(done.out)
    assert (done.code, done.err, found["problems"]) == (0, "", 3)
    assert (found["hits"]["exact"]["problems"], found["hits"]["exact"]["outcome"]) == (1, "table")
    assert {miss["outcome"] for miss in found["misses"]} == {"ATen (refused)"}
    assert found["hit_share"] + sum(miss["share"] for miss in found["misses"]) == pytest.approx(1)
    assert found["uncovered"] == {"bmm": {"count": 2, "calls": 20}}
    assert found["kernel_share"] == pytest.approx(found["hits"]["exact"]["share"])
    assert 1 < found["gain"]["low"] <= found["gain"]["value"] <= found["gain"]["high"]


def test_coverage_by_a_compile_that_times_kernels_first(gemmdb, environment, monkeypatch):
    monkeypatch.setenv("GEMMDB_TABLES", str(shipped_tables() / "sm90-nvidia-h200.db"))
    h100 = Device("cuda", "sm90", "NVIDIA H100 80GB HBM3", 132)
    line = {"problem": Problem.gemm("mm", m=1, n=11008, k=4096).text, "device": h100.text, "count": 1, "calls": 9}
    Path("w.jsonl").write_text(json.dumps(line | {"ranges": {}}) + "\n")
    known, confirmed = (json.loads(gemmdb("coverage", "w.jsonl", "--json", *flag).out) for flag in ((), ("--confirm",)))
    assert (known["kernel_share"], confirmed["kernel_share"]) == (0, 1)
    assert confirmed["gain"]["value"] > known["gain"]["value"] == 1


def test_coverage_without_tables_is_all_misses_and_still_done(gemmdb, workload):
    done = gemmdb("coverage", str(workload))
    assert done.code == 0
    assert done.out.startswith("0 of 3 problems answered, 0.0% of the time: ATen runs all 3 problems\n")
    gain, *steps = done.out.splitlines()[-3:]
    assert gain == "expected over ATen, weighted by calls and time: no gain, ATen runs every GEMM"
    assert steps == [
        "next  2 GEMMs need constant weights: nothing to do in training; in inference, set this before the first"
        " compile and run again: torch._inductor.config.freezing = True",
        f"next  1 GEMM runs on another device; build there: gemmdb build --arch native --shapes {workload}",
    ]  # fmt: skip


def test_coverage_says_which_misses_no_build_can_change(gemmdb, environment):
    known = Problem.gemm("mm", m=8, n=64, k=64, dtype="fp32")
    lines = [
        {
            "problem": known.text,
            "device": Device("cpu", "cpu", "Example CPU", 2, isa="avx2").text,
            "count": 1,
            "ranges": {},
        }
    ]
    Path("w.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (miss,) = json.loads(gemmdb("coverage", "w.jsonl", "--json").out)["misses"]
    assert (miss["outcome"], miss["why"]) == ("ATen (refused)", miss["reason"].removeprefix(f"{ONLY_ATEN}: "))
    assert "  ATen (refused)  mm 8x64x64 " in gemmdb("coverage", "w.jsonl").out


def test_coverage_of_another_device(gemmdb, environment, monkeypatch):
    monkeypatch.setenv("GEMMDB_TABLES", str(shipped_tables() / "sm90-nvidia-h200.db"))
    line = {"problem": Problem.gemm("mm", m=16, n=4096, k=4096).text, "device": "", "count": 1, "calls": 9}
    Path("w.jsonl").write_text(json.dumps(line | {"ranges": {}}) + "\n")
    for flag in (("--device", "NVIDIA H200"), ("--arch", "sm90")):
        assert json.loads(gemmdb("coverage", "w.jsonl", "--json", *flag).out)["hit_share"] == 1
    gemmdb("coverage", "w.jsonl", "--device", "").refused("--device is empty")
    gemmdb("coverage", "w.jsonl", "--device", "NVIDIA H200", "--arch", "sm90").refused("exclude each other")


@pytest.mark.parametrize(("elsewhere", "act"), [(True, Act.OTHER_DEVICE), (False, Act.BUILD)])
def test_what_a_model_says_of_another_device_is_not_built_here(elsewhere, act):
    """It advised `gemmdb build --arch native` on a CPU, for an A100."""
    unknown = {Outcome(Kind.ATEN_UNKNOWN, "no table answers"): Tally(1, 1, 9, 1.0)}
    found = Coverage(1, {"model": Hits(1, 1, 9, 1.0, 1, 1.0, unknown)}, (), {}, Gain(1.0, 1.0, 1.0))
    assert [one.act for one in steps(found, Path("w.jsonl"), elsewhere)] == [act]
