"""A Chromium of the system (`apt-get install chromium` on Debian), driven by playwright (in `gemmdb[dev]`)."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

_CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MARKS = [
    pytest.mark.skipif(_CHROMIUM is None, reason="there is no Chromium: apt-get install chromium"),
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None, reason="playwright is not installed: pip install 'gemmdb[dev]'"
    ),
]
"""Of tests in a browser. These are slow, too, which their files say by name: tests/conftest.py reads that."""
WIDTHS = (390, 820, 1400)
_QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=_CHROMIUM, args=list(_QUIET))
        yield started
        started.close()
