"""`gemmdb lookup` and `gemmdb explain` on a real table."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gemmdb.key.problem import Problem
from gemmdb.settings import shipped_tables

ALONE = (
    "ATen is the only kernel for it: gemmdb's CPU kernels need constant weights: in inference, set"
    " torch._inductor.config.freezing = True"
)
REFUSED = f"ATen (refused: {ALONE.partition(': ')[2]})"


@pytest.fixture
def h200(environment, monkeypatch) -> None:
    """The shipped table of the H200 is in force."""
    monkeypatch.setenv("GEMMDB_TABLES", str(shipped_tables() / "sm90-nvidia-h200.db"))


def test_hit_names_rung_kernel_and_time(gemmdb, table, flags):
    done = gemmdb("lookup", *flags)
    assert (done.code, done.err) == (0, "")
    lines = dict(line.split(None, 1) for line in done.out.splitlines())
    assert lines["rung"].strip() == "exact"
    assert lines["kernel"].startswith("cpp:packed_gemm")
    assert lines["expected"] == "50.00 us, 2.00x ATen"
    assert lines["table"] == str(table)


def test_the_evidence_is_short_unless_it_is_asked_for(gemmdb, h200):
    problem = Problem.gemm("mixed_mm", m=8, n=28672, k=8192, weight_dtype="int8")
    asked = (problem.text, "--device", "NVIDIA H200")
    brief, wide = gemmdb("lookup", *asked).out, gemmdb("lookup", *asked, "--wide").out
    for text in (brief, wide):
        assert [line.split() for line in text.splitlines()[:2]] == [["outcome", "near"], ["rung", "near"]]
    full = json.loads(gemmdb("lookup", *asked, "--json").out)
    named = [line.partition("kernel")[2].strip() for text in (brief, wide) for line in text.splitlines()[2:3]]
    assert named == [f"triton:narrow {' '.join(f'{name}={value}' for name, value in full['params'].items())}"] * 2
    assert f"least gain     {full['evidence']['least_gain']:.2f}x ATen" in brief
    (neighbours,) = [line for line in brief.splitlines() if line.startswith("neighbours ")]
    assert "a=bf16" not in neighbours
    assert wide.count("a=bf16:row") == len(full["evidence"]["neighbours"]) > 3
    assert "distance" in wide
    assert len(brief.splitlines()) < 12 < len(wide.splitlines())


H100 = ("--device", "NVIDIA H100 80GB HBM3")


def test_confirm_answers_as_a_compile_that_times_kernels_first(gemmdb, h200):
    one_row = ("--op", "mm", "--m", "1", "--n", "11008", "--k", "4096", *H100)
    held, served = gemmdb("lookup", *one_row), gemmdb("lookup", *one_row, "--confirm")
    assert "kernel         aten:default" in held.out
    assert "held back      triton:gemv" in held.out
    assert "bounds         memory 34" in held.out
    assert held.err.endswith("benchmark triton:gemv against ATen first, and serves it if faster: --confirm shows it\n")
    assert "kernel         triton:gemv" in served.out
    assert "and serves the faster one" in served.err
    assert json.loads(gemmdb("explain", *one_row, "--confirm", "--json").out)["steps"][3]["hit"]["backend"] == "triton"


def test_a_compile_that_would_serve_aten_too_is_not_mentioned(gemmdb, h200):
    little = ("--op", "mm", "--m", "8", "--n", "11008", "--k", "4096", *H100)
    assert "held back" in gemmdb("lookup", *little).out
    assert gemmdb("lookup", *little).err == ""


def test_of_a_miss_it_says_what_a_compile_tries(gemmdb, environment, monkeypatch):
    monkeypatch.setenv("GEMMDB_TABLES", str(shipped_tables() / "sm90-nvidia-h100-80gb-hbm3.db"))
    missed = ("--op", "mm", "--m", "64", "--n", "1280", "--k", "1280", *H100)
    done = gemmdb("lookup", *missed)
    assert (done.code, done.out.splitlines()[0]) == (1, "outcome  ATen (nothing known)")
    assert "a compile may benchmark triton:" in done.err
    assert gemmdb("lookup", *missed, "--confirm").code == 0
    monkeypatch.setenv("GEMMDB_CONFIRM", "0")
    assert "no table answers" in gemmdb("lookup", *missed).err


def test_batch_invariance_gives_all_sizes_one_order(gemmdb, h200):
    """Nothing is timed first then, so no note says so. What it does not cover is named."""
    problem = Problem.gemm("mm", m=64, n=4096, k=14336)
    asked = ("--n", "4096", "--k", "4096", "--device", "NVIDIA H200", "--batch-invariant")
    found = [json.loads(gemmdb("lookup", "--op", "mm", *asked, "--m", str(m), "--json").out) for m in (1, 17, 300)]
    assert {one["backend"] for one in found} == {"triton"}
    assert len({one["evidence"]["sum_order"] for one in found}) == 1
    assert len({json.dumps(one["params"]) for one in found}) > 1
    for more in ((), ("--confirm",)):
        assert gemmdb("lookup", "--op", "mm", *asked, "--m", "1", *more).err == ""
    steps = json.loads(gemmdb("explain", "--op", "mm", *asked, "--m", "1", "--json").out)
    assert (steps["answer"], steps["steps"][0]["rung"]) == (found[0]["rung"], "invariant")
    ranged = gemmdb("lookup", f"{problem.text} (m 2..)", *asked[4:]).out
    assert re.search(
        r"kernels +m 2, 16, triton:narrow 16x64x128 split_k=4; .*; m 257, triton:tile \S+ slices=4\n", ranged
    )
    assert re.search(r"kernel +triton:\S+ .* at m=64, others in `kernels`\n", ranged)
    assert "batch invariance covers mm and addmm" in gemmdb("lookup", "--op", "int_mm", *asked, "--m", "32").out


def test_confirm_changes_nothing_that_no_compile_confirms(gemmdb, environment, monkeypatch):
    """Of groups, nobody knows the split before the program runs. So kernels that would be timed first stay back."""
    tables = (str(shipped_tables() / f"sm90-nvidia-{name}.db") for name in ("h200", "h100-80gb-hbm3"))
    monkeypatch.setenv("GEMMDB_TABLES", os.pathsep.join(tables))
    problem = Problem.gemm("grouped_mm", groups=32, m=3000, n=2048, k=1408)
    asked = ("lookup", problem.text, "--device", "NVIDIA H200")
    done = gemmdb(*asked)
    assert re.search(r"^kernel +aten:default ", done.out, re.MULTILINE)
    assert re.search(r"^held back +triton:grouped", done.out, re.MULTILINE)
    assert gemmdb(*asked, "--confirm") == done


def test_json_hit_has_the_fixed_keys(gemmdb, table, flags):
    done = gemmdb("lookup", *flags, "--json")
    hit = json.loads(done.out)
    assert list(hit) == [
        "schema", "version", "rung", "backend", "kernel", "params", "expected_us", "speedup_vs_aten", "table",
        "evidence", "outcome", "why",
    ]  # fmt: skip
    assert (hit["rung"], hit["backend"], hit["kernel"]) == ("exact", "cpp", "packed_gemm")
    assert hit["params"]["threads_n"] == 2
    assert hit["expected_us"] == pytest.approx(50)
    assert hit["speedup_vs_aten"] == pytest.approx(2)


def test_json_miss_is_one_object_and_exit_1(gemmdb, environment):
    done = gemmdb("lookup", "--op", "mm", "--m", "1", "--n", "2", "--k", "3", "--json")
    found = {"rung": "miss", "outcome": "ATen (refused)", "why": ALONE.partition(": ")[2]}
    assert json.loads(done.out) == {"schema": "lookup", "version": 1, **found}
    assert (done.code, done.err) == (1, "")


def test_another_flag_is_another_problem(gemmdb, table, flags):
    assert gemmdb("lookup", *flags, "--tf32").code == 1
    assert json.loads(gemmdb("lookup", *flags, "--fusion", "pointwise", "--json").out)["rung"] == "epilogue"
    assert gemmdb("lookup", *flags, "--l2", "hot").code == 1


def test_arch_finds_the_device(gemmdb, table, flags):
    named = flags[: flags.index("--device")]
    assert gemmdb("lookup", *named, "--arch", "cpu").code == 0


def test_a_batch_is_part_of_the_question(gemmdb, environment):
    done = gemmdb("lookup", *["--op", "bmm", "--batch", "8", "--m", "16", "--n", "64", "--k", "32", "--layout", "nn"])
    assert done.code == 1
    assert "no table answers bmm batch=8 m=16 n=64 k=32 a=bf16:row:8 b=bf16:row:8 " in done.err


def test_explain_asks_every_rung(gemmdb, table, flags):
    done = gemmdb("explain", *flags, "--json")
    answer = json.loads(done.out)
    assert done.code == 0
    assert answer["answer"] == "exact"
    assert [step["rung"] for step in answer["steps"]] == ["exact", "near", "epilogue", "sku", "model"]
    assert all(step["reason"] for step in answer["steps"])
    assert answer["steps"][0]["hit"]["kernel"] == "packed_gemm"
    assert answer["tables"] == [str(table)]


def test_explain_text_says_why_a_rung_declines(gemmdb, environment):
    done = gemmdb("explain", "--op", "mm", "--m", "1", "--n", "2", "--k", "3")
    assert done.code == 1
    assert f"\nanswer: {REFUSED}\nnext: " in done.out
    for rung in ("exact", "near", "epilogue", "sku", "model"):
        assert f"\n{rung}: " in done.out


@pytest.mark.parametrize("constant", [True, False])
def test_a_miss_says_whether_a_build_could_change_it(gemmdb, environment, constant):
    sizes = ("--m", "16", "--n", "64", "--k", "64")
    asked = ["--op", "mm", *sizes, "--dtype", "fp32", "--arch", "cpu", *["--constant-weight"] * constant]
    done = gemmdb("lookup", *asked)
    assert done.code == 1
    assert done.out.splitlines()[0] == f"outcome  {'ATen (nothing known)' if constant else REFUSED}"
    assert (ALONE in done.err, "`gemmdb explain`" in done.err) == (not constant, constant)
    found = json.loads(gemmdb("explain", *asked, "--json").out)
    assert (found["answer"], found["only_aten"]) == ("miss", "" if constant else ALONE)


def test_lookup_imports_no_torch_and_no_sqlite_utils(process, table, flags, tmp_path: Path):
    script = (
        "import sys; from gemmdb.cli.app import run; code = run(sys.argv[1:]);"
        "sys.exit(code or any(name in sys.modules for name in ('torch', 'triton', 'sqlite_utils')))"
    )
    done = subprocess.run([sys.executable, "-c", script, "lookup", *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
