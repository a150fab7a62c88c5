"""The processes of a distributed job: the first one stores a text, and the others compare theirs with it."""

from __future__ import annotations

import torch.distributed as dist


def several() -> bool:
    """Whether this process belongs to a job of more than one."""
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def first(key: str, value: str) -> tuple[int, str] | None:
    """(this rank, the `value` of the first process of the job that called this); None without a job.

    This is no collective: each process calls it when it compiles, and none waits for another.
    """
    if not several():
        return None
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    return rank, bytes(store.compare_set(key, "", value)).decode()
