"""Registry of all of gemmdb's changes to torch. `apply` installs the wrappers, `undo` removes them.

`gemmdb.inductor.entry.install` passes in the wrappers by name. In addition, gemmdb only adds objects under its own
names: the operators of `gemmdb.inductor.match.ops` with their lowerings, and Triton templates named `gemmdb_*`. torch
uses none of them, so `undo` leaves them in place.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch._inductor import select_algorithm

_log = logging.getLogger("gemmdb")

_SAVERS = "torch._inductor.select_algorithm:_ALGORITHM_SELECTOR_CACHE.feedback_saver_fns"


@dataclass(frozen=True)
class Patch:
    """One torch function that gemmdb wraps.

    `wrapper`: the name, in `apply`, of the function that makes the wrapper. `target`: `module:function`,
    `module:Class.method`, or `module:table[operator]` for an entry of a table; an operator without an overload stands
    for all of its overloads.
    """

    wrapper: str
    target: str
    reason: str


_GEMM_LOWERINGS = (
    "aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default", "aten._int_mm.default",
    "aten._weight_int8pack_mm", "aten._scaled_mm.default", "aten._scaled_mm_v2.default", "aten._grouped_mm.default",
    "aten._scaled_grouped_mm.default", "mkldnn._linear_pointwise", "mkl._mkl_linear",
)  # fmt: skip

PATCHES: tuple[Patch, ...] = (
    Patch("compile_fx", "torch._inductor.compile_fx:compile_fx", "adds our two graph passes to each compile"),
    Patch(
        "codegen", "torch._inductor.compile_fx:fx_codegen_and_compile",
        "compiles a graph again with ATen when a compiler refuses one of our kernels",
    ),
    Patch(
        "graph_init", "torch._inductor.output_code:CompiledFxGraph.__init__",
        "stores the graph's events and its new input checks in the artifact",
    ),
    Patch(
        "graph_ready", "torch._inductor.output_code:CompiledFxGraph.post_compile",
        "reports the events of a ready graph, cold or from a cache",
    ),
    Patch(
        "save_graph", "torch._inductor.codecache:FxGraphCache._save_graph",
        "keeps provisional graphs, and those with constants computed from frozen ones, out of the cache",
    ),
    Patch(
        "tracing", "torch._functorch._aot_autograd.graph_capture:_create_graph",
        "keeps GEMMs that torch decomposes during tracing whole until our passes have looked them up",
    ),
    Patch(
        "replacing", "torch._inductor.pattern_matcher:fwd_only",
        "the same where Inductor replaces a pattern by a GEMM",
    ),
    *(
        Patch("lowering", f"torch._inductor.lowering:lowerings[{name}]", "lowers a GEMM according to its Decision")
        for name in _GEMM_LOWERINGS
    ),
    Patch(
        "should_pad", "torch._inductor.fx_passes.pad_mm:_should_pad",
        "skips padding benchmarks for a GEMM whose answer was measured against padding too",
    ),
    Patch(
        "fusion_score", "torch._inductor.scheduler:Scheduler.score_fusion_memory",
        "fuses consumers of our output with other loops: after a permutation, and in torch 2.11 after views",
    ),
    Patch(
        "codegen_template", "torch._inductor.codegen.simd:SIMDScheduling.codegen_template",
        "writes all kernels of a GEMM that has several, chosen by the number of rows at run time",
    ),
    Patch(
        "define_kernel", "torch._inductor.codegen.triton:TritonScheduling.define_kernel",
        "keeps the name of a kernel that was compiled for a trial, so it is not compiled again",
    ),
    Patch(
        "zeroing", "torch._inductor.codegen.wrapper:PythonWrapperCodegen.make_zero_buffer",
        "zeroes only the counters of our kernels' workspace at each call",
    ),
    Patch(
        "cutlass_headers", "torch._inductor.codegen.cuda.compile_utils:_cutlass_include_paths",
        "points nvcc to the headers of the nvidia-cutlass package",
    ),
    Patch(
        "cuda_compile", "torch._inductor.codecache:CUTLASSCodeCache.compile",
        "puts a prebuilt CUTLASS kernel where Inductor looks before it runs nvcc",
    ),
    Patch(
        "system", "torch._inductor.codecache:CacheBase.get_system",
        "adds the tables to what engines read of Inductor for the keys of their own compile caches",
    ),
    Patch("timings", _SAVERS, "stores the timings of Inductor's autotuning for a missed GEMM"),
)  # fmt: skip
"""The registry. A test compares it with the changes of `enable()`, and docs/contributing/torch.md lists it."""

Wrapper = Callable[[Any], Any]


@dataclass(frozen=True)
class _Place:
    """Location of one function: an attribute of a module or class, or an entry of a dict."""

    owner: Any
    name: Any

    def read(self) -> Any:
        return (self.owner if isinstance(self.owner, dict) else vars(self.owner)).get(self.name)

    def write(self, value: Any) -> None:
        if isinstance(self.owner, dict):
            self.owner[self.name] = value
        else:
            setattr(self.owner, self.name, value)


class _Saver:
    """Location of our function in the list of functions that get the timings of Inductor's autotuning."""

    def read(self) -> Any:
        cache = select_algorithm._ALGORITHM_SELECTOR_CACHE
        found = [] if cache is None else cache.feedback_saver_fns
        return next((one for one in found if getattr(one, "_gemmdb", False)), None)

    def write(self, value: Any) -> None:
        if value is not None:
            select_algorithm.add_feedback_saver(value)
        elif (ours := self.read()) is not None:
            select_algorithm._ALGORITHM_SELECTOR_CACHE.feedback_saver_fns.remove(ours)


