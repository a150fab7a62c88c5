"""A small graph compiled on its own while Inductor is compiling another one, which stays as it was.

The graph is lowered as it is: Inductor's passes have run over the graph that it was cut from. Its kernels compile in
Inductor's pool of workers, so several graphs can be begun before the first is waited for.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._inductor import metrics
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import CodeCacheFuture
from torch._inductor.debug import DebugContext
from torch._inductor.graph import GraphLowering
from torch._inductor.triton_bundler import TritonBundler
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import _disable_current_modes

from gemmdb.inductor.lower.adapter import naming
from gemmdb.inductor.lower.adapter.emitting import Function, replaced
from gemmdb.phases import PHASES

_WAIT = "async_compile.wait(globals())\n"
_PATCHES = {
    "trace.enabled": False, "cpp_wrapper": False, "triton.cudagraphs": False, "triton.autotune_at_compile_time": False,
    "triton.store_cubin": False, "benchmark_harness": False,
}  # fmt: skip
"""Inductor's Python wrapper, whatever the program asks for: it runs the same kernels."""


_ALLOCATED = re.compile(r"^(\s*workspace_gemmdb\w* = )empty_strided_cuda\(", re.MULTILINE)
_ZEROED = re.compile(r"^\s*workspace_gemmdb\w*(\[:\d+\])?\.zero_\(\).*\n", re.MULTILINE)


@dataclass(frozen=True)
class Code:
    """The output code of a graph, and the constants that it refers to by name."""

    source: str
    constants: Mapping[str, torch.Tensor]

    @PHASES("compile")
    def begin(self) -> Begun:
        """Begin to compile the kernels. Where Inductor has no workers yet, this waits for the kernels one by one."""
        module = ModuleType("gemmdb_nested")
        # The code waits for its kernels when it is loaded; `Begun.function` waits instead.
        source = _zeroed_before(self.source.replace(_WAIT, "", 1))
        with real_tensors(), undisturbed():
            module.__dict__["_zeros"] = _zeros
            exec(compile(source, "<nested>", "exec", dont_inherit=True), module.__dict__)
        vars(module).update(self.constants)
        return Begun(module)


@dataclass(frozen=True)
class Begun:
    """Output code whose kernels are being compiled."""

    module: ModuleType

    @PHASES("compile")
    def ready(self, seconds: float) -> bool:
        """Whether the kernels are compiled. Waits for them for `seconds` at most."""
        kernels = [one for one in vars(self.module).values() if isinstance(one, CodeCacheFuture)]
        tasks = [task for one in kernels if (task := getattr(one, "future", None)) is not None]
        return not futures.wait(tasks, max(seconds, 0.0)).not_done

    @PHASES("compile")
    def function(self) -> Function:
        """The function of the code. Waits for its kernels and loads them; raises what compiling them raised."""
        with real_tensors(), undisturbed():
            AsyncCompile().wait(vars(self.module))
        function: Function = self.module.call
        return function


def _zeroed_before(source: str) -> str:
    """Output code whose counters of arrivals are zero before its first call. Each kernel leaves them at zero, so a
    program zeroes those of all its kernels once. A small graph would charge that to one kernel."""
    return _ALLOCATED.sub(r"\1_zeros(", _ZEROED.sub("", source))


def _zeros(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return _zeros_on(torch.cuda.current_device(), size, stride, dtype)


@functools.lru_cache(maxsize=4)  # The two codes of a trial may differ in it.
def _zeros_on(device: int, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(size, dtype=dtype, device=device).as_strided(size, stride)


@PHASES("generate")
def generate(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Code:
    """The output code of a graph for fake `inputs` of fixed sizes. Raises what Inductor raises."""
    with (
        undisturbed(),
        naming.trying(),
        inductor_config.patch(_PATCHES),
        tracing(TracingContext(None)),
        V.set_debug_handler(DebugContext()),
        torch.no_grad(),
    ):
        lowering = GraphLowering(graph, example_inputs=inputs, shape_env=ShapeEnv(), is_inference=True)
        with V.set_graph_handler(lowering), V.set_extern_kernel_nodes([]):
            lowering.run(*inputs)
            code, _ = lowering.codegen()
    return Code(str(code.value), dict(lowering.constants))


@contextmanager
def real_tensors() -> Iterator[None]:
    """Inside, tensors are real ones, whatever is being traced, and no gradients are recorded."""
    with _disable_current_modes(), torch.no_grad():
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Inside, what the compile in progress counts and collects is left alone."""
    counted = Counter(counters["inductor"])
    measured = {name: getattr(metrics, name) for name in metrics.get_metric_fields()}
    with ExitStack() as stack:
        for name in ("_entries", "_static_autotuners"):  # Without them, the bundler collects nothing.
            stack.enter_context(replaced(TritonBundler, name, None))
        try:
            yield
        finally:
            counters["inductor"].clear()
            counters["inductor"].update(counted)
            for name, value in measured.items():
                setattr(metrics, name, value)
