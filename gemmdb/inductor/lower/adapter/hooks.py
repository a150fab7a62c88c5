"""Wrappers of Inductor's entry point, compiled graphs, caches, graph-to-code step, and padding pass."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any

import torch
from torch._inductor import config as inductor_config

from gemmdb.inductor.lower.adapter import slots, state, symbolic
from gemmdb.inductor.lower.adapter.slots import patches_for
from gemmdb.phases import PHASES

log = logging.getLogger("gemmdb")
_PATCHES = "config_patches"
Function = Callable[..., Any]
MAX_CONSTANT_BYTES = 2**30
"""Maximum bytes of constants kept for another attempt. Inductor frees those that its C++ template packs."""


class Stored(Enum):
    """Where a compiled graph may be stored."""

    EVERYWHERE = auto()
    """In Inductor's caches, too."""
    BY_PROGRAM = auto()
    """Only by a program that saves its graphs itself."""
    NOWHERE = auto()
    """Its code is valid only for the constants that it was compiled with."""


Attempt = Callable[[Callable[[], Any], Callable[[], Any]], Any]
"""Calls the first function, and the second if the first fails and another attempt may help."""


def with_passes(
    original: Function, choose: Callable[[], Mapping[str, Any] | None], after: Callable[[bool], None]
) -> Function:
    """Wrap compile_fx: each call runs with the passes (by slot) that `choose` returns, if any.

    `after(ok)` runs at the end of such a call, because AOTInductor makes no artifact that could store the events.
    """
    position = list(inspect.signature(original).parameters).index(_PATCHES)

    @functools.wraps(original)
    def compile_fx(*args: Any, **kwargs: Any) -> Any:
        bodies = choose()
        if bodies is None:
            return original(*args, **kwargs)
        ok = False
        try:
            # Callers may use torch's own keywords, so only the patches are checked.
            if len(args) > position:
                args = (*args[:position], patches_for(bodies, args[position]), *args[position + 1 :])
            else:
                kwargs[_PATCHES] = patches_for(bodies, kwargs.get(_PATCHES))
            result = original(*args, **kwargs)
            ok = True
        finally:
            after(ok)
        return result

    return compile_fx


def with_another_attempt(original: Function, attempt: Attempt) -> Function:
    """Wrap the step that runs Inductor's last passes on a graph, lowers it and compiles its kernels. `attempt` gets the
    step, and the step on the original graph. Compiles without gemmdb pass through."""

    @functools.wraps(original)
    def fx_codegen_and_compile(gm: Any, *args: Any, **kwargs: Any) -> Any:
        if slots.in_force("post_grad_custom_post_pass") is None:
            return original(gm, *args, **kwargs)
        try:
            with PHASES("passes"):
                # The passes modify it. The copy shares tensor metadata, and takes 20 us per node.
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

        inference = kwargs.get("is_inference")
        training = inference is False and not state.hides_calls(gm.graph)
        # A backward has other inputs than the forward, whose indices these are.
        with state.training(training), state.weights(kwargs.get("static_input_idxs") if inference else None):
            return attempt(lambda: original(gm, *args, **kwargs), again)

    return fx_codegen_and_compile


def _constants(gm: Any) -> dict[str, Any]:
    """Return the CPU constants of a graph by name, which a lowering may delete; none if they are too large."""
    names = {str(node.target) for node in gm.graph.find_nodes(op="get_attr")}
    values = {name: getattr(gm, name) for name in names if "." not in name and hasattr(gm, name)}
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor) and value.is_cpu}
    return tensors if sum(value.nbytes for value in tensors.values()) <= MAX_CONSTANT_BYTES else {}


def keeping_events(init: Function, take: Callable[[], str], stored: Callable[[], Stored]) -> Function:
    """Wrap the constructor of compiled graphs. The graph stores the result of `take()`, which is pickled into the
    caches with it, and where it may be `stored()`: nowhere if its lowering made constants of frozen ones."""
    signature = inspect.signature(init)

    @functools.wraps(init)
    def with_events(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        given = signature.bind(self, *args, **kwargs).arguments
        if checked := getattr(given["graph"], "inputs_to_check", None):  # A lowering may have added to them.
            self.inputs_to_check = checked
        bound = state.makes_constants(given["graph"], given["gm"])
        # The graph is pickled, and must not need gemmdb.
        self._gemmdb_stored = (Stored.NOWHERE if bound else stored()).value
        self._gemmdb_events = take()
        self._gemmdb_places = symbolic.places(given["graph"])

    return with_events


def reporting(post_compile: Function, add: Callable[[str | None, Any], None]) -> Function:
    """Wrap `post_compile`: call `add(events, graph)` when a graph is ready to run. That happens once per load: after a
    cold compile, from the FX graph cache, or from the AOTAutograd cache."""

    @functools.wraps(post_compile)
    def report(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = post_compile(self, *args, **kwargs)
        add(getattr(self, "_gemmdb_events", None), self)
        return result

    return report


def places_of(graph: Any) -> dict[str, tuple[int, int | None]]:
    """Return the inputs of a compiled graph that have the values of its symbols, as `symbolic.places`."""
    return dict(getattr(graph, "_gemmdb_places", {}))


def where_allowed(save: Function) -> Function:
    """Wrap the writer of the FX graph cache to skip graphs that may not be stored there. An AOTAutograd entry without
    its FX graph entry is a miss. An engine that saves what it has just compiled fails on such a miss when it starts
    again, so it gets provisional graphs, too."""
    signature = inspect.signature(save)

    @functools.wraps(save)
    def save_where_allowed(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs)
        graph = given.arguments.get("compiled_graph")
        stored = Stored(getattr(graph, "_gemmdb_stored", Stored.EVERYWHERE.value))
        if stored is Stored.NOWHERE:
            return
        if stored is Stored.BY_PROGRAM:
            if not {"local", "remote_cache"} <= set(signature.parameters):
                return
            given.arguments |= {"local": False, "remote_cache": None}
        save(*given.args, **given.kwargs)

    return save_where_allowed


def around_calls(graph: Any, call: Callable[[Function, Any], Any]) -> None:
    """Route each run of the compiled `graph` through `call(run, inputs)`; `run(inputs)` is the run itself."""
    run = graph.current_callable
    if run is None:
        return

    @functools.wraps(run)
    def called(inputs: Any) -> Any:
        return call(run, inputs)

    graph.current_callable = called


def unless_padding_is_answered(original: Function, answered: Callable[[Any], bool]) -> Callable[..., bool]:
    """Wrap the decision of Inductor's padding pass. If the node of a GEMM is `answered`, the pass skips it and
    benchmarks nothing, unless the user forces padding. The pass only checks GEMMs that could be padded."""

    @functools.wraps(original)
    def should_pad(match: Any, *args: Any, **kwargs: Any) -> bool:
        if not inductor_config.force_shape_pad and answered(match.output_node()):
            return False
        return bool(original(match, *args, **kwargs))

    return should_pad


def naming_tables(get_system: Function, identity: Callable[[], str]) -> Function:
    """Wrap the description of the system in Inductor's cache keys: add `identity()`, unless it is empty. vLLM makes the
    key of its own cache of this, and loads its graphs without asking Inductor's cache, whose keys have our passes."""

    @functools.wraps(get_system)
    def with_tables() -> Any:
        found, name = get_system(), identity()
        return {**found, "gemmdb": name} if name else found

    return with_tables
