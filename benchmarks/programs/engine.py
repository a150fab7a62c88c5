"""A decoder as serving engines compile it: cut into pieces at attention, each compiled by `standalone_compile` for a
symbolic number of rows, weights as parameters, run at 50 sizes from 1 to 512."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from benchmarks.programs.program import Built, Program

MAX_ROWS = 512
ROWS = (1, 2, *range(8, 256, 8), *range(256, MAX_ROWS + 1, 16))
"""50 sizes, spaced as those that vLLM captures."""
TIMED = (1, 16, 64, 128, 512)
"""The sizes that have a program each."""


def make(sizes: tuple[int, ...], size: str, device: str) -> Built:
    """The decoder at these numbers of rows, one after the other."""
    from benchmarks.programs import engine_pieces

    return engine_pieces.built(sizes if size == "gpu" else sizes[:3], size, device)


def backend(graph: Any, inputs: list[Any], **how: Any) -> Any:
    """The backend of torch.compile that cuts and compiles. Imports torch when a graph is compiled."""
    from benchmarks.programs import engine_pieces

    return engine_pieces.compiled(graph, inputs, **how)


def programs() -> Iterator[Program]:
    """All programs of this module. The first compile of `engine-start` is what a server does at its start."""
    options = {"backend": backend}
    yield Program("engine-start", "bf16", functools.partial(make, ROWS), options=options)
    for rows in TIMED:
        yield Program(f"engine-{rows}", "bf16", functools.partial(make, (rows,)), options=options)
