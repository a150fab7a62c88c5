"""A machine that other programs use, and a user at its terminal."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gemmdb.cli import busy
from gemmdb.devices import detect
from gemmdb.devices.load import Load
from gemmdb.generators.request import BuildReport
from gemmdb.key.problem import Problem
from gemmdb.table.writer import Store

BUSY, QUIET = Load(2.0, programs=(("cc1plus", 2.0),)), Load(0.0)
TEXT = "other programs keep 2.0 cores busy (cc1plus 2.0)"
"""What is said of BUSY."""
GEMM = Problem.gemm("mm", m=4, n=64, k=64, dtype="fp32", constant_weight=True)
BUILD = ("build", "--arch", "cpu", "--shapes", "one.jsonl", "--out", "mine.db")
"""A build of GEMM."""


class Terminal(io.StringIO):
    """The lines that a user types."""

    def isatty(self) -> bool:
        return True


def types(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A user at a terminal types these lines."""
    monkeypatch.setattr(sys, "stdin", Terminal(text))
    monkeypatch.setattr(busy, "can_ask", lambda: True)


def parts_of_a_build() -> tuple[BuildReport, BuildReport, BuildReport]:
    """The reports of a build that a busy machine stops twice. One of its first two problems was disturbed, so the
    second part measures it again."""
    Store.open(Path("mine.db")).close()
    one = BuildReport(out=Path("mine.db"), device=detect.cpu(), problems=9, jobs=9, before=1, measured=2, elsewhere=0,
                      rows=4, statuses={"ok": 4}, seconds=60.0, stopped=TEXT, disturbed=1)  # fmt: skip
    two = replace(one, before=2, measured=3, rows=6, statuses={"ok": 5, "slow": 1}, seconds=90.0, disturbed=0)
    return one, two, replace(two, before=5, measured=4, rows=8, statuses={"ok": 8}, seconds=30.0, stopped="")
