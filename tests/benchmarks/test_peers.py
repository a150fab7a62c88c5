"""The peer board: its sample, how it survives a rival that dies, and its figures."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import measure, report, rivals, sample
from benchmarks.peers.ops import CLASSES, OPS, class_of
from gemmdb.errors import InputError
from gemmdb.key.problem import Problem

PROBLEMS = [OPS["int4"].problem(m, 1024, 512) for m in (1, 8, 40)]


def test_a_seed_draws_each_op_and_class_equally_often() -> None:
    drawn = sample.draw(48, 1, OPS)
    assert drawn == sample.draw(48, 1, OPS)
    assert drawn != sample.draw(48, 2, OPS)
    assert drawn[:54] == sample.draw(6, 1, OPS), "a prefix is a smaller sample"
    assert Counter(one.op for one in drawn) == dict.fromkeys(OPS, 48)
    for name in OPS:
        own = [one.problem for one in drawn if one.op == name]
        assert len(set(own)) == 48
        assert set(Counter(class_of(problem.m) for problem in own).values()) == {8}
        assert {problem.op for problem in own} == {OPS[name].op}
    assert (min(one.problem.m for one in drawn), CLASSES[-1][1]) == (1, 4096)
    blocks = [one.problem for one in drawn if one.op == "fp8-block"]
    assert {(7168, 16384), (2112, 7168)} <= {(problem.n, problem.k) for problem in blocks}
    assert all(problem.k % 512 == 0 for problem in blocks), "cuBLAS reads scales in fours"


def test_more_problems_than_there_are_is_an_error() -> None:
    """Experts have eight sizes, so with one row there are no more than eight problems."""
    assert len(sample.draw(48, 3, ["grouped"])) == 48
    with pytest.raises(InputError, match="grouped: only 48 problems"):
        sample.draw(49, 3, ["grouped"])


def test_a_sample_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "sample.jsonl"
    sample.main(argparse.Namespace(out=path, count=6, seed=3, ops="grouped,bf16"))
    assert sample.read(path) == sample.draw(6, 3, ["grouped", "bf16"])
    with pytest.raises(FileNotFoundError):
        sample.read(tmp_path / "none")


def test_every_rival_has_ops_and_an_adapter_file() -> None:
    folder = Path(rivals.__file__).parent
    for one in rivals.RIVALS:
        for path in (one.adapter, *([one.exact] if one.exact else [])):
            module, _, function = path.partition(":")
            assert f"def {function}(case: Case) -> Made:" in (folder / f"{module}.py").read_text(), one.name
        assert one.ops
        assert set(one.ops) <= set(OPS)
    assert all(rivals.wanted(name, False) for name in OPS)
    assert [one.name for one in rivals.wanted("bf16", True, "quack")] == ["quack"]
    assert rivals.wanted("bf16", False, "quack") == [], "it is slow"
    quack = [one for name in OPS for one in rivals.wanted(name, True) if one.package == "quack"]
    assert [(one.name, one.ops) for one in quack] == [
        ("quack-grouped", ("grouped",)), ("quack", ("bf16",)), ("quack-split-k", ("bf16",))
    ]  # fmt: skip
    assert all(measure.compiling(name, one.name) == [] for one in quack for name in one.ops), "it tunes undisturbed"


def test_a_rival_that_is_not_installed_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    one = rivals.Rival("other", ("int4",), "x:y", "no_such_package_at_all")
    assert one.missing == "no_such_package_at_all is not installed"
    assert rivals.Rival("torch's", ("int4",), "x:y").missing == ""
    rivals.main(argparse.Namespace())
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*(one.name for one in rivals.RIVALS), *rivals.LEFT_OUT))


def line(problem: Problem, op: str = "int4", **us: float) -> dict[str, Any]:
    """A line of a GEMM with these times."""
    ways = {name: {"error": 0.001, "seconds": 1.0} for name in us}
    ways["gemmdb"] |= {"rung": "sku", "config": "triton:int4_skinny"}
    begun = {"op": op, "problem": problem.text, "m": problem.m, "class": class_of(problem.m)}
    return {**begun, "tolerance": 0.01, "ways": ways, "taken": {name: [one] * 9 for name, one in us.items()}}


def test_the_figures_of_known_times() -> None:
    lines = [
        line(PROBLEMS[0], gemmdb=10.0, default=100.0, marlin=20.0, gemlite=15.0),
        line(PROBLEMS[1], gemmdb=10.0, default=100.0, marlin=8.0, gemlite=40.0),
        line(PROBLEMS[2], gemmdb=10.0, default=100.0, marlin=10.2, gemlite=10.3),
    ]
    found = report.document(lines)
    best = found["ops"]["int4"]["best rival"]["by M"]
    assert best["all"]["mean"] == pytest.approx((1.5 * 0.8 * 1.02) ** (1 / 3))
    assert best["all"]["lost"] == 1
    assert best["all"]["worst"] == pytest.approx(0.8)
    assert best["1"]["mean"] == pytest.approx(1.5)
    marlin = found["ops"]["int4"]["marlin"]["by M"]["all"]
    assert marlin["mean"] == pytest.approx((2 * 0.8 * 1.02) ** (1 / 3))
    assert marlin["interval"][0] <= marlin["mean"] <= marlin["interval"][1]
    assert found["ops"]["int4"]["default"]["by M"]["all"]["mean"] == pytest.approx(10)
    [loss] = found["losses"]
    assert (loss["rival"], loss["us"]) == ("marlin", {"gemmdb": 10.0, "marlin": 8.0})
    assert loss["ratio"][1] == pytest.approx(1.25)
    printed = "\n".join(report.text(lines))
    assert printed.index("GEMMs lost") < printed.index("| rival |")
    assert "1.25 (1.25 to 1.25)" in printed


def test_wrong_results_and_missing_kernels_count_for_nobody() -> None:
    wrong = line(PROBLEMS[0], gemmdb=10.0, marlin=1.0)
    wrong["ways"]["marlin"]["error"] = 0.5
    without = line(PROBLEMS[1], gemmdb=10.0, marlin=20.0)
    without["ways"]["humming"] = {"failure": "n is no multiple of 64"}
    ours = line(PROBLEMS[2], gemmdb=1.0, marlin=20.0)
    ours["ways"]["gemmdb"]["error"] = float("nan")
    found = report.document([wrong, without, ours])
    marlin = found["ops"]["int4"]["marlin"]
    assert (marlin["by M"]["all"]["count"], marlin["wrong"], marlin["without"]) == (1, 1, 1)
    assert marlin["by M"]["all"]["mean"] == pytest.approx(2)
    assert found["losses"] == []
    assert found["not run"]["int4, humming, 1x"] == "n is no multiple of 64"


def test_rivals_of_an_earlier_run_are_scaled_by_cublas() -> None:
    one, other = (Problem.gemm("mixed_mm", m=m, n=64, k=256, weight_dtype="int4") for m in (8, 16))
    now = [line(one, default=30.0, gemmdb=10.0, cublas=22.0), line(other, default=30.0, gemmdb=10.0, cublas=22.0)]
    before = [line(one, default=30.0, gemmdb=40.0, cublas=20.0, humming=15.0)]
    found = report.with_rivals(now, before)
    assert found[0]["taken"]["humming"] == pytest.approx([16.5] * len(found[0]["taken"]["gemmdb"]))
    assert found[0]["taken"]["gemmdb"] == now[0]["taken"]["gemmdb"]
    assert report.best_of(found[0]) == "humming"
    assert found[1] == now[1]


def test_a_rival_in_its_exact_mode_is_named() -> None:
    own = line(PROBLEMS[0], gemmdb=10.0, gemlite=20.0)
    assert "exact mode" not in "\n".join(report.text([own]))
    own["ways"]["gemlite"]["inexact"] = 0.0578
    assert "gemlite: 1 in its exact mode: the errors of its usual mode, up to 0.058," in "\n".join(report.text([own]))


def test_what_compiles_in_advance_is_installed_and_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "_found", lambda package: package != "humming")
    assert [one.name for one in measure.compiling("int4", None)] == ["gemlite"]
    assert measure.compiling("int4", "tinygemm") == []
    assert measure.compiling("fp8-row", None) == []


class Fake:
    """A worker's module that times nothing. `deadly` ends the process when it begins."""

    def __init__(self, deadly: str) -> None:
        self.deadly, self.seen = deadly, list[tuple[int, list[str]]]()

    def measure(
        self, problem: Problem, chosen: list[rivals.Rival], _samples: int, _folder: Path, begin: Callable[[str], None]
    ) -> dict[str, Any]:
        names = [one.name for one in chosen]
        self.seen.append((problem.m, names))
        for name in ("gemmdb", *names):
            begin(name)
            if name == self.deadly:
                raise SystemExit(11)
        begin("")
        times = dict.fromkeys(("default", *names), 20.0)
        return {key: value for key, value in line(problem, gemmdb=10.0, **times).items() if key in KEYS}


