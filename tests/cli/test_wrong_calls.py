"""Wrong calls: each is one line on stderr that names the input and the remedy, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from gemmdb.cli.doctor import BROKEN, MISSING, OK, checks
from gemmdb.devices import detect
from gemmdb.key import epilogue
from gemmdb.key.problem import Problem

SIZES = ["--op", "mm", "--m", "1", "--n", "64", "--k", "64"]


def with_size(flag: str, value: str) -> list[str]:
    """The flags of a problem in which `flag` has this value."""
    flags = list(SIZES)
    flags[flags.index(flag) + 1] = value
    return flags


def refused(done, *words: str) -> None:
    """The call was bad input: exit code 2, nothing on stdout, and a line on stderr with these words."""
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done
    for word in words:
        assert word in done.err


@pytest.mark.parametrize("option", ["--allow", "--deny"])
def test_a_bad_expression_leaves_no_table(gemmdb, option):
    pytest.importorskip("torch")
    Path("one.jsonl").write_text(json.dumps({"op": "mm", "m": 4, "n": 48, "k": 64, "dtype": "fp32"}) + "\n")
    done = gemmdb("build", "--arch", "cpu", "--shapes", "one.jsonl", option, "(")
    refused(done, f"{option} '('", "not a regular expression")
    assert not list(Path(os.environ["XDG_DATA_HOME"]).glob("**/*.db"))


@pytest.mark.parametrize("equals", [False, True])
def test_a_size_that_is_no_number_is_named(gemmdb, environment, equals):
    flags = ["--op", "mm", "--n", "1", "--k", "1", *(["--m=abc"] if equals else ["--m", "abc"])]
    refused(gemmdb("lookup", *flags), "'--m'", "'abc'", "gemmdb lookup --help")


@pytest.mark.parametrize("command", ["lookup", "explain"])
@pytest.mark.parametrize("flag", ["--m", "--n", "--k"])
def test_a_size_of_zero_has_nothing_to_compute(gemmdb, environment, command, flag):
    refused(gemmdb(command, *with_size(flag, "0")), f"{flag} 0: there is nothing to compute")


def test_an_empty_batch_has_nothing_to_compute(gemmdb, environment):
    refused(gemmdb("lookup", "--op", "bmm", *SIZES[2:], "--batch", "0"), "--batch 0: there is nothing to compute")


@pytest.mark.parametrize(
    ("word", "meant"), [("relu", "pointwise"), ("gelu", "pointwise:math"), ("SiLU", "pointwise:math")]
)
def test_a_common_epilogue_is_told_its_class(gemmdb, environment, word, meant):
    done = gemmdb("lookup", *SIZES, "--fusion", word)
    refused(done, f"no such fusion: {word!r}", f"class {meant};", f"known: none, scale, {epilogue.GRAMMAR}")
    assert gemmdb("lookup", *SIZES, "--fusion", meant).code == 1


def test_every_named_epilogue_has_a_class_that_exists():
    for name, text in epilogue.EXAMPLES.items():
        assert epilogue.parse(text).text == text, name


def test_the_list_of_classes_is_what_is_accepted():
    groups = [part.rstrip("]").split("|") for part in epilogue.GRAMMAR.split("[")[1:]]
    for options in groups:
        for option in options:
            assert epilogue.parse(f"pointwise{option}").text == f"pointwise{option}"
    longest = "pointwise" + "".join(options[-1] for options in groups)
    assert epilogue.parse(longest).text == longest


@pytest.mark.parametrize("arguments", [["coverage", "w.jsonl"], ["coverage", "w.jsonl", "--json"]])
def test_coverage_of_an_empty_workload_is_bad_input_as_for_build(gemmdb, arguments):
    Path("w.jsonl").write_text("\n")
    refused(gemmdb(*arguments), "w.jsonl holds no problems", "gemmdb record --out w.jsonl")


def test_build_of_an_empty_workload_says_the_same(gemmdb):
    pytest.importorskip("torch")
    Path("w.jsonl").write_text("")
    refused(gemmdb("build", "--arch", "cpu", "--shapes", "w.jsonl"), "w.jsonl holds no problems", "gemmdb record")


def test_a_workload_without_supported_gemms_is_said_to_be_one(gemmdb):
    pytest.importorskip("torch")
    Path("w.jsonl").write_text(json.dumps({"uncovered": "baddbmm"}) + "\n")
    refused(gemmdb("build", "--arch", "cpu", "--shapes", "w.jsonl"), "w.jsonl holds no problems that gemmdb can build")
    assert gemmdb("coverage", "w.jsonl").code == 0


def variable(name: str) -> tuple[str, str]:
    """What `gemmdb doctor` says of a variable: the state and the detail."""
    (check,) = [check for check in checks(compile_probe=False) if check.name == name]
    return check.state, check.detail


@pytest.mark.parametrize(
    ("name", "value", "state"),
    [
        ("GEMMDB_LOG", "verbose", BROKEN),
        ("GEMMDB_CONFIRM", "no", BROKEN),
        ("GEMMDB_CONFIRM", "0", OK),
        ("GEMMDB_LOG", "info", OK),
        ("GEMMDB_LOG", "WARN", OK),
        ("GEMMDB_ON_MISS", "perhaps", BROKEN),
        ("GEMMDB_ON_MISS", "aten", OK),
    ],
)
def test_doctor_knows_what_a_variable_may_be(environment, monkeypatch, name, value, state):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv(name, value)
    found, detail = variable(name)
    assert (found, value in detail) == (state, True)
    known = {"GEMMDB_LOG": "INFO", "GEMMDB_ON_MISS": "live", "GEMMDB_CONFIRM": "0, 1"}
    assert state == OK or known[name] in detail


def test_doctor_names_a_bad_log_level_and_what_to_set(gemmdb, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("GEMMDB_LOG", "verbose")
    done = gemmdb("doctor")
    (line,) = [line for line in done.out.splitlines() if "verbose" in line]
    assert (done.code, line.split()[:2]) == (1, ["broken", "GEMMDB_LOG"])
    assert "DEBUG, INFO" in line


@pytest.mark.parametrize("gpu", [False, True])
def test_doctor_suggests_cutlass_where_there_is_a_gpu(environment, monkeypatch, tmp_path, gpu):
    found = detect.cpu() if gpu else None  # Only whether there is one counts here.
    monkeypatch.setattr(detect, "cuda", lambda: found)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDACXX", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    lines = {check.name: check for check in checks(compile_probe=False)}
    for name in ("nvcc", "nvidia-cutlass"):
        if lines[name].state == MISSING:
            assert bool(lines[name].remedy) is gpu, name
    assert lines["nvcc"].state == MISSING


URL = "https://example.com:8443/tables/h200.db"


def test_a_url_among_the_tables_stays_whole_and_is_refused_by_name(gemmdb, make_table, flags, monkeypatch):
    good = make_table("good.db")
    monkeypatch.setenv("GEMMDB_TABLES", os.pathsep.join([URL, str(good)]))
    done = gemmdb("lookup", *flags)
    assert (done.code, done.err.count("\n")) == (0, 1), done
    assert f"{URL} is a URL" in done.err
    assert "download it" in done.err


def test_a_url_as_an_argument_is_refused_by_name(gemmdb, environment):
    refused(gemmdb("verify", URL), f"{URL} is a URL", "download it")


def test_a_url_among_the_tables_to_push_is_told_its_place(gemmdb, make_table):
    done = gemmdb("tables", "push", str(make_table("mine.db")), "https://example.com:8443/tables")
    refused(done, "https://example.com:8443/tables is a URL", "the one to push to comes first")


@pytest.mark.parametrize(
    "arguments", [["coverage", "{}"], ["lookup", "{}:1"], ["build", "--arch", "cpu", "--shapes", "{}"]]
)
def test_a_table_in_place_of_a_workload_is_told_to_be_one(gemmdb, make_table, arguments):
    if arguments[0] == "build":
        pytest.importorskip("torch")
    path = make_table("mine.db")
    done = gemmdb(*(word.format(path) for word in arguments))
    refused(done, f"{path} is a table, not a workload", f"gemmdb show {path}")


def test_a_report_of_a_program_is_told_how_it_is_run(gemmdb, environment):
    pytest.importorskip("plotly")
    Path("model.py").write_text("import torch\n")
    refused(gemmdb("report", "model.py"), "model.py is a program", "gemmdb report -- python model.py")


def test_a_problem_of_an_old_size_is_still_a_problem(environment):
    """Only the command refuses a size of 0: a program may have such products, and a workload may hold them."""
    assert Problem.gemm("mm", m=0, n=64, k=64).empty
