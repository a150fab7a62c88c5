"""What tests of the call of output code share."""

from __future__ import annotations

import pytest
from kit.cublaslt import Library, instead

from gemmdb.cublaslt import launch


@pytest.fixture(autouse=True)
def _forgets() -> None:
    """No warning was given before."""
    launch._warn.cache_clear()


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> Library:
    """A library in cuBLASLt's place that remembers what it was asked."""
    found = Library()
    instead(monkeypatch, found)
    return found
