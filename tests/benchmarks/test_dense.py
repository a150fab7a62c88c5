"""The sample of dense GEMMs, its measurement as far as a CPU can, and the figures."""

from __future__ import annotations

import argparse
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kit import lab
from kit.devices import H200
from kit.gpu import algorithm, make

from benchmarks.dense import between, measure, report, rows, sample
from gemmdb.generators import shapes
from gemmdb.generators.files import archive
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem

ATEN, TILE = "aten:default", "triton:tile block_m=16"
PROBLEMS = [Problem.gemm("mm", m=m, n=704, k=1088) for m in (30, 40, 100, 2000)]


@pytest.fixture
def few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """(N, K) of small presets instead of all, which takes seconds."""
    monkeypatch.setattr(shapes, "presets", lambda: ["dense", "vision"])


@pytest.mark.usefixtures("few_sizes")
def test_a_seed_draws_the_same_gemms_that_no_preset_and_no_table_lists() -> None:
    drawn = sample.draw(200, 7)
    assert drawn == sample.draw(200, 7)
    assert drawn[:20] == sample.draw(20, 7)
    assert drawn != sample.draw(200, 8)
    assert not sample.listed_sizes() & {(one.problem.n, one.problem.k) for one in drawn}
    assert Counter(sample.stratum(one.problem.m) for one in drawn) == dict.fromkeys(
        ("17 to 64", "65 to 256", "257 to 1,024", "1,025 to 4,096"), 50
    )
    assert Counter(one.origin for one in drawn) == {"layer": 100, "random": 100}
    heads = [one.problem for one in drawn if one.problem.n in (49152, 100352)]
    assert all(problem.m <= 64 for problem in heads)


@pytest.mark.usefixtures("few_sizes")
def test_sizes_of_shipped_tables_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = sample.listed_sizes()
    monkeypatch.setattr(sample, "shipped_tables", lambda: Path("/nonexistent"))
    assert sample.listed_sizes() < listed


@pytest.mark.usefixtures("few_sizes")
def test_a_sample_is_a_file_of_shapes(tmp_path: Path) -> None:
    path = tmp_path / "sample.jsonl"
    sample.main(argparse.Namespace(out=path, count=12, seed=3, op="addmm", dtype="fp16"))
    drawn = sample.read(path)
    assert [one.problem for one in drawn] == shapes.load(str(path), "cuda")
    assert {(one.problem.op, one.problem.a.dtype) for one in drawn} == {("addmm", "fp16")}


def line(problem: Problem, ours: float, heuristic: float = 10.0, **more: Any) -> dict[str, Any]:
    """A line of a GEMM that takes 10 us in default mode."""
    taken = {"default": [10.0] * 9, "gemmdb": [ours] * 9, "aten": [10.0] * 9, "heuristic": [heuristic] * 9}
    ways = {
        "default": {"seconds": 2.0, "error": 0.001},
        "gemmdb": {"seconds": 3.0, "error": 0.001, "rung": "near", "config": ATEN if ours == 10 else TILE},
    }
    calls = {name: {"host": [5.0, 5.0], "wall": [us, us]} for name, us in (("default", 20.0), ("gemmdb", 18.0))}
    found = {"problem": problem.text, "origin": "layer", "m": problem.m, "tolerance": 0.01}
    return {**found, "ways": ways, "taken": taken, "host": calls, **more}


def test_the_figures_of_known_times() -> None:
    lines = [line(PROBLEMS[0], 8.0, 9.0), line(PROBLEMS[1], 12.5, 10.0), line(PROBLEMS[2], 10.0, 9.0)]
    found = report.document([{"device": "H200", "toolchain": "torch"}, *lines])["gemmdb"]
    low = found["by M"]["17 to 64"]
    assert low["count"] == 2
    assert low["mean"] == pytest.approx((10 / 8 * 10 / 12.5) ** 0.5)
    assert low["interval"][0] <= low["mean"] <= low["interval"][1]
    assert low["slower"] == 1
    assert low["loses"] == 0.5
    assert low["worst loss"] == pytest.approx(1.25)
    assert low["heuristic"] == pytest.approx((10 / 9) ** 0.5)
    assert low["better of both"] == pytest.approx((10 / 8 * 1) ** 0.5)
    assert low["call"] == pytest.approx(0.9)
    assert low["compile"] == pytest.approx(1.5)
    assert found["by M"]["65 to 256"]["loses"] == 1.0
    assert found["by M"]["all"]["count"] == 3
    assert [one["problem"] for one in found["slower"]] == ["mm m=40 n=704 k=1088"]
    assert found["rungs"] == {"near triton:tile": 2, "near aten:default": 1}


def test_noise_makes_no_gemm_slower() -> None:
    """Of 25 rounds the slow ones are below the lower end of the median's interval."""
    noisy = line(PROBLEMS[0], 10.0)
    noisy["taken"] = {"default": [10.0] * 25, "gemmdb": [10.0] * 9 + [11.0] * 16}
    assert not report.slower(noisy, "gemmdb")
    noisy["taken"]["gemmdb"] = [11.0] * 25
    assert report.slower(noisy, "gemmdb")


