"""Another attempt at a graph: Inductor's step from an FX graph to compiled code."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable
from typing import Any

import torch

from gemmdb.inductor.lower.adapter import slots
from gemmdb.phases import PHASES

log = logging.getLogger("gemmdb")
MOST_BYTES = 2**30
"""The most bytes of constants that are kept for another attempt. Inductor frees those that its C++ template packs."""
Attempt = Callable[[Callable[[], Any], Callable[[], Any]], Any]
"""Calls the first function, and the second where the first fails and another attempt may help."""


def with_another_attempt(attempt: Attempt) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wraps the step that runs Inductor's last passes on a graph, lowers it and compiles its kernels. `attempt` gets
    the step, and the step on the graph as it was before. Compiles without gemmdb pass through."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def fx_codegen_and_compile(gm: Any, *args: Any, **kwargs: Any) -> Any:
            if slots.in_force("post_grad_custom_post_pass") is None:
                return original(gm, *args, **kwargs)
            try:
                with PHASES("passes"):
                    # The passes change it. The copy shares the tensors of its metadata, and takes 20 us per node.
                    graph, constants = copy.deepcopy(gm.graph), _constants(gm)
            except Exception:
                log.debug("gemmdb: a graph that cannot be copied is compiled once", exc_info=True)
                return original(gm, *args, **kwargs)

            def again() -> Any:
                for name, value in constants.items():
                    setattr(gm, name, value)
                gm.graph = graph
                gm.recompile()
                return original(gm, *args, **kwargs)

            return attempt(lambda: original(gm, *args, **kwargs), again)

        return fx_codegen_and_compile

    return around


def _constants(gm: Any) -> dict[str, Any]:
    """The constants of a graph on the CPU by name, which a lowering may take away; none if they are too large."""
    names = {str(node.target) for node in gm.graph.find_nodes(op="get_attr")}
    values = {name: getattr(gm, name) for name in names if "." not in name and hasattr(gm, name)}
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor) and value.is_cpu}
    return tensors if sum(value.nbytes for value in tensors.values()) <= MOST_BYTES else {}
