"""The site, built once."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.site import ROOT, build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site. A warning of mkdocs ends the build: a page that is missing in the navigation, a link to
    nowhere."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr
    return folder
