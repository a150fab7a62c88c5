"""`gemmdb build` for a GPU that is not here: refused by default, and what `--modelled` then shows everywhere."""

import json

import pytest

from gemmdb.devices import detect
from gemmdb.key.problem import Problem

pytestmark = pytest.mark.skipif(detect.cuda() is not None, reason="this machine has a GPU")


def test_without_modelled_it_is_refused_with_one_line_that_says_what_modelled_does(gemmdb):
    done = gemmdb("build", "--arch", "sm80")
    assert (done.code, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert "or use --modelled, which compiles for that arch, ranks by a cost model and marks every row" in line


@pytest.mark.parametrize("flags", ["--allow triton", "--deny cutlass", "--minutes 3", "--gpus 1", "--ray local"])
def test_what_a_modelled_build_cannot_heed_is_refused(gemmdb, tmp_path, flags):
    done = gemmdb("build", "--arch", "sm80", "--modelled", "--out", str(tmp_path / "t.db"), *flags.split())
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert flags.split()[0] in done.err
    assert list(tmp_path.glob("*.db")) == []


def test_a_modelled_table_is_called_that_by_every_command(gemmdb, tmp_path, monkeypatch):
    shapes, out = tmp_path / "one.json", tmp_path / "t.db"
    shapes.write_text('[{"op": "mixed_mm", "m": 16, "n": 4104, "k": 4096}]')
    built = gemmdb("build", "--arch", "sm80", "--modelled", "--shapes", str(shapes), "--out", str(out))
    assert built.code == 0
    assert "modelled, not measured" in built.err
    assert "1 of 1 modelled now" in built.out
    monkeypatch.setenv("GEMMDB_TABLES", str(out))
    tables = json.loads(gemmdb("tables", "--json").out)["tables"]
    assert [one["origin"] for one in tables if one["path"] == str(out)] == ["modelled"]
    flags = ("--op", "mixed_mm", "--m", "16", "--n", "4104", "--k", "4096", "--device", "NVIDIA A100-SXM4-80GB")
    hit = json.loads(gemmdb("lookup", *flags, "--json").out)
    assert (hit["rung"], hit["table"], hit["evidence"]["modelled"]) == ("model", str(out), True)
    explained = gemmdb("explain", *flags)
    assert "model: modelled, not measured" in explained.out
    assert explained.out.rstrip().endswith("answer: near, from rung model")
    assert gemmdb("verify", str(out)).code == 0


def test_the_summary_of_a_workload_without_devices_says_what_coverage_says(gemmdb, tmp_path, monkeypatch):
    """It said 1.00x: the lines were looked up for this CPU. A compile times modelled kernels first."""
    problems = [Problem.gemm("mm", m=8, n=4096, k=4096, dtype="bf16"), Problem.gemm("mixed_mm", m=8, n=4096, k=4096)]
    lines = ({"problem": one.text, "count": 1, "calls": 10, "device": "", "ranges": {}} for one in problems)
    workload, out = tmp_path / "w.jsonl", tmp_path / "t.db"
    workload.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    built = gemmdb("build", "--arch", "sm80", "--modelled", "--shapes", str(workload), "--out", str(out))
    (over,) = [line for line in built.out.splitlines() if line.startswith("over ATen")]
    assert over.endswith(
        "x, weighted by calls and time; 2 GEMMs: 2 near; a compile times these kernels before it serves them"
    )
    assert "1.00x" not in built.out
    monkeypatch.setenv("GEMMDB_TABLES", str(out))
    asked = gemmdb("coverage", str(workload), "--device", "NVIDIA A100-SXM4-80GB", "--confirm").out
    assert asked.splitlines()[-1].rpartition(" ")[2] in over


def test_what_a_modelled_table_knows_nothing_of_is_not_called_answered(gemmdb, tmp_path, monkeypatch):
    """It said "1 of 1 problem answered" of an outcome `ATen (nothing known)`."""
    workload, out = tmp_path / "w.jsonl", tmp_path / "t.db"
    problem = Problem.gemm("mm", m=2, n=768, k=256, dtype="bf16")
    line = {"problem": problem.text, "count": 1, "calls": 10, "device": "", "ranges": {"m": [2, None]}}
    workload.write_text(json.dumps(line) + "\n")
    built = gemmdb("build", "--arch", "sm80", "--modelled", "--shapes", str(workload), "--out", str(out)).out
    (expected,) = [text for text in built.splitlines() if text.startswith("expected")]
    assert "1 are predicted to beat ATen at the recorded sizes" in expected or "none beats ATen" in expected
    monkeypatch.setenv("GEMMDB_TABLES", str(out))
    asked = gemmdb("coverage", str(workload), "--device", "NVIDIA A100-SXM4-80GB", "--confirm").out
    assert asked.startswith("0 of 1 problem answered, 0.0% of the time: ATen runs the only problem\n")
    assert "ATen (nothing known)" in asked


@pytest.mark.parametrize(("flags", "words"), [
    ((), "GEMMs of fp32 are not modelled; measure on such a GPU instead"),
    (("--ops", "bmm"), "--ops or --dtypes exclude all shapes"),
])  # fmt: skip
def test_what_cannot_be_modelled_is_refused_with_the_reason(gemmdb, tmp_path, flags, words):
    """It named --ops, which nobody had given."""
    workload = tmp_path / "w.jsonl"
    line = {"problem": Problem.gemm("mm", m=8, n=512, k=512, dtype="fp32").text, "count": 1, "device": ""}
    workload.write_text(json.dumps(line) + "\n")
    built = gemmdb("build", "--arch", "sm80", "--modelled", "--shapes", str(workload), *flags)
    built.refused("no problem is left to model", words)
