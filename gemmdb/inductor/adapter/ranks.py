"""The processes of a distributed job: a word that the first of them gave, for the others to compare theirs with."""

from __future__ import annotations

import torch.distributed as dist


def several() -> bool:
    """Whether this process belongs to a job of more than one."""
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def first(key: str, value: str) -> tuple[int, str] | None:
    """(this rank, what the first process of the job to come here gave as `value`); None where there is no job.

    No collective: each process comes when it compiles, and none waits for another.
    """
    if not several():
        return None
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    return rank, bytes(store.compare_set(key, "", value)).decode()
