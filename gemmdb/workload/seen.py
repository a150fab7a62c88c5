"""The sizes of the calls of a GEMM with symbolic sizes, to the nearest power of two: few enough for a line of a
workload."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Collection, Iterable

from gemmdb.errors import InputError
from gemmdb.key.rules import LARGEST_SIZE

MAX_SEEN = 64
"""Most sizes of the calls of a GEMM: eight powers of two for each of two symbolic sizes."""
Sizes = tuple[tuple[str, int], ...]
"""The symbolic sizes of a call by name, in alphabetical order."""
Seen = tuple[tuple[Sizes, int], ...]
"""The number of calls by their sizes."""


@functools.lru_cache(maxsize=4096)
def rounded(size: int, low: int = 1, high: int | None = None) -> int:
    """Return the power of two nearest to a positive size, on a logarithmic scale, within the ends of its range."""
    power = 1 << round(math.log2(size))
    return max(power if high is None else min(power, high), low)


def merged(*several: Iterable[tuple[Sizes, int]]) -> Seen:
    """Return the calls of all by their sizes: at most MAX_SEEN sizes, those with the most calls."""
    calls: Counter[Sizes] = Counter()
    for some in several:
        for sizes, number in some:
            calls[sizes] += number
    return tuple(sorted((sizes, number) for sizes, number in calls.most_common(MAX_SEEN) if number))


def read(items: object, names: Collection[str], where: str) -> Seen:
    """Return the calls of a workload line. `names`: its symbolic sizes; `where` names the line in errors. Raises
    InputError."""
    found = []
    for item in items if isinstance(items, list) else [None]:
        sizes = dict(item) if isinstance(item, dict) else {}
        calls = sizes.pop("calls", None)
        if not names or sizes.keys() != set(names) or not all(_is_number(one, LARGEST_SIZE) for one in sizes.values()):
            form = "".join(f'"{name}": size, ' for name in sorted(names))
            raise InputError(f'{where}: seen must have the form [{{{form}"calls": number}}], got {str(items)[:100]!r}')
        if not _is_number(calls, 2**63 - 1):
            raise InputError(f"{where}: calls of seen must be an integer from 1 to 2**63 - 1, got {str(calls)[:40]!r}")
        found.append((tuple(sorted(sizes.items())), int(calls)))
    return merged(found)


def _is_number(value: object, most: int) -> bool:
    return type(value) is int and 0 < value <= most
