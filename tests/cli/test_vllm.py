"""`gemmdb vllm`: wrong calls, a machine without vLLM, and what is printed of a result."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from gemmdb.generators.vllm.layers import USUAL
from gemmdb.generators.vllm.rows import Row
from gemmdb.generators.vllm_files import Tile
from gemmdb.table.measurement import Status, Times

EXPERTS = ("vllm", "experts", "--experts", "8", "--top-k", "2", "--hidden", "4096", "--intermediate", "7168")
LINEAR = ("vllm", "linear", "--n", "7168", "--k", "2048")
NOW, NEW = Tile(16, 64, 128, 1, 4, 4), Tile(16, 128, 64, 1, 4, 5)
FOUND = {
    1: Row(1, NOW, Status.OK, Times(50.0, 49.0, 51.0, 30, 50.1), 0.01, current=True),
    64: Row(64, NEW, Status.OK, Times(80.0, 79.0, 81.0, 30, 100.0), 0.01),
}


@pytest.fixture
def tuned(monkeypatch):
    """Returns a function that sets the result of tuning, and the list of its requests."""
    pytest.importorskip("torch")
    from gemmdb.cli import vllm
    from gemmdb.generators.vllm import tune

    requests = []
    monkeypatch.setattr(vllm, "require", lambda *_: None)

    def give(**result):
        result = {"path": Path("out/E.json"), "found": FOUND, "left": {}, "interrupted": False, **result}

        def stand_in(layer, sizes, folder, budget_s, say):
            requests.append((layer, sizes, folder, budget_s))
            return tune.Tuned(rows=Path("out/E.rows.jsonl"), seconds=3.0, **result)

        monkeypatch.setattr(tune, "tune", stand_in)
        return requests

    return give


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
@pytest.mark.parametrize("command", [EXPERTS, LINEAR], ids=["experts", "linear"])
def test_without_vllm_one_line_says_what_to_do(gemmdb, command):
    done = gemmdb(*command)
    assert done.code == 2
    assert done.err.startswith("gemmdb: this command needs vllm, which is not installed: pip install vllm, or run it")
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--tokens", "1,,2"), "--tokens '1,,2': comma-separated numbers from 1 to 1,048,576"),
        (("--tokens", "0"), "--tokens '0'"),
        (("--tokens", "9" * 40), "--tokens"),
        (("--budget", "soon"), "--budget 'soon': a time such as 90s"),
        (("--out", "file"), "--out file: not a folder"),
        (("--top-k", "9"), "--top-k 9: there are 8 experts"),
    ],
)
def test_wrong_calls_are_named(gemmdb, more, said):
    Path("file").write_text("")
    done = gemmdb(*EXPERTS, *more)
    assert done.code == 2
    assert said in done.err


def test_help_without_a_command(gemmdb):
    done = gemmdb("vllm")
    assert done.code == 0
    assert "experts" in done.out
    assert "linear" in done.out


def test_the_configs_are_a_table_and_the_last_line_can_be_pasted(gemmdb, tuned):
    tuned()
    done = gemmdb(*EXPERTS, "-o", "my configs")
    assert done.code == 0
    assert "16x128x64, group 1, 4 warps, 5 stages  100.00 us  80.00 us  1.25x" in done.out
    assert "as now" in done.out
    assert f"VLLM_TUNED_CONFIG_FOLDER='{Path('my configs').absolute()}' vllm serve MODEL" in done.out


def test_json_has_the_same(gemmdb, tuned):
    requests = tuned(left={96: "the budget ended"})
    done = gemmdb(*LINEAR, "--tokens", "64, 1,96", "--budget", "90s", "--json")
    assert done.code == 0
    found = json.loads(done.out)
    assert [one["m"] for one in found["sizes"] if one["changed"]] == [64]
    assert found["sizes"][1]["config"] == NEW.values
    assert found["sizes"][1]["present_us"] == 100.0
    assert found["left"] == [{"m": 96, "reason": "the budget ended"}]
    assert [one[1:3] for one in requests] == [((1, 64, 96), Path())]
    assert 60 < requests[0][3] <= 90  # Less what importing torch took.


def test_the_usual_sizes_are_those_of_vllms_files(gemmdb, tuned):
    requests = tuned()
    gemmdb(*EXPERTS)
    assert requests[0][1] == USUAL


@pytest.mark.parametrize(
    ("result", "code", "said"),
    [
        ({"left": {96: "the budget ended", 128: "the budget ended"}}, 0, "the budget ended: M=96,128 not"),
        ({"left": {4096: "not enough GPU memory"}}, 0, "not enough GPU memory: M=4096 not measured"),
        (
            {"interrupted": True, "left": {96: "interrupted"}},
            130,
            "interrupted: M=96 not measured; run the same command",
        ),
        ({"path": None, "found": {}, "left": {1: "not enough GPU memory"}}, 1, "not enough GPU memory"),
    ],
)
def test_what_is_left_is_said(gemmdb, tuned, result, code, said):
    tuned(**result)
    done = gemmdb(*EXPERTS)
    assert (done.code, said in done.err) == (code, True)
