"""Fixtures of the algorithm search: nothing is known before, and times are invented."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from kit.algorithms import FIRST, SECOND

from gemmdb.inductor.benchmark import algorithm_rules, algorithm_trial, algorithms
from gemmdb.inductor.benchmark.algorithm_trial import Race
from gemmdb.inductor.benchmark.limits import BUDGET, Extent
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.toolchain import Toolchain


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An H200 without shipped tables, whose cuBLASLt can be lowered, and a process that has timed nothing yet."""
    monkeypatch.setattr("gemmdb.table.catalog.shipped_tables", lambda: tmp_path / "none")
    here = Toolchain(torch="2.11.0+cu130", cuda="13.0")
    for module in ("benchmark.algorithm_jobs", "benchmark.payoff", "entry.table_session"):
        monkeypatch.setattr(f"gemmdb.inductor.{module}.installed", lambda kind: here)
    monkeypatch.setattr(algorithms, "_KNOWN", {})
    monkeypatch.setattr(algorithm_rules, "device_rejection", lambda device: None)
    JOURNAL.clear()
    BUDGET.clear()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Invented times in microseconds, by config. Has the operands of all trials."""

    def race(operands: Any, proposed: Any, allowed: Callable[[Config], bool], extent: Extent) -> Race:
        found.seen.append(operands)
        timed = {config: [us] * 9 for config, us in found.us.items() if config != ATEN and allowed(config)}
        return Race([found.us[ATEN]] * 9, timed, found.wrong)

    found: Any = race
    found.us, found.wrong, found.seen = {ATEN: 100.0, FIRST: 80.0, SECOND: 90.0}, (), []
    monkeypatch.setattr(algorithm_trial, "race", race)
    return found
