"""Pieces of the drawn diagrams: boxes, arrows and words as SVG, on a white card that suits a dark page too."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from html import escape

WIDTH = 1000
"""Pixels of every diagram."""
LINE, CHAR = 18, 7.2
"""Pixels: the height of a line, and the mean width of a character."""
COLOURS = {
    "blue": ("#e8f0fe", "#4285f4"),
    "green": ("#e6f4ea", "#34a853"),
    "amber": ("#fef7e0", "#f9ab00"),
    "red": ("#fce8e6", "#d93025"),
    "grey": ("#f1f3f4", "#9aa0a6"),
}
"""Fill and border."""
STYLE = (
    "text{font-family:Helvetica,Arial,sans-serif;font-size:15px;fill:#333}"
    ".title{font-size:16px;font-weight:bold;fill:#111}"
    ".code{font-family:Menlo,Consolas,monospace;font-size:15px;fill:#111}"
    ".middle{text-anchor:middle}.end{text-anchor:end}"
)


def svg(title: str, height: int, parts: Iterable[str]) -> str:
    """The document of a diagram. `title`: what it shows, for readers who cannot see it."""
    size = f'width="{WIDTH}" height="{height}"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size} role="img">',
        f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", f'<rect {size} rx="8" fill="#fff"/>',
        *parts, "</svg>", "",
    ])  # fmt: skip


def text(x: float, y: float, words: str, style: str = "") -> str:
    """A line of text. `style`: classes of STYLE, separated by spaces."""
    kind = f' class="{style}"' if style else ""
    return f'<text{kind} x="{x:g}" y="{y:g}">{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, colour: str, radius: int = 6) -> str:
    """A coloured box without words."""
    fill, border = COLOURS[colour]
    at = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {at} rx="{radius}" fill="{fill}" stroke="{border}"/>'


def box(
    x: float, y: float, width: float, height: float, colour: str, title: str, about: str = "", style: str = "title"
) -> Iterator[str]:
    """A box with a title, and below it words that are wrapped to its width."""
    yield rect(x, y, width, height, colour)
    yield text(x + 10, y + 22, title, style)
    for i, line in enumerate(textwrap.wrap(about, int((width - 16) / CHAR))):
        yield text(x + 10, y + 22 + LINE * (i + 1) + 2, line)


def arrow(x: float, y: float, to_x: float, to_y: float, words: str = "", style: str = "code middle") -> Iterator[str]:
    """A horizontal or vertical arrow, with words above its middle or beside it."""
    yield f'<path d="M{x:g} {y:g} L{to_x:g} {to_y:g}" stroke="#777" stroke-width="2"/>'
    along = (1, 0) if y == to_y else (0, 1)
    sign = 1 if to_x + to_y > x + y else -1
    back, side = (-9 * sign * along[0], -9 * sign * along[1]), (5 * along[1], 5 * along[0])
    corners = [(to_x + back[0] + s * side[0], to_y + back[1] + s * side[1]) for s in (1, -1)]
    points = " ".join(f"{a:g},{b:g}" for a, b in [(to_x, to_y), *corners])
    yield f'<polygon points="{points}" fill="#777"/>'
    if words and along == (1, 0):
        yield text((x + to_x) / 2, y - 8, words, style)
    elif words:
        yield text(x + 10, (y + to_y) / 2 + 4, words, style.replace(" middle", ""))
