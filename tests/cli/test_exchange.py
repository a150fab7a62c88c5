"""`gemmdb export` and `gemmdb import`: what they print, and their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def test_a_table_is_exported_and_imported(gemmdb, table):
    done = gemmdb("export", str(table), "--to", "jsonl", "-o", "rows.jsonl")
    assert (done.code, done.out) == (0, "")
    assert "2 measurements from" in done.err
    done = gemmdb("import", "rows.jsonl", "--from", "jsonl", "-o", "copy.db")
    assert done.code == 0
    assert gemmdb("diff", str(table), "copy.db").code == 0


def test_json_counts_and_names_what_is_left(gemmdb, table):
    done = gemmdb("export", str(table), "--to", "csv", "-o", "rows.csv", "--json")
    found = json.loads(done.out)
    assert (done.code, found["version"], found["carried"], found["format"]) == (0, 1, 2, "csv")
    (left,) = found["left"]
    assert (left["count"], len(left["examples"])) == (1, 1)
    assert "skipped: 1: CSV cannot store" in done.err


def test_nothing_to_carry_over_is_a_negative_answer(gemmdb, table):
    done = gemmdb("export", str(table), "--to", "lookup-table", "-o", "table.json")
    assert done.code == 1
    assert "for NVIDIA GPUs only" in done.err
    Path("results.csv").write_text("GemmTunableOp_Half_TN,tn_64_16_64_ld_64_64_64,Gemm_Cublas_7,0.02\n")
    importing = ("import", "results.csv", "--from", "tunableop", "--device", "NVIDIA H200", "--cuda", "13.0", "-o")
    done = gemmdb(*importing, "new.db")
    assert (done.code, Path("new.db").exists()) == (1, False), "an empty table is made"
    assert done.err.splitlines()[-1] == "gemmdb: 0 measurements from results.csv"
    assert "which now holds 2" in gemmdb(*importing, str(table)).err


def test_tables_are_pushed_and_pulled(gemmdb, table):
    pytest.importorskip("fsspec")
    done = gemmdb("tables", "push", "there", str(table))
    assert (done.code, done.out) == (0, "")
    assert "pushed: there/mine.db" in done.err
    done = gemmdb("tables", "pull", "there", "--into", "here", "--json")
    (found,) = json.loads(done.out)["tables"]
    assert (found["state"], found["path"]) == ("pulled", "here/mine.db")
    assert gemmdb("diff", str(table), "here/mine.db").code == 0


def test_pulled_tables_are_used_by_lookups(gemmdb, table, monkeypatch):
    pytest.importorskip("fsspec")
    gemmdb("tables", "push", "there", str(table))
    monkeypatch.delenv("GEMMDB_TABLES")
    assert "no tables" in gemmdb("tables").err
    assert gemmdb("tables", "pull", "there").code == 0
    assert "mine.db" in gemmdb("tables").out


LIGHT = """
import sys

class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in {names}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent)
from gemmdb.cli.app import run

sys.exit(run(sys.argv[1:]))
"""
CONFIG = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "num_warps": 4, "num_stages": 4}


def test_a_light_install_exports_and_imports(table):
    """With nothing but the two packages that gemmdb depends on, and what they bring."""
    absent = ("torch", "jinja2", "sympy", "numpy", "rich", "triton", "fsspec", "pyarrow", "aiohttp")

    def run(*arguments):
        command = [sys.executable, "-c", LIGHT.format(names=absent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    Path("mm.json").write_text('[{"(16, 512, 512)": [{"type": "cublas", "time": 0.01}], "kernel_type": "mm"}]')
    Path("N=7168,K=2048,dtype=int8_w8a8.json").write_text(json.dumps({"16": CONFIG}))
    Path("r.csv").write_text("GemmTunableOp_Half_TN,tn_512_16_4096_ld_4096_4096_512,Default,0.02\n")
    h200 = ["--device", "NVIDIA H200", "--cuda", "13.0"]
    for arguments in (
        ["export", str(table), "--to", "csv", "-o", "rows.csv"],
        ["import", "rows.csv", "--from", "csv", "-o", "a.db"],
        ["import", "mm.json", "--from", "inductor-log", "-o", "b.db", "--dtype", "bf16", *h200],
        ["import", "N=7168,K=2048,dtype=int8_w8a8.json", "--from", "vllm", "-o", "c.db", *h200],
        ["import", "r.csv", "--from", "tunableop", "-o", "d.db", *h200],
    ):
        done = run(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)
    done = run("tables", "pull", "there")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "pip install 'gemmdb[exchange]'" in done.stderr
