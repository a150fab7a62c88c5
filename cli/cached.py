"""Programs whose operands stay in the cache of a CPU, while the times of tables are those of cold caches."""

from __future__ import annotations

from collections.abc import Iterable

from gemmdb.devices.detect import last_level_cache_bytes
from gemmdb.key.problem import Problem

MIB = 2**20


def hint(products: Iterable[tuple[Problem, int]], cache: int | None = None) -> str:
    """Why kernels that are faster in a table may be slower in a program on a CPU; empty if that is not the reason.
    `products`: its problems, and how often each is in the graphs; `cache`: bytes, by default this CPU's."""
    moved = sum(problem.bytes * count for problem, count in products)
    cache = last_level_cache_bytes() if cache is None else cache
    if not 0 < moved <= cache:
        return ""
    return (
        f"its products move {moved / MIB:.1f} MiB in all, which stays in this CPU's cache of {cache / MIB:.0f} MiB,"
        " and the times of the tables are those of cold caches: `gemmdb build --effort full` measures both, and"
        " `gemmdb lookup --l2 hot` answers for the other"
    )
