"""A table, and a folder with a pushed one."""

from pathlib import Path

import pytest
from kit.tables import Kit

KIT = Kit()


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return KIT.write(tmp_path / "mine.db", [KIT.row(), KIT.row(KIT.configs[1], us=5.0)])


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """A folder with a pushed table, `mine.db`."""
    pytest.importorskip("fsspec")
    from gemmdb.exchange.share.transfer import push

    KIT.write(tmp_path / "made" / "mine.db", [KIT.row(problem=problem) for problem in KIT.problems])
    push(str(tmp_path / "served"), [tmp_path / "made" / "mine.db"])
    return tmp_path / "served"
