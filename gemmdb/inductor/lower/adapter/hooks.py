"""Wrappers of Inductor's entry point, its compiled graphs and its caches."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from gemmdb.inductor.lower.adapter.slots import patches_for

_PATCHES = "config_patches"

Function = Callable[..., Any]


def with_passes(
    choose: Callable[[], Mapping[str, Any] | None], after: Callable[[bool], None]
) -> Callable[[Function], Function]:
    """Wraps compile_fx: each call runs with the passes (by slot) that `choose` returns, if any.

    `after(ok)` runs when such a call is over, because AOTInductor makes no artefact that could store the events.
    """

    def around(original: Function) -> Function:
        position = list(inspect.signature(original).parameters).index(_PATCHES)

        @functools.wraps(original)
        def compile_fx(*args: Any, **kwargs: Any) -> Any:
            bodies = choose()
            if bodies is None:
                return original(*args, **kwargs)
            ok = False
            try:
                # Callers may use torch's own keywords, so only the patches are looked at.
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

    return around


def keeping_events(take: Callable[[], str], provisional: Callable[[], bool]) -> Callable[[Function], Function]:
    """Wraps the constructor of compiled graphs. The graph stores the result of `take()`, which is pickled into the
    caches with it, and whether it is `provisional()`."""

    def around(init: Function) -> Function:
        signature = inspect.signature(init)

        @functools.wraps(init)
        def with_events(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            graph = signature.bind(self, *args, **kwargs).arguments.get("graph")
            if checked := getattr(graph, "inputs_to_check", None):  # A lowering may have added to them.
                self.inputs_to_check = checked
            self._gemmdb_provisional = provisional()
            self._gemmdb_events = take()

        return with_events

    return around


def reporting(add: Callable[[str | None, Any], None]) -> Callable[[Function], Function]:
    """Wraps `post_compile`: calls `add(events, graph)` when a graph is ready to run. That happens once per load: after
    a cold compile, from the FX graph cache, or from the AOTAutograd cache."""

    def around(post_compile: Function) -> Function:
        @functools.wraps(post_compile)
        def report(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = post_compile(self, *args, **kwargs)
            add(getattr(self, "_gemmdb_events", None), self)
            return result

        return report

    return around


def unless_provisional(save: Function) -> Function:
    """Wraps the writer of the FX graph cache so that it stores no provisional graph. An AOTAutograd entry without its
    FX graph entry is a miss."""

    @functools.wraps(save)
    def save_unless_provisional(key: str, compiled_graph: Any, *args: Any, **kwargs: Any) -> None:
        if not getattr(compiled_graph, "_gemmdb_provisional", False):
            save(key, compiled_graph, *args, **kwargs)

    return save_unless_provisional


def count_calls(graph: Any, called: Callable[[], None]) -> None:
    """Call `called` at each run of the compiled `graph` (record mode only)."""

    def counted(run: Function, inputs: Any) -> Any:
        called()
        return run(inputs)

    around_calls(graph, counted)


def around_calls(graph: Any, call: Callable[[Function, Any], Any]) -> None:
    """Let `call(run, inputs)` carry out each run of the compiled `graph`; `run(inputs)` is the run itself."""
    run = graph.current_callable
    if run is None:
        return

    @functools.wraps(run)
    def called(inputs: Any) -> Any:
        return call(run, inputs)

    graph.current_callable = called
