"""Where Inductor is wrapped: its entry point, its compiled artefacts, its autotuner's feedback."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch._inductor as _package
import torch._inductor.compile_fx as _compile_fx
from torch._inductor import codecache, output_code

from gemmdb.inductor.adapter.slots import patches_for

_PATCHES = "config_patches"


def wrap_compile_fx(choose: Callable[[], Mapping[str, Any] | None], after: Callable[[bool], None]) -> None:
    """Let every call of compile_fx run with the passes (by slot) that `choose` returns, if any. Once per process.

    `after(ok)` runs when the call is over: with AOTInductor there is no artefact that could carry the events.
    """
    original = _compile_fx.compile_fx
    if getattr(original, "_gemmdb", False):
        return

    position = list(inspect.signature(original).parameters).index(_PATCHES)

    @functools.wraps(original)
    def compile_fx(*args: Any, **kwargs: Any) -> Any:
        bodies = choose()
        if bodies is None:
            return original(*args, **kwargs)
        # torch's own names are kept for those who call it with keywords: only the patches are looked at.
        if len(args) > position:
            args = (*args[:position], patches_for(bodies, args[position]), *args[position + 1 :])
        else:
            kwargs[_PATCHES] = patches_for(bodies, kwargs.get(_PATCHES))
        ok = False
        try:
            result = original(*args, **kwargs)
            ok = True
        finally:
            after(ok)
        return result

    compile_fx._gemmdb = True  # type: ignore[attr-defined]
    _compile_fx.compile_fx = compile_fx
    if getattr(_package, "compile_fx", None) is original:
        _package.compile_fx = compile_fx


def hook_artefacts(
    take: Callable[[], str], add: Callable[[str | None, Any], None], provisional: Callable[[], bool]
) -> None:
    """Store `take()` in every compiled graph, from where it is pickled into the caches, and call `add(text, graph)`
    when a graph is ready to run: once per load, cold, from the FX graph cache, or from the AOTAutograd cache. A graph
    that was `provisional()` when it was compiled is served by neither cache."""
    graph_class = output_code.CompiledFxGraph
    if getattr(graph_class, "_gemmdb_hooked", False):
        return
    init, post_compile = graph_class.__init__, graph_class.post_compile
    signature = inspect.signature(init)

    @functools.wraps(init)
    def with_events(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        graph = signature.bind(self, *args, **kwargs).arguments.get("graph")
        if checked := getattr(graph, "inputs_to_check", None):  # A lowering may have added to them.
            self.inputs_to_check = checked
        self._gemmdb_provisional = provisional()
        self._gemmdb_events = take()

    @functools.wraps(post_compile)
    def report(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = post_compile(self, *args, **kwargs)
        add(getattr(self, "_gemmdb_events", None), self)
        return result

    save = codecache.FxGraphCache._save_graph

    @functools.wraps(save)
    def save_unless_provisional(key: str, compiled_graph: Any, *args: Any, **kwargs: Any) -> None:
        # What AOTAutograd's cache keeps of it names this entry, and counts as a miss without it.
        if not getattr(compiled_graph, "_gemmdb_provisional", False):
            save(key, compiled_graph, *args, **kwargs)

    codecache.FxGraphCache._save_graph = staticmethod(save_unless_provisional)
    graph_class.__init__ = with_events
    graph_class.post_compile = report
    graph_class._gemmdb_hooked = True


def count_calls(graph: Any, called: Callable[[], None]) -> None:
    """Call `called` at each run of the compiled `graph` (record mode only)."""
    run = graph.current_callable
    if run is None:
        return

    @functools.wraps(run)
    def counted(inputs: Any) -> Any:
        called()
        return run(inputs)

    graph.current_callable = counted


_timing_listeners: list[Callable[[dict[Any, float]], None]] = []


def on_timings(listener: Callable[[dict[Any, float]], None]) -> None:
    """Call `listener` with choice -> milliseconds after each search of Inductor's. Idempotent per listener."""
    from torch._inductor.select_algorithm import add_feedback_saver

    if listener in _timing_listeners:
        return
    _timing_listeners.append(listener)

    def saver(timings: dict[Any, float], *_: Any) -> None:
        listener(timings)

    add_feedback_saver(saver)