@dataclass(frozen=True)
class _Applied:
    place: _Place | _Saver
    original: Any
    ours: Any


_lock = threading.Lock()
_wrappers: dict[str, Wrapper] = {}
_applied: dict[object, _Applied] = {}


def apply(wrappers: Mapping[str, Wrapper] | None = None) -> None:
    """Install all wrappers that are not installed yet. `wrappers`: by name, functions that take an original and return
    its replacement. None reuses those of the last call; without an earlier call, nothing happens."""
    with _lock:
        _wrappers.update(wrappers or {})
        for patch in PATCHES:
            make = _wrappers.get(patch.wrapper)
            if make is not None:
                for key, place in places(patch.target).items():
                    if place.read() is None and isinstance(key, str) and not isinstance(place, _Saver):
                        _warn_missing(key)
                    else:
                        _put(key, place, make)


@functools.cache
def _warn_missing(target: str) -> None:
    """Cached, so a function that is missing in this torch is reported once. Compiles continue without the wrapper."""
    _log.warning("gemmdb: torch %s has no %s; gemmdb continues without its wrapper", torch.__version__, target)


def undo() -> None:
    """Restore the originals. If other code has wrapped our wrapper, ours stays and passes calls through."""
    with _lock:
        for key, one in list(_applied.items()):
            if one.place.read() is one.ours:
                one.place.write(one.original)
                del _applied[key]


def _put(key: object, place: _Place | _Saver, make: Wrapper) -> None:
    standing, known = place.read(), _applied.get(key)
    if known is not None and standing is not known.original:
        return  # Our wrapper, or another one around it.
    kind = next((one for one in (staticmethod, classmethod) if isinstance(standing, one)), None)
    ours = make(standing.__func__ if kind else standing)
    ours._gemmdb = True
    place.write(kind(ours) if kind else ours)
    _applied[key] = _Applied(place, standing, place.read())


def places(target: str) -> dict[object, _Place | _Saver]:
    """Return the locations of a target's functions, each with a fixed key; none if this torch has no such operator."""
    if target == _SAVERS:
        return {target: _Saver()}
    module, _, name = target.partition(":")
    owner = import_module(module)
    if name.endswith("]"):
        table, _, operator = name[:-1].partition("[")
        entries = getattr(owner, table)
        return {(target, one): _Place(entries, one) for one in _overloads(operator) if one in entries}
    *classes, name = name.split(".")
    for one in classes:
        owner = getattr(owner, one)
    return {target: _Place(owner, name)}


def _overloads(operator: str) -> list[Any]:
    """Return the overload of that name, or the packet and all of its overloads; none if this torch has no such
    operator."""
    found: Any = torch.ops
    for name in operator.split("."):
        found = getattr(found, name, None)
    if isinstance(found, torch._ops.OpOverloadPacket):
        return [found, *(getattr(found, name) for name in found.overloads())]
    return [] if found is None else [found]
