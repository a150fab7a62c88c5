"""`gemmdb coverage` of a workload that a stranger wrote."""

import json

import pytest

from gemmdb import InputError, Problem
from gemmdb.cli.coverage import coverage
from gemmdb.workload import entries


def test_names_of_what_is_not_supported_cannot_control_the_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = tmp_path / "w.jsonl"
    path.write_text(json.dumps({"uncovered": "bmm\x1b]0;owned\x07\x1b[2J"}) + "\n")
    coverage(path)
    out = capsys.readouterr().out
    assert "not supported by gemmdb: bmm?]0;owned??[2J (1 in graphs)" in out
    assert all(line.isprintable() for line in out.splitlines())


@pytest.mark.parametrize("name", ["count", "calls"])
def test_absurd_counts_are_bad_input(tmp_path, name):
    problem = Problem.gemm("mm", m=1, n=8, k=8).text
    path = tmp_path / "w.jsonl"
    path.write_text(json.dumps({"problem": problem, name: 10**400}) + "\n")
    with pytest.raises(InputError, match=rf"w\.jsonl:1: {name} must be an integer of at least 0 and below"):
        entries.read(path)
