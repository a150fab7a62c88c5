"""Configs that a backend supports but this compile cannot lower: each rule with its reason.

`gemmdb.lookup.lowering` has the rules that hold everywhere. The rules here depend on the process: on what failed to
compile in it and what it can load. What only the IR knows (a flexible layout) is checked by the lowering, which falls
back to ATen.
"""

from __future__ import annotations

from gemmdb.hit import Hit, Range
from gemmdb.inductor.decide import uncompiled
from gemmdb.inductor.lower.adapter import prebuilt_kernels, slots
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.cutlass import prebuilt
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import lowering
from gemmdb.rejected import Rejected


def rejection(config: Config, query: Query, rows: Range | None = None) -> Rejected | None:
    """Return why `config` cannot be compiled for `query`. `rows`: the range of M that it serves."""
    return lowering.rejection(config, query, rows) or process_rejection(query, config)


def process_rejection(query: Query, config: Config, rows: Range | None = None) -> Rejected | None:
    """Return why this process cannot compile a config that Inductor can lower for `query`. A frozen compile does not
    ask what other graphs of the process failed to compile: what it gets must not depend on them."""
    return _unloadable(config, query.problem) or (
        None if slots.frozen() else uncompiled.rejection(config, query.problem)
    )


def hit_rejection(hit: Hit, query: Query) -> Rejected | None:
    """Return why Inductor cannot lower one of a hit's configs."""
    found = (rejection(config, query, rows) for config, rows in hit.kernels(query.ranges) if config != ATEN)
    return next(filter(None, found), None)


def lowering_rejection(config: Config, problem: Problem) -> Rejected | None:
    """Return why Inductor cannot lower `problem` with `config` in this process."""
    return lowering.lowering_rejection(config, problem) or _unloadable(config, problem)


def _unloadable(config: Config, problem: Problem) -> Rejected | None:
    if config.backend != "cutlass":
        return None
    archive = prebuilt.archive()
    name = prebuilt.name(config, problem) if archive is not None else ""
    if archive is None or name not in archive.kernels or not archive.runs_with(prebuilt_kernels.running()):
        return None  # nvcc compiles it if the policy allows.
    return None if prebuilt_kernels.usable(name) else Rejected("its compiled kernel cannot be loaded here")
