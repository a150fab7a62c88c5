"""`gemmdb lookup` and `gemmdb explain` take what gemmdb prints: a problem's text, or a line of a workload."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import strategies

from gemmdb.cli.options import read_problem
from gemmdb.errors import InputError
from gemmdb.kernels import names
from gemmdb.key.problem import Problem

SKU = "Example CPU"
RANGES = st.dictionaries(
    st.sampled_from("mnk"), st.tuples(st.integers(0, 2**31), st.none() | st.integers(0, 2**31)), max_size=3
)


@given(strategies.problems, RANGES)
def test_what_is_printed_reads_back(problem, ranges):
    entry = read_problem([names.ranged(problem.text, ranges)])
    assert entry.problem == problem
    assert {name: (low, high) for name, low, high in entry.ranges} == ranges


@given(strategies.problems)
def test_a_line_of_a_workload_reads_back_as_it_is_written(problem):
    line = {"problem": problem.text, "count": 3, "ranges": {"m": [2, None]}}
    entry = read_problem([json.dumps(line)])
    assert (entry.problem, entry.count, entry.ranges) == (problem, 3, (("m", 2, None),))


@given(st.lists(st.text(max_size=40), min_size=1, max_size=4))
def test_anything_else_is_bad_input(words):
    with pytest.raises(InputError):
        read_problem(words)


@given(strategies.problems)
def test_a_short_name_is_told_from_what_is_no_problem(problem):
    """Tables print short names: several problems can share one."""
    with pytest.raises(InputError, match=r"is a short name that omits fields: .* as --wide prints it, or name"):
        read_problem(names.short(problem).split())


@pytest.mark.parametrize("around", ["{}", "`{}`;", "'{}'", "problem  {}", "  {}\n", '"{}", '])
@pytest.mark.parametrize("command", ["lookup", "explain"])
def test_a_pasted_problem_is_the_same_query(gemmdb, table, problem, flags, command, around):
    asked = gemmdb(command, *flags)
    pasted = gemmdb(command, around.format(problem.text), "--device", SKU)
    assert (pasted.code, pasted.out) == (asked.code, asked.out) == (0, asked.out)
    assert "packed_gemm" in pasted.out


def test_a_pasted_problem_may_be_wrapped_and_without_quotes(gemmdb, table, problem):
    for words in (problem.text.split(), [problem.text.replace(" ", "\n")]):
        done = gemmdb("lookup", *words, "--device", SKU)
        assert (done.code, "packed_gemm" in done.out) == (0, True)


def test_what_explain_prints_is_taken_by_lookup(gemmdb, table, flags):
    (line,) = [line for line in gemmdb("explain", *flags).out.splitlines() if line.startswith("problem ")]
    assert gemmdb("lookup", line, "--device", SKU).code == 0


def test_what_a_miss_prints_is_taken_by_explain(gemmdb, environment):
    err = gemmdb("lookup", "--op", "mm", "--m", "1", "--n", "2", "--k", "3").err
    named = re.search(r"no table answers (mm .*?);", err)[1]
    done = gemmdb("explain", named)
    assert (done.code, f"problem  {named}\n" in done.out) == (1, True)


def test_what_coverage_prints_is_taken_with_its_ranges(gemmdb, workload):
    problem = Problem.gemm("addmm", m=16, n=64, k=64, dtype="fp32", constant_weight=True)
    line = {"problem": problem.text, "count": 1, "device": "", "ranges": {"m": [2, 64], "k": [1, None]}}
    workload.write_text(json.dumps(line) + "\n")
    (printed,) = (line for line in gemmdb("coverage", str(workload), "--wide").out.splitlines() if "addmm" in line)
    text = printed[printed.index("addmm") :].partition(")")[0] + ")"  # Why no build can change it follows.
    assert text.endswith(" (k 1.., m 2..64)")
    done = gemmdb("explain", text)
    assert f"problem  {text}\n" in done.out


@pytest.mark.parametrize("command", ["lookup", "explain"])
def test_a_line_of_a_workload_is_asked_for_its_device(gemmdb, table, workload, command):
    done = gemmdb(command, f"{workload}:2")
    assert (done.code, "packed_gemm" in done.out) == (0, True)
    assert gemmdb(command, f"{workload}:1").code == 1
    assert gemmdb(command, f"{workload}:2", "--device", "NVIDIA H200").code == 1


def test_the_ranges_of_a_line_count(gemmdb, table, workload):
    lines = workload.read_text().splitlines()
    workload.write_text(json.dumps({**json.loads(lines[1]), "ranges": {"m": [1, None]}}) + "\n" + lines[1] + "\n")
    found = [json.loads(gemmdb("explain", f"{workload}:{n}", "--json").out) for n in (1, 2)]
    assert [answer["answer"] for answer in found] == ["exact", "exact"]
    assert [answer["ranges"] for answer in found] == [{"m": [1, None]}, {}]


def test_a_file_may_have_any_name(gemmdb, table, workload):
    Path("a=b c").mkdir()
    workload.rename("a=b c/w:1")
    assert gemmdb("lookup", "a=b c/w:1:2").code == 0
    assert gemmdb("lookup", "x" * 5000).code == gemmdb("lookup", "x" * 5000 + ":1").code == 2


def test_empty_lines_count_as_lines(gemmdb, table, workload):
    workload.write_text("\n\n" + workload.read_text())
    assert gemmdb("lookup", f"{workload}:4").code == 0


@pytest.mark.parametrize("name", ["bfloat16", "torch.bfloat16", "bf16"])
def test_dtypes_may_have_torchs_names(gemmdb, environment, name):
    flags = ["--op", "mm", "--m", "1", "--n", "8", "--k", "8", "--dtype", name, "--out-dtype", name]
    assert "a=bf16:row:8 b=bf16:col:8 out=bf16 " in gemmdb("lookup", *flags).err
