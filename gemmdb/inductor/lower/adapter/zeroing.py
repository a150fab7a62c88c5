"""Zeroes of the workspace that our kernels share in a graph only what has to be zero: the counters at its beginning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemmdb.inductor.lower.adapter.templates import WORKSPACE
from gemmdb.kernels.triton import MAX_COUNTERS


def counters_alone(make_zero_buffer: Callable[[Any, str], str]) -> Callable[[Any, str], str]:
    """Inductor's method that writes the line which zeroes a buffer. It zeroes a whole workspace: of ours, also the
    partial sums, which may be tens of megabytes, at each call of a graph. Inductor's C++ code still does so."""

    def make(self: Any, name: str) -> str:
        line = str(make_zero_buffer(self, name))
        if not name.startswith(WORKSPACE):
            return line
        return line.replace(f"{name}.zero_()", f"{name}[:{MAX_COUNTERS}].zero_()")

    return make
