"""What summaries and reports print alike: aligned columns, counts, names, failures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

MAX_REASON = 150
"""The most characters of a reason."""


def aligned(rows: Sequence[Sequence[str]], right: Collection[int]) -> Iterator[str]:
    """A line per row, with aligned columns. `right`: the columns of numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            f"{cell:>{width}}" if place in right else f"{cell:<{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def counted(number: int, noun: str) -> str:
    """`1 graph`, `2 graphs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def shortened(words: str) -> str:
    """At most MAX_REASON characters."""
    return words if len(words) <= MAX_REASON else f"{words[: MAX_REASON - 3]}..."


def not_handled(uncovered: Mapping[str, int]) -> str:
    """`2 x baddbmm, 1 x bmm`: the GEMMs that gemmdb does not handle."""
    return ", ".join(f"{count} x {name}" for name, count in sorted(uncovered.items()))


def failures(errors: Iterable[str]) -> Iterator[str]:
    """A line per failure inside gemmdb."""
    for error in errors:
        yield f"a failure inside gemmdb, which the compile went on without: {shortened(error)}"
