"""benchmarks.torch search: the stages of a search, and its lines. There is no GPU here: times are invented."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kit.devices import H200
from kit.gpu import algorithm

from benchmarks.torch import search, stages
from gemmdb.errors import InputError
from gemmdb.inductor.benchmark import algorithm_jobs, algorithm_trial
from gemmdb.inductor.benchmark.algorithm_trial import Race
from gemmdb.inductor.benchmark.trial import Untimed
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain

FIRST, SECOND = algorithm(), algorithm(tile=18)
PROBLEM = Problem.gemm("mm", m=64, n=512, k=1024)
HERE = Toolchain(torch="2.11.0+cu130", cuda="13.0")


@pytest.fixture(autouse=True)
def invented(monkeypatch: pytest.MonkeyPatch) -> Race:
    """A search with the stages `results` and `estimates`, twice each."""
    raced = Race([100.0] * 9, {FIRST: [80.0] * 9, SECOND: [90.0] * 9}, [algorithm(tile=19)])

    def race(operands, proposed, allowed, extent=None):
        for more in (FIRST, SECOND):
            algorithm_trial._result(None, None)
            algorithm_trial._estimates({ATEN: None, more: None}, None)
        assert [tuple(one.shape) for one in operands.fakes] == [(64, 1024), (1024, 512)]
        assert all(map(allowed, proposed))
        return raced

    monkeypatch.setattr(algorithm_trial, "race", race)
    monkeypatch.setattr(algorithm_trial, "_estimates", lambda calls, prepare: dict.fromkeys(calls, 5.0))
    monkeypatch.setattr(algorithm_trial, "_result", lambda call, output: None)
    for module in (stages, algorithm_jobs):
        monkeypatch.setattr(module, "installed", lambda kind: HERE)
    return raced


def test_a_search_has_its_seconds_by_stage_and_what_it_picked() -> None:
    before = {stage: getattr(owner, name) for stage, (owner, name) in stages.STAGES.items()}
    found = stages.searched(PROBLEM, H200)
    assert list(found["stages_s"]) == ["menu", "results", "estimates", "rest"]
    assert all(seconds >= 0 for seconds in found["stages_s"].values())
    assert sum(found["stages_s"].values()) == pytest.approx(found["seconds"])
    assert found["estimated"] == [1, 1]
    assert found["estimates"][1] == {ATEN.text: 5.0, SECOND.text: 5.0}
    assert (found["picked"], found["speedup"]) == (FIRST.text, 1.25)
    assert {stage: getattr(owner, name) for stage, (owner, name) in stages.STAGES.items()} == before


def test_a_line_tells_the_stages_the_times_and_the_pick() -> None:
    found = {"turn": "first", **stages.searched(PROBLEM, H200), "seconds": 0.12, "stages_s": {"menu": 0.02}}
    assert search.line(found) == (
        "first  64 x 512 x 1024: 120 ms (menu 20.0); estimated 1 + 1; 9 rounds; ATen 100.00 us, best 80.00 us; "
        f"1 wrong; picked {FIRST.text}, 1.250x"
    )


def test_a_search_without_a_result_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def untimed(*args):
        raise Untimed("cuBLASLt has no algorithm for it")

    monkeypatch.setattr(algorithm_trial, "race", untimed)
    found = {"turn": "first", **stages.searched(PROBLEM, H200)}
    assert search.line(found) == "first  64 x 512 x 1024: cuBLASLt has no algorithm for it"
    monkeypatch.setattr(algorithm_trial, "race", lambda *args: Race((), {}, [FIRST]))
    found = {"turn": "first", **stages.searched(PROBLEM, H200)}
    assert search.line(found).endswith("1 wrong; picked nothing: the results of all algorithms differ from ATen's")


def test_every_gemm_is_searched_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stages, "device", lambda: H200)
    out = tmp_path / "search.json"
    search.main(Namespace(sizes="64x512x1024", short=True, seconds=60.0, out=out))
    assert [row["turn"] for row in json.loads(out.read_text())["searches"]] == ["first", "second"]
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_sizes_are_read() -> None:
    assert search.parsed(" 64x512x1024,1x2x3")[0] == PROBLEM
    assert len(search.parsed(search.SIZES)) == 14
    for wrong in ("64x512", "64x512xk", ""):
        with pytest.raises(InputError, match="MxNxK"):
            search.parsed(wrong)