def test_the_last_line_of_a_gemm_counts_and_failures_are_listed() -> None:
    failure = {"problem": PROBLEMS[3].text, "origin": "random", "m": 2000, "failure": "out of memory"}
    lines = [line(PROBLEMS[0], 20.0), line(PROBLEMS[0], 8.0), failure, {**failure, "problem": PROBLEMS[0].text}]
    found = report.document(lines)
    assert found["gemmdb"]["slower"] == []
    assert found["failed"] == {PROBLEMS[3].text: "out of memory"}
    assert "out of memory" in "\n".join(report.text(lines))


def test_wrong_results_are_listed() -> None:
    bad = line(PROBLEMS[0], 8.0)
    bad["ways"]["gemmdb"]["error"] = float("nan")
    assert report.document([bad])["gemmdb"]["wrong"] == [PROBLEMS[0].text]


def test_a_report_of_lines_without_a_heuristic_or_a_call() -> None:
    plain = line(PROBLEMS[0], 8.0)
    del plain["taken"]["heuristic"], plain["host"]
    text = "\n".join(report.text([plain]))
    assert "| 17 to 64 | 1 | 1.250x (1.250 to 1.250) | 1.250x | 0 |  |  |  |  | 1.500x |" in text


def test_a_report_prints_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(line(problem, 8.0)) + "\n" for problem in PROBLEMS))
    report.main(argparse.Namespace(files=[path], json=False))
    assert "| all | 4 | 1.250x (1.250 to 1.250) | 1.250x | 0 | 0%" in capsys.readouterr().out
    report.main(argparse.Namespace(files=[path], json=True))
    assert json.loads(capsys.readouterr().out)["gemmdb"]["by M"]["all"]["mean"] == pytest.approx(1.25)


