"""How the packages under `gemmdb` import each other: `python -m tools.imports` counts packages, imports and depth.

A single module directly under `gemmdb` counts as a package. Depth is the number of packages on the longest chain of
imports.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import cache
from graphlib import TopologicalSorter

import grimp

PACKAGE = "gemmdb"
OUTER = tuple(f"{PACKAGE}.{name}" for name in ("cli", "exchange", "generators", "inductor", "report", "tables", "tune"))
"""What is not the core."""


def packages() -> dict[str, set[str]]:
    """Every package with the packages that it imports."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    children = graph.find_children(PACKAGE)
    for child in children:
        graph.squash_module(child)
    return {
        package: graph.find_modules_directly_imported_by(package) & children - {package}
        for package in {PACKAGE, *children}
    }


def depth(imports: Mapping[str, Set[str]]) -> int:
    """The number of packages on the longest chain of imports. Raises CycleError if packages import each other in a
    circle."""
    TopologicalSorter(imports).prepare()

    @cache
    def below(package: str) -> int:
        return 1 + max((below(other) for other in imports[package]), default=0)

    return max(map(below, imports))


def line(title: str, imports: Mapping[str, Set[str]]) -> str:
    """The counts as a row of Markdown."""
    return f"| {title} | {len(imports)} | {sum(map(len, imports.values()))} | {depth(imports)} |"


if __name__ == "__main__":
    found = packages()
    core = {package: imported - set(OUTER) for package, imported in found.items() if package not in OUTER}
    print("| | packages | imports | depth |\n|---|---|---|---|")
    print(line("the whole package", found))
    print(line("the core", core))
