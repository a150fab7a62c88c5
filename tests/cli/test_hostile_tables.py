"""Commands on a table whose every free text tries to run, to escape to the terminal, or to name another file, and on
such a workload."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace

import pytest
from kit.lab import cpp, problem, rows

from gemmdb.key.device import Device
from gemmdb.key.toolchain import Toolchain
from gemmdb.table.writer import Store

ATTACK = "\x1b[2J\x1b]0;x\x07\r\n\x00\x9b<script>=cmd|$(touch owned)`touch owned`../../x"
DEVICE = Device("cpu", "cpu", "$(touch owned)`touch owned`<b>", 2, isa="';--")


@pytest.fixture
def hostile(tmp_path, environment, monkeypatch):
    path = tmp_path / "tables" / "hostile.db"
    with Store.open(path) as store:
        store.begin_run({"command": [ATTACK], "started": ATTACK, ATTACK: {"x": [ATTACK] * 5}})
        made_by = Toolchain(torch=ATTACK[:60], triton=ATTACK[:40], gemmdb=ATTACK[:70])
        for m in (1, 16, 64):
            found = rows(problem(m), {cpp(threads_m=1): 0.5}, device=DEVICE)
            store.add(replace(row, toolchain=made_by, detail="=HYPERLINK($(touch owned))") for row in found)
        store.refresh()
    monkeypatch.setenv("GEMMDB_TABLES", str(path))
    return path


COMMANDS = {
    "show": ["show", "FILE"],
    "tables": ["tables"],
    "verify": ["verify", "FILE"],
    "lookup": ["lookup", problem(16).text, "--device", DEVICE.sku],
    "explain": ["explain", problem(16).text, "--device", DEVICE.sku],
    "explain of a neighbour": ["explain", problem(17).text, "--device", DEVICE.sku],
    "diff": ["diff", "FILE", "FILE"],
    "merge": ["merge", "FILE", "--out", "merged.db"],
    "pack": ["tables", "pack", "FILE", "--out", "packed.db"],
    "csv": ["export", "FILE", "--to", "csv", "--out", "rows.csv"],
    "jsonl": ["export", "FILE", "--to", "jsonl", "--out", "rows.jsonl"],
    "report": ["report", "FILE", "--out", "page.html"],
}


@pytest.mark.parametrize("what", COMMANDS)
@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_is_run_and_the_terminal_stays_as_it_is(what, as_json, hostile, gemmdb, tmp_path):
    if what == "report":
        pytest.importorskip("jinja2")
    command = [str(hostile) if word == "FILE" else word for word in COMMANDS[what]]
    done = gemmdb(*command, *(["--json"] if as_json and what not in ("report", "merge", "pack") else []))
    assert done.code in (0, 1), done.err
    controls = {c for c in done.out + done.err if not c.isprintable() and c != "\n"}
    assert not controls
    assert not [path for path in tmp_path.rglob("*") if path.name in ("owned", "x")]
    made = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*") if path.is_file()}
    assert made <= {"tables", "merged.db", "packed.db", "rows.csv", "rows.jsonl", "page.html", "data"}


def test_what_is_exported_is_read_back_as_it_is(hostile, gemmdb, tmp_path):
    for kind in ("csv", "jsonl"):
        assert gemmdb("export", str(hostile), "--to", kind, "--out", f"rows.{kind}").code == 0
        assert gemmdb("import", f"rows.{kind}", "--from", kind, "--out", f"{kind}.db").code == 0
        assert gemmdb("diff", str(hostile), f"{kind}.db").code == 0
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert len(list(csv.reader(file))) == 7


def test_a_program_that_is_given_as_a_table_is_not_run(gemmdb, tmp_path):
    program = tmp_path / "x.py"
    program.write_text("open('owned', 'w')\n")
    for command in (["show"], ["verify"], ["diff", sys.executable]):
        assert gemmdb(*command, str(program)).code == 2
    assert not (tmp_path / "owned").exists()


def test_names_in_a_workload_cannot_control_the_terminal(gemmdb, tmp_path):
    (tmp_path / "w.jsonl").write_text(json.dumps({"uncovered": "bmm\x1b]0;owned\x07\x1b[2J"}) + "\n")
    out = gemmdb("coverage", "w.jsonl").out
    assert "not handled by gemmdb: bmm?]0;owned??[2J (1 in graphs)" in out
    assert all(line.isprintable() for line in out.splitlines())


@pytest.mark.parametrize("name", ["count", "calls"])
def test_absurd_counts_are_bad_input(gemmdb, tmp_path, name):
    (tmp_path / "w.jsonl").write_text(json.dumps({"problem": problem(1).text, name: 10**400}) + "\n")
    gemmdb("coverage", "w.jsonl").refused(f"w.jsonl:1: {name} must be an integer of at least 0 and below")