def test_the_rows_of_a_build_say_what_it_gains_by_class_of_m(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where both kinds of kernels win, where one does, and where neither does; more rows than the classes have."""
    tile, padded, theirs = make("tile", block_m=64, block_n=128), Config.of("aten", "padded", multiple=8), algorithm()
    times = dict(zip(PROBLEMS, ({tile: 0.8, theirs: 0.5}, {tile: 0.5, theirs: 1.3}, {padded: 0.5, theirs: 1.2},
                                {tile: 1.1, theirs: 1.1}), strict=True))  # fmt: skip
    few, many = (Problem.gemm("mm", m=m, n=704, k=1088) for m in (16, 8192))
    measured = lab.rows_of(times | {few: {tile: 0.1}, many: {tile: 0.1}}, device=H200)
    found = rows.figures(measured)
    assert list(found) == ["17 to 64", "65 to 256", "1,025 to 4,096", "all"]
    low = found["17 to 64"]
    assert low["GEMMs"] == 2
    assert [low[name]["gain"] for name in rows.KERNELS] == pytest.approx([2.0, 2**0.5, (1.25 * 2) ** 0.5])
    assert [low[name]["kernels"] for name in rows.KERNELS] == [1.0, 0.5, 1.0]
    assert low["own kernels"]["interval"] == pytest.approx([1.25, 2.0])
    assert [found["65 to 256"][name]["gain"] for name in rows.KERNELS] == pytest.approx([2.0, 1.0, 1.0])
    assert found["all"]["GEMMs"] == 4
    with lab.Store.open(tmp_path / "table.db") as store:
        store.add(measured)
        store.add_runs([{"run": "run"}])
    files = archive.write(tmp_path / "table.db", tmp_path / "rows")
    rows.main(argparse.Namespace(files=files, json=True))
    assert json.loads(capsys.readouterr().out) == found
    rows.main(argparse.Namespace(files=files, json=False))
    line = "| 1,025 to 4,096 | 1 | 1.000x (1.000 to 1.000) | 0% | 1.000x (1.000 to 1.000) | 0% |"
    assert line in capsys.readouterr().out


def test_rows_without_atens_time_say_nothing() -> None:
    measured = [row for row in lab.rows(PROBLEMS[0], {algorithm(): 0.5}, device=H200) if row.config.backend != "aten"]
    assert rows.figures(measured) == {}


def test_two_gpus_share_a_sample_and_resume() -> None:
    drawn = [sample.Drawn(problem, "random") for problem in PROBLEMS]
    first, second = (measure.todo(drawn, [], False, place, 2) for place in (0, 1))
    assert [*first, *second] == [drawn[0], drawn[2], drawn[1], drawn[3]]
    many = [sample.Drawn(Problem.gemm("mm", m=m, n=704, k=1088), "random") for m in (20, 70, 300, 2000) * 2]
    many = [
        sample.Drawn(one.problem.resized(one.problem.m + place, 704, 1088), "random") for place, one in enumerate(many)
    ]
    for place in (0, 1):
        assert len({sample.stratum(one.problem.m) for one in measure.todo(many, [], False, place, 2)}) == 4
    lines = [line(PROBLEMS[0], 8.0), {"problem": PROBLEMS[2].text, "failure": "out of memory"}]
    assert measure.todo(drawn, lines, False, 0, 2) == []
    assert measure.todo(drawn, lines, True, 0, 2) == [drawn[0]], "no line has it after a build"


class Fake:
    """A worker's module that times nothing."""

    def __init__(self, dies_at: int) -> None:
        self.dies_at, self.seen = dies_at, list[str]()

    def prepare(self) -> None:
        """There is nothing to compile."""

    def measure(self, problem: Problem, *_: Any) -> dict[str, Any]:
        self.seen.append(problem.text)
        if problem.m == self.dies_at:
            return {"failure": "illegal memory access", "fatal": True}
        return {key: value for key, value in line(problem, 8.0).items() if key not in ("problem", "origin", "m")}


def test_a_process_that_cannot_go_on_leaves_a_line_and_the_next_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import benchmarks.dense

    path, out = tmp_path / "sample.jsonl", tmp_path / "lines.jsonl"
    path.write_text("".join(sample.Drawn(problem, "random").line + "\n" for problem in PROBLEMS))
    fake = Fake(dies_at=PROBLEMS[1].m)
    monkeypatch.setattr(benchmarks.dense, "worker", fake, raising=False)
    options = argparse.Namespace(sample=path, out=out, built=None, samples=5, seconds=30.0, folder=tmp_path)
    with pytest.raises(SystemExit):
        measure.work(options, 0, 1)
    measure.work(options, 0, 1)
    assert fake.seen == [problem.text for problem in PROBLEMS]
    found = report.document([json.loads(text) for text in out.read_text().splitlines()])
    assert found["gemmdb"]["by M"]["all"]["count"] == 3
    assert list(found["failed"]) == [PROBLEMS[1].text]


def test_a_dead_process_has_its_gemm_blamed_once(tmp_path: Path) -> None:
    out = tmp_path / "lines.jsonl"
    one = measure.Worker(argparse.Namespace(out=out, seconds=1.0), (0, 1), "0", tmp_path)
    assert isinstance(one, threading.Thread)
    assert not one.blame("died"), "it had begun no GEMM"
    begun = {"problem": PROBLEMS[0].text, "origin": "random", "m": 30}
    (one.folder / "current.json").write_text(json.dumps(begun))
    assert one.blame("died")
    assert not one.blame("died again")
    assert [json.loads(text) for text in out.read_text().splitlines()] == [{**begun, "failure": "died"}]


def test_both_ways_compile_and_their_calls_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, without graphs."""
    torch = pytest.importorskip("torch")
    from benchmarks.dense import ways
    from benchmarks.programs.check import own_state
    from gemmdb.generators.measure.correctness import reference
    from gemmdb.generators.measure.operands import operands

    problem = Problem.gemm("mm", m=24, n=80, k=48)
    monkeypatch.setenv("GEMMDB_USER_TABLE", "")
    monkeypatch.setattr(ways, "HOST_ROUNDS", 2)
    monkeypatch.setattr(ways, "HOST_CALLS", 3)
    made = operands(problem, torch.device("cpu"), 1)
    exact = reference(problem, made)
    with own_state():
        for reverse in (False, True):
            calls, facts = ways.compile_all(problem, [made], exact, ways.ways(None), reverse, tmp_path)
            assert list(calls) == ["default", "gemmdb"]
            assert all(facts[name]["error"] <= 0.02 and facts[name]["seconds"] > 0 for name in calls)
            assert facts["gemmdb"]["config"]
            assert "config" not in facts["default"]
        times = ways.host_times(calls)
    assert all(len(times[name][kind]) == 2 for name in calls for kind in ("host", "wall"))


def test_long_gemms_have_fewer_calls_in_a_graph() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    from benchmarks.dense import worker

    assert worker.unrolled(Problem.gemm("mm", m=17, n=512, k=512)) == 20
    assert worker.unrolled(Problem.gemm("mm", m=4096, n=14336, k=4096)) == 3
    assert worker.unrolled(Problem.gemm("mm", m=4096, n=28672, k=8192)) == 1


def test_a_kernel_between_two_sizes_is_safe_where_aten_takes_as_long_with_fewer_rows(lab):
    """ATen takes 20 us with 64 rows and 10 with 48; the kernel 9 or 18 with 64."""
    fewer, more, far = (Problem.gemm("mm", m=m, n=512, k=512) for m in (48, 64, 16))
    for ratio, safe in ((0.45, True), (0.9, False)):
        timed = [
            *lab.rows(more, {algorithm(): ratio}, aten_us=20.0, device=H200),
            *lab.rows(fewer, {algorithm(): 1.5}, aten_us=10.0, device=H200),
            *lab.rows(far, {algorithm(): 0.5}, aten_us=10.0, device=H200),
        ]
        (pair,) = between.pairs(timed)
        assert (pair.backend, pair.m, pair.safe) == ("cublaslt", 64, safe)
        assert pair.gain == pytest.approx(1 / 1.5, rel=0.01)
        assert list(between.text([pair]))[2:] == [
            f"| cuBLASLt's algorithms | 17 to 64 | {'yes' if safe else 'no'} | 1 | 0.667x | 100% | 100% |"
        ]
