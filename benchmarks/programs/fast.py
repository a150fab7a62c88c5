"""A decode loop with the flags of gpt-fast's `generate.py`: a static cache, one token at a time, sampling inside the
compiled function, `coordinate_descent_tuning` and CUDA graphs by `mode="reduce-overhead"`."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from benchmarks.programs.program import Built, Program

OPTIONS = {"mode": "reduce-overhead", "fullgraph": True}


def make(rows: int, int8: bool, size: str, device: str) -> Built:
    """The loop over a few tokens."""
    from benchmarks.programs import fast_loop

    return fast_loop.built(rows, int8, size, device)


def programs() -> Iterator[Program]:
    """All programs of this module."""
    for rows, kind in ((1, "bf16"), (1, "int8"), (8, "int8")):
        yield Program(
            f"gpt-fast-{kind}-{rows}", kind, functools.partial(make, rows, kind == "int8"), options=OPTIONS,
            uncaptured="mode reduce-overhead makes CUDA graphs of its own", tuned=True, tolerance=0.05,
        )  # fmt: skip
