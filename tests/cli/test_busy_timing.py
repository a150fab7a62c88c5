"""A machine that other programs use: `gemmdb verify --remeasure` and `gemmdb compare` ask, too, before they time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from kit.busy import BUSY, QUIET, TEXT, types

from gemmdb.cli import busy
from gemmdb.devices import detect
from gemmdb.generators.measure import remeasure as remeasuring
from gemmdb.generators.measure.remeasured import Remeasured
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem

pytest.importorskip("torch")


def test_verify_asks_too_and_goes_on_with_what_is_left(gemmdb, machine, make_table, monkeypatch) -> None:
    table = str(make_table("own.db", device=detect.cpu()))
    stopped = Remeasured(detect.cpu(), (), stopped=TEXT)
    asked, parts = [], iter((stopped, replace(stopped, stopped="")))
    monkeypatch.setattr(
        remeasuring, "remeasure",
        lambda *_, wait_s, before, **__: asked.append((wait_s, before)) or next(parts),
    )  # fmt: skip
    types(monkeypatch, "m\n")
    done = gemmdb("verify", table, "--remeasure", "1")
    assert (done.code, done.err.count("(w), stop (s)")) == (0, 1)
    assert asked == [(busy.ASK_S, None), (None, stopped)]


@pytest.mark.parametrize("flags", [(), ("--wait", "0.1s")])
def test_verify_stops_where_nobody_can_be_asked(gemmdb, machine, make_table, monkeypatch, flags) -> None:
    monkeypatch.setattr(busy, "WAIT", "0.1s")
    table = str(make_table("own.db", device=detect.cpu()))
    done = gemmdb("verify", table, "--remeasure", "1", *flags)
    assert (done.code, done.out) == (1, f"{table}: no faults found\n")
    said = f"gemmdb: nothing was measured: {TEXT}; --wait 10m waits longer, --wait 0s measures anyway"
    assert done.err.splitlines()[-1] == said
    found = json.loads(gemmdb("verify", table, "--remeasure", "1", "--json", *flags).out)["remeasured"]
    assert (found["problems"], found["stopped"]) == (0, TEXT)


MODEL = """
import torch
model = lambda x, w: torch.nn.functional.linear(x, w.to(x.dtype))
inputs = (torch.ones(8, 64).bfloat16(), torch.ones(32, 64, dtype=torch.int8))
"""


@pytest.fixture
def served(gemmdb, machine, make_table, monkeypatch) -> None:
    """A model, and a table in force that has another kernel than ATen's for it."""
    Path("model.py").write_text(MODEL)
    (text,) = json.loads(gemmdb("compare", "model.py", "--calls", "1", "--wait", "0s", "--json").out)["configs"]
    make_table("mine.db", device=detect.cpu(), of=Problem.parse(text), fast=Config.of("aten", "int8pack_mm"))
    monkeypatch.setenv("GEMMDB_TABLES", "mine.db")


@pytest.mark.parametrize("flags", [(), ("--wait", "0.1s")])
def test_compare_stops_where_nobody_can_be_asked(gemmdb, served, monkeypatch, flags) -> None:
    monkeypatch.setattr(busy, "WAIT", "0.1s")
    done = gemmdb("compare", "model.py", "--calls", "1", *flags)
    assert done.code == 1
    assert done.out.startswith(
        "gain     cannot tell, nothing was timed\nkernels  1 of 1 distinct GEMM not run as in default mode\n"
    )
    assert done.err.splitlines()[-2:] == [
        "gemmdb: wait until the others end: gemmdb compare model.py --calls 1 --wait 1h",
        f"gemmdb: stopped: {TEXT}; --wait 10m waits longer, --wait 0s measures anyway",
    ]
    found = json.loads(gemmdb("compare", "model.py", "--calls", "1", "--json", *flags).out)
    assert (found["verdict"], found["stopped"], found["default_us"]) == ("cannot tell", TEXT, None)


@pytest.mark.parametrize(("typed", "code", "stopped"), [("s\n", 1, TEXT), ("m\n", 0, ""), ("w\n", 0, "")])
def test_compare_asks_too(gemmdb, served, machine, monkeypatch, typed, code, stopped) -> None:
    types(monkeypatch, typed)
    machine[:] = [BUSY, BUSY, QUIET]
    done = gemmdb("compare", "model.py", "--calls", "1", "--json")
    assert (done.code, done.err.count("(w), stop (s)")) == (code, 1)
    assert json.loads(done.out)["stopped"] == stopped
    assert ("waiting; Ctrl-C stops" in done.err) == (typed == "w\n")


def test_compare_asks_nobody_where_aten_runs_every_gemm(gemmdb, machine, monkeypatch) -> None:
    types(monkeypatch, "")
    Path("model.py").write_text(MODEL)
    done = gemmdb("compare", "model.py", "--calls", "1")
    assert (done.code, done.err.count("(w), stop (s)")) == (0, 0)
    assert "same kernels" in done.out
