"""What tests of the lookup share."""

import pytest
from kit.devices import H200

from gemmdb.lookup import answer
from gemmdb.settings import Policy


@pytest.fixture
def no_shipped_tables(tmp_path, monkeypatch):
    """The shipped table has rows of a real H200."""
    monkeypatch.setattr("gemmdb.table.catalog.shipped_tables", lambda: tmp_path / "none")


@pytest.fixture
def ask(lab):
    """A lookup on an H200 among the given rows."""
    return lambda problem, rows, **query: answer(lab.query(problem, H200, **query), lab.catalog(rows), Policy())
