"""Lets Inductor's scheduler fuse elementwise work into one of our kernels also when views stand between the two."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._inductor.dependencies import MemoryDep

_MARK = "_gemmdb_choice"


def choice(output: Any) -> Any:
    """Mark `output`, the output of a template that we chose, in Inductor's IR, and return it. From now on, work that
    reads it through views may become its epilogue."""
    setattr(output.data.data, _MARK, True)
    return output


def through_views(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the scheduler's score of two nodes. If one of them is our choice and the scheduler finds nothing that they
    share, the score counts what they share once loops are merged.

    The scheduler of torch 2.11 compares loops as they were written before it fuses. Loops over the [B, S, N] after a
    linear differ from loops over [M, N], so it fused nothing for a batch of sequences. It always uses merged loops to
    check whether both nodes read and write the same places. From torch 2.12 on it compares names.
    """

    @functools.wraps(original)
    def score_fusion_memory(self: Any, node1: Any, node2: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, node1, node2, *args, **kwargs)
        score, *rest = found if isinstance(found, tuple) else (found,)
        if score or not (_chosen(node1) or _chosen(node2)):
            return found
        score = sum(self.dep_size_hint(dep) for dep in shared(node1, node2))
        return (score, *rest) if rest else score

    return score_fusion_memory


def shared(node1: Any, node2: Any) -> set[Any]:
    """The memory that both nodes of the scheduler read or write, independent of their loops."""
    first, second = ({_merged(dep) for dep in (*n.read_writes.reads, *n.read_writes.writes)} for n in (node1, node2))
    return first & second


def _merged(dep: Any) -> Any:
    return dep.normalize() if isinstance(dep, MemoryDep) else dep


def _chosen(node: Any) -> bool:
    return node.is_template() and getattr(node.get_template_node(), _MARK, False)
