"""A kit of small tables, and one of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.tables import Kit

from gemmdb import Status


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
