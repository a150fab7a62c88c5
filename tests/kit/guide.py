"""The code blocks of a guide: each fence names its file, or what it is for, after the language."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs" / "contributing"
_BLOCK = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(guide: str) -> dict[str, str]:
    """The code of docs/contributing/`guide`, by the name after the language of its fence."""
    return dict(_BLOCK.findall((FOLDER / guide).read_text()))


def run(guide: str, name: str) -> dict[str, Any]:
    """Run a block of Python; the names that it defines."""
    names: dict[str, Any] = {"__name__": f"guide_{name}"}
    exec(compile(blocks(guide)[name], f"{guide}:{name}", "exec"), names)
    return names
