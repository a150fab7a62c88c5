"""The presets, each loaded once per process: that takes seconds."""

from __future__ import annotations

import functools

from gemmdb import Problem
from gemmdb.generators import shapes


@functools.cache
def preset(name: str, kind: str = "cuda") -> tuple[Problem, ...]:
    """The problems of the preset of that name for a kind of device, in order."""
    return tuple(shapes.load(name, kind))
