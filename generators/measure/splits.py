"""How the groups of a grouped_mm are divided where it is measured. Does not need torch.

No compile knows the sizes of the groups, so an answer has to hold for all: each candidate is checked and timed on all
of these splits.
"""

from __future__ import annotations

from collections.abc import Sequence

from gemmdb.key.problem import Problem

SKEW = 1.2
"""In a skewed split, the group at place r of those that have work gets a share proportional to 1 / r ** SKEW."""
_STEP = 0.618
"""Neighbours in the order of size are about so large a share of all groups apart: the golden section spreads them."""


def splits(problem: Problem) -> list[list[int]]:
    """Where each group ends, one list for each way to divide: balanced, skewed, and sparse, with most groups empty.
    Equal lists are not repeated. All of the ragged size is divided. Empty for other ops."""
    if not problem.spec.grouped:
        return []
    total, groups, active = getattr(problem, problem.ragged), problem.groups, problem.active_groups
    shares = [[1.0] * active, [place**-SKEW for place in range(1, active + 1)], [1.0] * problem.fewest_groups]
    found = [_ends(_divided(total, share), groups) for share in shares]
    return list(map(list, dict.fromkeys(map(tuple, found))))


def _divided(total: int, shares: Sequence[float]) -> list[int]:
    """`total` in integer parts like `shares`, largest first, which sum to it."""
    parts, left, weight = [], total, sum(shares)
    for share in shares:
        part = min(left, round(left * share / weight))
        parts.append(part)
        left, weight = left - part, weight - share
    return parts


def _ends(sizes: Sequence[int], groups: int) -> list[int]:
    """The ends of `groups` groups, of which some have these sizes, in an order that mixes large and small ones, and the
    others none."""
    order = sorted(range(groups), key=lambda place: place * _STEP % 1)
    size_of = dict(zip(order, sizes, strict=False))
    ends, end = [], 0
    for group in range(groups):
        end += size_of.get(group, 0)
        ends.append(end)
    return ends
