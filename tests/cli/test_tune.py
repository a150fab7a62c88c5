"""`gemmdb tune` of real programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

PROGRAM = """
import torch
import torch._inductor.config

torch._inductor.config.freezing = True
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64)).eval()
run = torch.compile(model)
with torch.no_grad():
    for _ in range(20):
        run(torch.ones(64, 256))
print("served")
"""


@pytest.fixture
def program(environment) -> list[str]:
    Path("serve.py").write_text(PROGRAM)
    return [sys.executable, "serve.py"]


@pytest.mark.slow
def test_the_whole_way(gemmdb, program):
    dry = gemmdb("tune", "--dry-run", "--json", "--", *program)
    assert dry.code == 0, dry.err
    plan = json.loads(dry.out)["plan"]
    assert [one["calls"] for one in plan["problems"]] == [20, 20]
    assert [one["problem"].split()[2] for one in plan["problems"]] == ["n=512", "n=64"]
    assert plan["saving_us"] is None
    assert plan["seconds"] > 0

    # Hardly any time: the build ends what it has begun, and the same command goes on from there.
    first = gemmdb("tune", "--budget", "0.1s", "--repeats", "0", "--json", "--", *program)
    assert first.code == 0, first.err
    assert "recorded before" in first.err
    assert json.loads(first.out)["built"]["left"] > 0

    whole = gemmdb("tune", "--repeats", "1", "--json", "--", *program)
    assert whole.code in (0, 1), whole.err
    found = json.loads(whole.out)
    assert (found["before"]["answered"], found["after"]["answered"]) == (0, 2)
    (graph,) = found["gained"]["graphs"]
    assert graph["products"] == ["addmm 1x64x512x256", "addmm 1x64x64x512"]
    assert graph["calls"] == 20
    assert found["gained"]["without_us"] > 0

    again = gemmdb("tune", "--repeats", "1", "--", *program)
    assert again.code == whole.code
    assert "timed before" in again.err
    assert "nothing to build" in again.err
    low, high = found["gained"]["interval"]
    assert f"{found['gained']['gain']:.3f}x, between {low:.3f}x and {high:.3f}x" in again.out
    assert "2 of 2 products answered" in again.out


def test_a_program_without_products(gemmdb):
    done = gemmdb("tune", "--", sys.executable, "-c", "print('hello')")
    assert (done.code, done.out) == (2, "hello\n")
    assert done.err.splitlines()[-1] == "gemmdb: nothing was recorded: 1 Python process(es) ran, none imported torch"


def test_wrong_calls(gemmdb):
    for arguments, words in (
        (["--budget", "soon", "--", "true"], "90s, 10m or 1h30m"),
        (["--", "no-such-program"], "no-such-program"),
        (["--repeats", "-1", "--", "true"], "-1"),
        ([], "COMMAND"),
    ):
        done = gemmdb("tune", *arguments)
        assert (done.code, done.out) == (2, "")
        assert words in done.err
