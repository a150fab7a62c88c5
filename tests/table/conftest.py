"""A kit of small tables, and one of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.tables import Kit

from gemmdb import Status
from gemmdb.table import catalog


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()


@pytest.fixture
def path(kit: Kit, tmp_path: Path) -> Path:
    rows = [
        kit.row(problem=problem, config=config, us=us, protocol=protocol)
        for problem in kit.problems
        for config, us in zip(kit.configs, (10.0, 5.0, 7.0, 20.0), strict=True)
        for protocol in (kit.cold, kit.hot)
    ]
    rows.append(kit.row(kit.configs[3], status=Status.ERROR, detail="it did not compile"))
    return kit.write(tmp_path / "a?b#c%20 é.db", rows)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for the user's, the pulled and the shipped tables."""
    for name in ("GEMMDB_TABLES", "GEMMDB_USER_TABLE", "GEMMDB_TRUST", "GEMMDB_FROZEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "data" / "gemmdb").mkdir(parents=True)
    (tmp_path / "shipped").mkdir()
    monkeypatch.setattr(catalog, "shipped_tables", lambda: tmp_path / "shipped")
    monkeypatch.setattr(catalog, "_warned", set())
    return tmp_path
