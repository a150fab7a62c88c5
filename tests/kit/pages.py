"""Blocks of code in a page of docs/: a fence names its language, and the file that a reader saves it as."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def run(page: str, name: str) -> dict[str, Any]:
    """Run a block of Python; the names that it defines."""
    (code,) = (block.code for block in blocks(page) if block.name == name)
    names: dict[str, Any] = {"__name__": f"guide_{name}"}
    exec(compile(code, f"{page}:{name}", "exec"), names)
    return names


def program(page: str, folder: Path) -> str:
    """Save the one program of a page in a folder; its name."""
    (block,) = [block for block in blocks(page) if block.language == "python"]
    (folder / block.name).write_text(block.code)
    return block.name


def commands(page: str, folder: Path) -> str:
    """What the commands of a page print, one block after the other, its files saved before."""
    printed = []
    for block in blocks(page):
        if block.name:
            (folder / block.name).write_text(block.code)
        elif block.language == "sh":
            printed.append(shell(block.code, folder))
    return "".join(printed)


def shell(line: str, folder: Path, code: int = 0) -> str:
    """What a command prints on stdout. It finds no tables but the shipped ones and those that it names. Its exit code
    has to be `code`."""
    command, environ = ["bash", "-euo", "pipefail", "-c", line], without_tables(folder)
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{line}\n{done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout


def without_tables(folder: Path) -> dict[str, str]:
    """The variables of a program that finds no tables but the shipped ones, and this Python first."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GEMMDB_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    return environ | {"XDG_DATA_HOME": str(folder / "data"), "PATH": path}
