"""Terminal features of stdout: colours, bars and line breaks on a terminal, plain text everywhere else."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from unicodedata import combining, east_asian_width

STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
"""Style names and their ECMA-48 codes."""
MIN_WIDTH = 40
"""Minimum width assumed for a terminal."""
EIGHTHS = "▏▎▍▌▋▊▉█"


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def has_colours() -> bool:
    """Whether stdout is a terminal that shows colours and NO_COLOR (https://no-color.org) does not forbid them."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width() -> int | None:
    """Return the terminal's width in columns; None if stdout is not a terminal: lines of a file have any length."""
    return max(shutil.get_terminal_size().columns, MIN_WIDTH) if is_terminal() else None


def painted(text: str, style: str, colours: bool | None = None) -> str:
    """Return `text` in a style of STYLES, or unchanged without colours or a style."""
    wanted = has_colours() if colours is None else colours
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if wanted and style and text else text


def bar(share: float, most: int, blocks: bool | None = None) -> str:
    """Return a bar of `share` (0 to 1) times `most` characters. Anything above 0 gets at least the thinnest bar.
    `blocks`: whether stdout can print blocks instead of #."""
    share = min(max(share, 0.0), 1.0)
    if not (_prints_blocks() if blocks is None else blocks):
        return "#" * round(share * most)
    full, eighths = divmod(max(round(share * most * 8), int(share > 0)), 8)
    return EIGHTHS[-1] * full + (EIGHTHS[eighths - 1] if eighths else "")


def stacked(parts: Sequence[tuple[str, float, str]], most: int) -> str:
    """Return one line with a stacked bar of at most `most` columns and its legend. A part has a name, a share from 0 to
    1, and a style. Without colours, parts differ by shade."""
    shades = "█▓░" if _prints_blocks() else "#=."
    names = [f"{shades[place]} {name} {share:.1%}" for place, (name, share, _) in enumerate(parts)]
    most = max(min(most, (width() or most) - sum(len(name) + 2 for name in names)), 10)
    bars, end, reached = [], 0, 0.0
    for shade, (_, share, style) in zip(shades, parts, strict=True):
        reached = min(reached + max(share, 0.0), 1.0)
        bars.append(painted(shade * (round(most * reached) - end), style))
        end = round(most * reached)
    legend = (painted(name[0], style) + name[1:] for name, (_, _, style) in zip(names, parts, strict=True))
    return "  ".join(("".join(bars), *legend))


def _prints_blocks() -> bool:
    try:
        EIGHTHS.encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def cells(text: str) -> int:
    """Return the terminal columns that `text` takes: two for each wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(one) else 1 + (east_asian_width(one) in "WF") for one in text)


def wrapped(text: str, most: int) -> list[str]:
    """Wrap `text` to lines of at most `most` columns, at spaces if possible; at least one line."""
    if cells(text) <= most:
        return [text]
    lines, line = [], ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        if cells(joined) <= most:
            line = joined
            continue
        if line:
            lines.append(line)
        *whole, line = _pieces(word, most)
        lines += whole
    return [*lines, line]


def _pieces(word: str, most: int) -> list[str]:
    """Split `word` into pieces of at most `most` columns, or of one character if even that is wider."""
    pieces = [""]
    for one in word:
        if pieces[-1] and cells(pieces[-1] + one) > most:
            pieces.append("")
        pieces[-1] += one
    return pieces


def cut_left(text: str, most: int) -> str:
    """Return the end of `text` in at most `most` columns, with a leading ellipsis if truncated: a file's name matters
    more than its folder."""
    if cells(text) <= most:
        return text
    start = next((place for place in range(len(text)) if cells(text[place:]) <= most - 1), len(text))
    return f"…{text[start:]}"
