"""Graphs whose GEMMs are searched for cuBLASLt's algorithms, as if they were compiled for an H200.

This module imports torch: only tests that need torch import it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gemmdb import Policy
from gemmdb.inductor.benchmark import algorithms
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.settings import Settings
from kit.gpu import algorithm, make
from kit.horizontal import traced
from kit.sessions import FakeSession

FIRST = algorithm()
SECOND = algorithm(tile=18)
SPLIT = algorithm(tile=18, split_k=4, reduction=2)
TILE = make("tile", block_m=64, block_n=128)
POLICY = Policy(on_miss="aten", confirm=True, confirm_s=3.0, live_calls=100_000)


def graph_of(
    function: Callable[..., Any], m: int = 768, n: int = 512, k: int = 1024, dtype: torch.dtype = torch.bfloat16
) -> torch.fx.GraphModule:
    """The graph of function(x [m, k], w [n, k], b [n])."""
    x, w, b = torch.empty(m, k, dtype=dtype), torch.empty(n, k, dtype=dtype), torch.empty(n, dtype=dtype)
    return traced(function, x, w, b)


def plain(x: Any, w: Any, b: Any) -> Any:
    return x @ w.t()


def fused(x: Any, w: Any, b: Any) -> Any:
    return torch.relu(x @ w.t())


def biased(x: Any, w: Any, b: Any) -> Any:
    return torch.addmm(b, x, w.t())


def session(policy: Policy = POLICY, **rest: Any) -> FakeSession:
    """A session with the user's table."""
    return FakeSession(policy=policy, user_table=Settings.read().user_table, **rest)


def searched(pairs: Sequence[tuple[Any, Decision]]) -> list[Decision]:
    """The decisions of a graph after the search."""
    search = algorithms.Search()
    search.run(pairs)
    found = search.decide([decision for _, decision in pairs])
    assert JOURNAL.errors == []
    return found
