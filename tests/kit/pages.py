"""Blocks of code in a page of docs/: a fence names its language, and the file that a reader saves it as."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code: `language` and `name` as its fence has them, `name` empty without one."""

    language: str
    name: str
    code: str


def blocks(page: str) -> Iterator[Block]:
    """The blocks of docs/`page` that name a language, in order."""
    for language, name, code in _BLOCK.findall((DOCS / page).read_text()):
        yield Block(language, name, code)
