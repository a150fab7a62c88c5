"""Building the site."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(config: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a mkdocs.yml into a folder. A warning of mkdocs ends the build."""
    places = ["--config-file", str(config), "--site-dir", str(folder)]
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", *places]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
