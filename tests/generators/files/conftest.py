"""A kit of small tables."""

from __future__ import annotations

import pytest
from kit.tables import Kit


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()
