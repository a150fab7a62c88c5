"""The layers in pictures: `python -m tools.layers docs` writes them, as `make docs` does.

Drawn from the import-linter contracts in `pyproject.toml` and from the docstrings of the packages: `layers.svg` for the
whole package, `layers-NAME.svg` for each package inside which a contract orders the modules. A package imports from the
layers below its own and from no other package of its layer. Tests compare the files with what is drawn now.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence, Set
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
"""Fill, border and legend of a box, by what it needs."""
STYLE = (
    "text{font-family:Helvetica,Arial,sans-serif;font-size:12px;fill:#333}"
    ".title{font-family:Menlo,Consolas,monospace;font-size:14px;font-weight:bold;fill:#111}"
    ".head{font-family:Menlo,Consolas,monospace;font-size:16px;font-weight:bold;fill:#111}"
    ".inside{font-family:Menlo,Consolas,monospace;font-size:11px;fill:#555}"
)


@dataclass(frozen=True)
class Box:
    """A package or a module: its title, what it is about, the packages in it, and its kind in KINDS."""

    title: str
    about: str
    inside: tuple[str, ...]
    kind: str

    def lines(self, width: float) -> tuple[list[str], list[str]]:
        """What it is about and what is in it, wrapped to a box of so many pixels."""
        characters = int((width - 20) / CHAR)
        return textwrap.wrap(self.about, characters), textwrap.wrap(", ".join(self.inside), characters)

    def height(self, width: float) -> float:
        """In pixels."""
        return TITLE + LINE * sum(map(len, self.lines(width))) + 12


def contracts() -> Sequence[Mapping[str, Any]]:
    """The import-linter contracts of the project."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return document["tool"]["importlinter"]["contracts"]  # type: ignore[no-any-return]


def pictures() -> dict[str, str]:
    """Every picture by the name of its file."""
    core = {name for one in contracts() if one["type"] == "forbidden" for name in one["source_modules"]}
    return {
        f"{container.replace(PACKAGE, 'layers', 1).replace('.', '-')}.svg": svg(
            container, rows(contract, container, core)
        )
        for contract in contracts()
        if contract["type"] == "layers"
        for container in contract.get("containers", [PACKAGE])
    }


def rows(contract: Mapping[str, Any], container: str, core: Set[str]) -> list[list[Box]]:
    """The layers that a contract orders in a package, from the top, each with its boxes. `core`: the modules that a
    contract keeps from importing third-party packages."""
    prefix = f"{container}." if "containers" in contract else ""
    return [[box_of(name, prefix + name, core) for name in names(layer)] for layer in contract["layers"]]


def names(layer: str) -> list[str]:
    """The modules of one layer of a contract."""
    return re.split(r"\s*[|:]\s*", layer)


def box_of(title: str, name: str, core: Set[str]) -> Box:
    """The box of a dotted name, shown under a title."""
    path = ROOT / name.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    inside = sorted(child.parent.name for child in path.glob("*/__init__.py"))
    partly = any(one.startswith(f"{name}.") for one in core)
    return Box(title, sentence(source), tuple(inside), "core" if name in core else "mostly" if partly else "rest")


def sentence(source: Path) -> str:
    """The first sentence of a module's docstring, without backquotes."""
    text = ast.get_docstring(ast.parse(source.read_text())) or ""
    return re.split(r"(?<=\.)\s", " ".join(text.replace("`", "").split()))[0]


def svg(title: str, layers: Sequence[Sequence[Box]]) -> str:
    """The picture: a row of boxes per layer, the uppermost layer first."""
    drawn: list[str] = []
    y = float(TOP)
    for row in layers:
        width = (WIDTH - LEFT - RIGHT - GAP * (len(row) - 1)) / len(row)
        height = max(one.height(width) for one in row)
        for i, one in enumerate(row):
            drawn += box(one, LEFT + i * (width + GAP), y, width, height)
        y += height + GAP
    kinds = {one.kind for row in layers for one in row}
    return "\n".join([*head(title, y, kinds), *drawn, "</svg>", ""])


def head(title: str, height: float, kinds: Set[str]) -> Iterator[str]:
    """The beginning of the document: size, style, legend of the kinds, and the arrow along the layers."""
    size = f'width="{WIDTH}" height="{height:g}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" {size}>'
    yield f"<title>The layers of {title}</title>"
    yield f"<style>{STYLE}</style>"
    yield f'<rect {size} rx="8" fill="#fff"/>'
    yield f'<text class="head" x="{LEFT}" y="30">{escape(title)}</text>'
    for i, (fill, border, label) in enumerate(KINDS[kind] for kind in KINDS if len(kinds) > 1):
        x = LEFT + 150 + 250 * i
        yield f'<rect x="{x}" y="17" width="16" height="16" rx="3" fill="{fill}" stroke="{border}"/>'
        yield f'<text x="{x + 24}" y="29">{label}</text>'
    end = height - 2 * GAP
    yield f'<path d="M30 {TOP} V{end:g} m-6 -10 l6 10 l6 -10" fill="none" stroke="#777" stroke-width="2"/>'
    rule = "imports only from the layers below its own"
    yield f'<text transform="translate(50 {TOP + 4}) rotate(90)">{rule}</text>'


def box(one: Box, x: float, y: float, width: float, height: float) -> Iterator[str]:
    """One box."""
    fill, border, _ = KINDS[one.kind]
    about, inside = one.lines(width)
    yield (f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" stroke="{border}"/>')
    yield f'<text class="title" x="{x + 10:g}" y="{y + TITLE:g}">{escape(one.title)}</text>'
    for i, line in enumerate([*about, *inside]):
        style = ' class="inside"' if i >= len(about) else ""
        yield f'<text{style} x="{x + 10:g}" y="{y + TITLE + LINE * (i + 1) + 2:g}">{escape(line)}</text>'


if __name__ == "__main__":
    for name, picture in pictures().items():
        Path(sys.argv[1], name).write_text(picture)
