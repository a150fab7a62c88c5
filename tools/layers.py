"""The layers in one picture: `python -m tools.layers > docs/layers.svg`, which `make docs` runs.

Drawn from the import-linter contracts in `pyproject.toml` and from the docstrings of the packages; a test compares the
file with what is drawn now. A package imports from the layers below its own and from no other package of its layer.
"""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = "gemmdb"
WIDTH, LEFT, RIGHT, GAP, TOP = 1000, 66, 10, 10, 50
"""Pixels: the picture, the margin with the arrow, the other margin, between boxes, the headline."""
TITLE, LINE, CHAR = 22, 16, 6.4
"""Pixels: the height of a title and of a line of text, and the mean width of a character."""
KINDS = {
    "core": ("#e6f4ea", "#34a853", "needs the standard library only"),
    "mostly": ("#fef7e0", "#f9ab00", "some modules need more"),
    "rest": ("#e8f0fe", "#4285f4", "needs torch, sqlite-utils, typer or others"),
}
"""Fill, border and legend of a room, by what it needs."""
STYLE = (
    "text{font-family:Helvetica,Arial,sans-serif;font-size:12px;fill:#333}"
    ".title{font-family:Menlo,Consolas,monospace;font-size:14px;font-weight:bold;fill:#111}"
    ".inside{font-family:Menlo,Consolas,monospace;font-size:11px;fill:#555}"
)


@dataclass(frozen=True)
class Room:
    """A package or a module: its dotted name, what it is about, the packages in it, and its kind in KINDS."""

    name: str
    about: str
    inside: tuple[str, ...]
    kind: str

    def lines(self, width: float) -> tuple[list[str], list[str]]:
        """What it is about and what is in it, wrapped to a box of so many pixels."""
        characters = int((width - 20) / CHAR)
        return textwrap.wrap(self.about, characters), textwrap.wrap(", ".join(self.inside), characters)

    def height(self, width: float) -> float:
        """Of its box, in pixels."""
        return TITLE + LINE * sum(map(len, self.lines(width))) + 12


def contracts() -> Sequence[Mapping[str, Any]]:
    """The import-linter contracts of the project."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return document["tool"]["importlinter"]["contracts"]  # type: ignore[no-any-return]


def layers() -> list[list[Room]]:
    """The layers of the package, from the top, each with its rooms."""
    (found,) = (one for one in contracts() if one["type"] == "layers" and orders_rooms(one))
    core = {name for one in contracts() if one["type"] == "forbidden" for name in one["source_modules"]}
    return [[room(name, core) for name in names(layer)] for layer in found["layers"]]


def names(layer: str) -> list[str]:
    """The modules of one layer of a contract."""
    return re.split(r"\s*[|:]\s*", layer)


def orders_rooms(contract: Mapping[str, Any]) -> bool:
    """Whether a contract orders the rooms of the whole package, not those of one room."""
    return all(re.fullmatch(rf"{PACKAGE}\.\w+", name) for layer in contract["layers"] for name in names(layer))


def room(name: str, core: set[str]) -> Room:
    """The room of a dotted name. `core`: the modules that a contract keeps from importing third-party packages."""
    path = ROOT / name.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    inside = sorted(child.parent.name for child in path.glob("*/__init__.py"))
    partly = any(one.startswith(f"{name}.") for one in core)
    return Room(name, sentence(source), tuple(inside), "core" if name in core else "mostly" if partly else "rest")


def sentence(source: Path) -> str:
    """The first sentence of a module's docstring, without backquotes."""
    text = ast.get_docstring(ast.parse(source.read_text())) or ""
    return re.split(r"(?<=\.)\s", " ".join(text.replace("`", "").split()))[0]


def svg(rows: Sequence[Sequence[Room]]) -> str:
    """The picture: a row of boxes per layer, the uppermost layer first."""
    drawn: list[str] = []
    y = float(TOP)
    for row in rows:
        width = (WIDTH - LEFT - RIGHT - GAP * (len(row) - 1)) / len(row)
        height = max(one.height(width) for one in row)
        for i, one in enumerate(row):
            drawn += box(one, LEFT + i * (width + GAP), y, width, height)
        y += height + GAP
    return "\n".join([*head(y), *drawn, "</svg>", ""])


def head(height: float) -> Iterator[str]:
    """The beginning of the document: size, style, legend, and the arrow along the layers."""
    size = f'width="{WIDTH}" height="{height:g}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" {size}>'
    yield f"<title>The layers of {PACKAGE}</title>"
    yield f"<style>{STYLE}</style>"
    yield f'<rect {size} rx="8" fill="#fff"/>'
    for i, (fill, border, label) in enumerate(KINDS.values()):
        x = LEFT + 260 * i
        yield f'<rect x="{x}" y="17" width="16" height="16" rx="3" fill="{fill}" stroke="{border}"/>'
        yield f'<text x="{x + 24}" y="29">{label}</text>'
    end = height - 2 * GAP
    yield f'<path d="M30 {TOP} V{end:g} m-6 -10 l6 10 l6 -10" fill="none" stroke="#777" stroke-width="2"/>'
    rule = "a package imports only from the layers below its own"
    yield f'<text transform="translate(50 {TOP + 4}) rotate(90)">{rule}</text>'


def box(one: Room, x: float, y: float, width: float, height: float) -> Iterator[str]:
    """One room."""
    fill, border, _ = KINDS[one.kind]
    about, inside = one.lines(width)
    yield (f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" stroke="{border}"/>')
    yield f'<text class="title" x="{x + 10:g}" y="{y + TITLE:g}">{escape(one.name)}</text>'
    for i, line in enumerate([*about, *inside]):
        style = ' class="inside"' if i >= len(about) else ""
        yield f'<text{style} x="{x + 10:g}" y="{y + TITLE + LINE * (i + 1) + 2:g}">{escape(line)}</text>'


if __name__ == "__main__":
    print(svg(layers()), end="")
