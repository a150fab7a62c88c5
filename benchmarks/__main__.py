"""`python -m benchmarks`: list the tools of all packages."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import dense, h200, hostile, offtable, peers, programs, stress, torch


def lines() -> Iterator[str]:
    """The list, a line per tool."""
    yield "Run from the repository root: python -m PACKAGE TOOL --help. [GPU]: needs an NVIDIA GPU."
    for package in (dense, h200, hostile, offtable, peers, programs, stress, torch):
        yield f"\n{package.__name__}"
        yield from (f"  {tool.name:<13} {tool.help}" for tool in package.TOOLS)
    yield "\nThe tools that make a release: python -m tools.release"


if __name__ == "__main__":
    print("\n".join(lines()))
