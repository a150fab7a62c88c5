"""What Inductor's scheduler takes for the epilogue of one of our choices: elementwise work behind views, too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._inductor.dependencies import MemoryDep

_MARK = "_gemmdb_choice"


def choice(output: Any) -> Any:
    """`output`, which is that of a template that we chose, in Inductor's IR; what reads it through views may be its
    epilogue from now on."""
    setattr(output.data.data, _MARK, True)
    return output


def through_views(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the scheduler's score of two nodes. Where it finds nothing shared with one of our choices, the score is
    what both share once loops are merged.

    The scheduler of torch 2.11 compares loops as they were written before it fuses. Those over the [B, S, N] behind a
    linear are not those over [M, N], so it fused nothing of a batch of sequences. Whether both read and write the same
    places it asks with merged loops in any case. From torch 2.12 on it compares names.
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
    """What both nodes of the scheduler read or write of memory, whatever loops they do it in."""
    first, second = ({_merged(dep) for dep in (*n.read_writes.reads, *n.read_writes.writes)} for n in (node1, node2))
    return first & second


def _merged(dep: Any) -> Any:
    return dep.normalize() if isinstance(dep, MemoryDep) else dep


def _chosen(node: Any) -> bool:
    return node.is_template() and getattr(node.get_template_node(), _MARK, False)
