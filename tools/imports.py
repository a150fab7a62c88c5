"""How the rooms of the package import each other: `python -m tools.imports` counts rooms, arrows and floors.

A room is a package or a module directly under `gemmdb`. An arrow is an import from one room to another. Floors are the
rooms on the longest path of arrows.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import cache
from graphlib import TopologicalSorter

import grimp

PACKAGE = "gemmdb"
OUTER = (f"{PACKAGE}.cli", f"{PACKAGE}.generators", f"{PACKAGE}.inductor", f"{PACKAGE}.tables")
"""What is not the core."""


def rooms() -> dict[str, set[str]]:
    """Every room with the rooms that it imports."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    children = graph.find_children(PACKAGE)
    for child in children:
        graph.squash_module(child)
    return {room: graph.find_modules_directly_imported_by(room) & children - {room} for room in {PACKAGE, *children}}


def floors(arrows: Mapping[str, Set[str]]) -> int:
    """The number of rooms on the longest path. Raises CycleError where rooms import each other in a circle."""
    TopologicalSorter(arrows).prepare()

    @cache
    def below(room: str) -> int:
        return 1 + max((below(other) for other in arrows[room]), default=0)

    return max(map(below, arrows))


def line(title: str, arrows: Mapping[str, Set[str]]) -> str:
    """The counts as a row of Markdown."""
    return f"| {title} | {len(arrows)} | {sum(map(len, arrows.values()))} | {floors(arrows)} |"


if __name__ == "__main__":
    found = rooms()
    core = {room: imported - set(OUTER) for room, imported in found.items() if room not in OUTER}
    print("| | rooms | arrows | floors |\n|---|---|---|---|")
    print(line("the whole package", found))
    print(line("the core", core))
