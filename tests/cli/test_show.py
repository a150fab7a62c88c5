"""`gemmdb show`: what is in a table and in a workload, and what is neither."""

import json

from gemmdb.key.problem import Problem
from gemmdb.table.catalog import shipped_tables
from gemmdb.table.reader import Table
from gemmdb.workload import entries

H200 = str(shipped_tables() / "sm90-nvidia-h200.db")


def test_a_table_is_shown_by_gain(gemmdb):
    done = gemmdb("show", H200, "mixed_mm", "m=16", "--limit", "3")
    assert done.code == 0
    titles, *rows, summary = done.out.splitlines()
    assert titles.split() == ["problem", "time", "gain", "over", "ATen", "kernel"]
    assert all(row.startswith("mixed_mm 16x") for row in rows)
    assert len(rows) == 3
    assert summary.startswith("3 of ")
    assert "--limit 0 shows all" in done.err
    found = json.loads(gemmdb("show", H200, "mixed_mm", "m=16", "--json", "--limit", "0").out)
    gains = [one["speedup"] for one in found["verdicts"]]
    assert gains == sorted(gains, reverse=True)
    assert {Problem.parse(one["problem"]).m for one in found["verdicts"]} == {16}
    assert len(gains) == found["matching"]


def test_a_word_with_a_value_is_taken_as_a_whole(gemmdb):
    """`m=16` is no part of `block_m=16`."""
    found = json.loads(gemmdb("show", H200, "m=17", "--json").out)
    assert {Problem.parse(one["problem"]).m for one in found["verdicts"]} == {17}


def test_a_workload_is_shown_with_its_lines(gemmdb, tmp_path):
    path = tmp_path / "workload.jsonl"
    problem = Problem.gemm("addmm", m=784, n=1536, k=384, bias="1d")
    entries.append(path, [entries.Entry(Problem.gemm("mm", m=1, n=2, k=3)), entries.Entry(problem, 4, 1000)])
    done = gemmdb("show", str(path), "addmm")
    assert done.out.splitlines()[1].split() == ["2", "4", "1,000", "addmm", "784x1536x384", "bf16", "+bias"]
    assert done.out.splitlines()[2] == "1 GEMM"
    assert problem.text in gemmdb("show", str(path), "--wide").out
    assert json.loads(gemmdb("show", str(path), "--json").out)["products"][1]["line"] == 2


def test_the_lines_of_a_gemm_are_added_up(gemmdb, tmp_path):
    """A recorder writes what was compiled at once, and the calls at the end."""
    path, moving = tmp_path / "workload.jsonl", (("m", 2, None),)
    mine, other = (Problem.gemm("mm", m=m, n=2, k=3) for m in (1, 5))
    up = (entries.Origin("blocks.0.up", "net.py:7"),)
    entries.append(path, [
        entries.Entry(mine, 1, 0, origins=up), entries.Entry(other), entries.Entry(mine, 0, 50),
        entries.Entry(mine, 1, 3, ranges=moving),
    ])  # fmt: skip
    listed = [line.split() for line in gemmdb("show", str(path)).out.splitlines()]
    assert listed[1] == ["1", "1", "50", "mm", "1x2x3", "bf16", "blocks.0.up", "at", "net.py:7"]
    assert listed[2] == ["2", "1", "0", "mm", "5x2x3", "bf16"]
    assert listed[3] == ["4", "1", "3", "mm", "1x2x3", "bf16", "(m", "2..)"]
    assert listed[4] == ["3", "GEMMs"]


def test_nothing_matches_and_no_times_are_read(gemmdb, monkeypatch):
    """A table of thousands of problems is searched in a second."""

    def read(*_: object):
        raise AssertionError("times were read")

    monkeypatch.setattr(Table, "record", read)
    done = gemmdb("show", H200, "no-such-word")
    assert (done.code, done.out, done.err) == (0, "0 problems\n", "")
