"""The site, built once."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from kit.site import ROOT, build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, which the workers of pytest-xdist share. A warning of mkdocs ends the build: a page that
    is missing in the navigation, a link to nowhere."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    folder, whole = shared / "site", shared / "site-is-whole"
    with (shared / "site-lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            done = build(ROOT / "mkdocs.yml", folder)
            assert done.returncode == 0, done.stderr
            whole.touch()
    return folder
