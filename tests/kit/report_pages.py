"""What the tests of a report's page in a browser share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

WIDTHS = (390, 768, 1200)
PHONE = {"has_touch": True, "is_mobile": True}


def shown(tab: Any) -> int:
    """How many problems fit the filters, as the page says."""
    return int(tab.text_content("#count").split(" of ")[0].replace(",", ""))


def until(tab: Any, holds: Callable[[], bool]) -> None:
    """Wait until something holds: the page's policy forbids playwright's own way of waiting."""
    for _ in range(100):
        if holds():
            return
        tab.wait_for_timeout(50)
    raise AssertionError("it does not become so")
