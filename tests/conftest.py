"""One cache of what Inductor compiles, for all tests of a run and the processes that share them: a precompiled header
costs ten seconds, and many tests end in the same C++."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Before torch is imported, parts of which read it once. Workers of pytest-xdist inherit it."""
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        folder = os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="inductor-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
