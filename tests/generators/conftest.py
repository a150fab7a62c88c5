"""Builds from recorded rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kit.replay import ReplayBackend, record, rows_of

from gemmdb.generators.build.build import BuildRequest
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Measurement


@pytest.fixture
def problems() -> list[Problem]:
    sizes = [1, 2, 4, 8, 16, 32, 64]
    return [Problem.gemm("mm", m=m, n=64, k=64, dtype="fp32", constant_weight=True) for m in sizes]


@pytest.fixture
def rows(problems: list[Problem]) -> list[Measurement]:
    return rows_of(problems)


@pytest.fixture
def replay_backend() -> type[ReplayBackend]:
    return ReplayBackend


@pytest.fixture
def recorded() -> Callable[..., Measurement]:
    return record


@pytest.fixture
def shapes_file(tmp_path: Path, problems: list[Problem]) -> Path:
    """The problems as a workload."""
    from gemmdb.workload import entries

    path = tmp_path / "shapes.jsonl"
    entries.append(path, [entries.Entry(problem) for problem in problems])
    return path


@pytest.fixture
def request_(shapes_file: Path, tmp_path: Path) -> BuildRequest:
    """A request to build them into a file of its own."""
    return BuildRequest(arch="cpu", shapes=str(shapes_file), out=tmp_path / "out" / "table.db")