KEYS = ("tolerance", "ways", "taken")


def test_a_rival_that_kills_the_process_is_left_out_and_the_next_process_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import benchmarks.dense
    import benchmarks.peers

    path, out = tmp_path / "sample.jsonl", tmp_path / "lines.jsonl"
    path.write_text("".join(sample.Drawn("int4", problem).line + "\n" for problem in PROBLEMS))
    fake = Fake("gemlite")
    monkeypatch.setattr(benchmarks.peers, "worker", fake, raising=False)
    monkeypatch.setattr(benchmarks.dense, "worker", argparse.Namespace(prepare=lambda: None), raising=False)
    monkeypatch.setitem(sys.modules, "benchmarks.dense.worker", benchmarks.dense.worker)
    options = argparse.Namespace(
        sample=path, out=out, ops="int4", rivals=None, slow=False, samples=5, seconds=30.0, folder=tmp_path
    )  # fmt: skip
    parent = measure.Worker(options, (0, 1), "0", tmp_path, tmp_path / "cache")
    options.folder = parent.folder
    for _ in range(measure.DEATHS):
        with pytest.raises(SystemExit):
            measure.work(options, 0, 1)
        assert parent.blame("the process ended with code -11")
    measure.work(options, 0, 1)
    assert [m for m, _ in fake.seen] == [1, 1, 8, 8, 40], "each GEMM is tried again without it"
    assert "gemlite" not in fake.seen[-1][1], "after two deaths it is left out of the op"
    written = [json.loads(one) for one in out.read_text().splitlines()]
    assert [one.get("died") for one in written] == ["gemlite", None, "gemlite", None, None]
    found = report.document(written)
    assert found["ops"]["int4"]["vllm-marlin"]["by M"]["all"]["count"] == 3
    assert found["not run"]["int4, gemlite, 2x"] == "the process ended with code -11"
    assert found["not run"]["int4, gemlite, 3x"] == "killed a process"
    assert measure.share(options, 0, 1) == []


def test_a_gemm_that_kills_the_process_by_itself_has_a_line(tmp_path: Path) -> None:
    options = argparse.Namespace(out=tmp_path / "lines.jsonl", seconds=1.0)
    parent = measure.Worker(options, (0, 1), "0", tmp_path, tmp_path / "cache")
    assert not parent.blame("died"), "it had begun no GEMM"
    begun = {"op": "int4", "problem": PROBLEMS[0].text, "m": 1, "class": "1"}
    for _ in range(2):
        (parent.folder / "current.json").write_text(json.dumps({**begun, "rival": "gemmdb"}))
        assert parent.blame("died")
    assert [json.loads(one) for one in options.out.read_text().splitlines()] == [{**begun, "failure": "died"}]
    assert report.document([{**begun, "failure": "died"}])["failed"] == {PROBLEMS[0].text: "died"}
