"""What Inductor's scheduler takes for the epilogue of one of our choices: elementwise work behind views, too."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._inductor import scheduler
from torch._inductor.dependencies import MemoryDep

_MARK = "_gemmdb_choice"
_GOES_BY_NAMES = (2, 12)
"""The first torch whose scheduler asks a template's reader for the name of what it reads, and not for its loops."""


def choice(output: Any) -> Any:
    """`output`, which is that of a template that we chose, in Inductor's IR; what reads it through views may be its
    epilogue from now on."""
    setattr(output.data.data, _MARK, True)
    return output


def see_through_views() -> None:
    """Let the scheduler find what an elementwise kernel shares with our choice whose output it reads, where it does not
    by itself: that of torch 2.11 compares the loops of both as they were written before it fuses, and those over the
    [B, S, N] behind a linear are not those over [M, N], so that nothing of a batch of sequences was fused. Whether they
    read and write the same places it asks with merged loops in any case."""
    if torch.torch_version.TorchVersion(torch.__version__) < _GOES_BY_NAMES:
        wrap_score()


def wrap_score() -> None:
    """Put `shared` beside Inductor's own score of two nodes, for those of our choices. Once per process."""
    original = scheduler.Scheduler.score_fusion_memory
    if getattr(original, "_gemmdb", False):
        return

    @functools.wraps(original)
    def score_fusion_memory(self: Any, node1: Any, node2: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, node1, node2, *args, **kwargs)
        score, *rest = found if isinstance(found, tuple) else (found,)
        if score or not (_chosen(node1) or _chosen(node2)):
            return found
        score = sum(self.dep_size_hint(dep) for dep in shared(node1, node2))
        return (score, *rest) if rest else score

    score_fusion_memory._gemmdb = True  # type: ignore[attr-defined]
    scheduler.Scheduler.score_fusion_memory = score_fusion_memory


def shared(node1: Any, node2: Any) -> set[Any]:
    """What both nodes of the scheduler read or write of memory, whatever loops they do it in."""
    first, second = ({_merged(dep) for dep in (*n.read_writes.reads, *n.read_writes.writes)} for n in (node1, node2))
    return first & second


def _merged(dep: Any) -> Any:
    return dep.normalize() if isinstance(dep, MemoryDep) else dep


def _chosen(node: Any) -> bool:
    return node.is_template() and getattr(node.get_template_node(), _MARK, False)
